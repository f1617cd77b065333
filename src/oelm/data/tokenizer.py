"""Text to token ids and back.

Two tokenizers behind one face: GPT-2's, run by `tiktoken`, and a byte-level BPE trained on a corpus, run by
`tokenizers`. Both split text by GPT-2's pattern before they merge, both know one special token, the end of a
text, as their last id, and both read `<|endoftext|>` in a text as that token.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from oelm.data.meta import TokenizerMeta, read_meta
from oelm.data.vocabulary import GPT2_SHA256, MERGES, VOCABULARY, VocabularyFiles, find_vocabulary
from oelm.errors import BadData
from oelm.files import write_atomically
from oelm.spec.data import END_OF_TEXT

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

GPT2_VOCAB_SIZE = 50257
TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (TOKENIZER, VOCABULARY, MERGES)

# What tiktoken states as GPT-2's pattern: equal to the original one, but faster.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

Ids = NDArray[np.uint16]


class Tokenizer(Protocol):
    """A map between text and ids below `vocab_size`. `sha256` names the map by its content."""

    name: str
    vocab_size: int
    end_of_text: int
    sha256: str

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encode texts one by one; other threads run meanwhile."""
        ...

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD."""
        ...

    def save(self, directory: Path) -> None:
        """Write what `load_tokenizer` needs into a folder."""
        ...


def describe(tokenizer: Tokenizer) -> TokenizerMeta:
    """State a tokenizer as meta.json does."""
    return TokenizerMeta(
        name=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        end_of_text=tokenizer.end_of_text,
        sha256=tokenizer.sha256,
    )


class GPT2Tokenizer:
    """GPT-2's own BPE of 50,257 entries."""

    name = "gpt2"
    vocab_size = GPT2_VOCAB_SIZE
    end_of_text = GPT2_VOCAB_SIZE - 1
    sha256 = GPT2_SHA256

    def __init__(self, files: VocabularyFiles) -> None:
        self._files = files
        self._encoding = _encoding(files)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encode texts one by one."""
        special = {END_OF_TEXT}
        encode = self._encoding.encode_to_numpy  # no list of Python integers, and no GIL while it works
        return [encode(text, allowed_special=special, disallowed_special=()).astype(np.uint16) for text in texts]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of ids."""
        return self._encoding.decode(_checked(ids, self.vocab_size))

    def save(self, directory: Path) -> None:
        """Write vocab.json and merges.txt."""
        self._files.save(directory)


class TrainedTokenizer:
    """A byte-level BPE of its own, as `tokenizers` writes it."""

    def __init__(self, content: str) -> None:
        from tokenizers import Tokenizer as Backend

        self._content = content
        try:
            self._backend: tokenizers.Tokenizer = Backend.from_str(content)
        except Exception as error:  # it raises nothing narrower
            raise BadData(
                f"this {TOKENIZER} is not one that `tokenizers` reads ({error}). Restore it, or prepare the "
                "corpus again."
            ) from error
        self.vocab_size: int = self._backend.get_vocab_size()
        end_of_text = self._backend.token_to_id(END_OF_TEXT)
        if end_of_text is None or self.vocab_size > 1 << 16:
            raise BadData(
                f"this {TOKENIZER} has {self.vocab_size} entries and {'no' if end_of_text is None else 'an'} "
                f"{END_OF_TEXT}: ids of 16 bits and an end of text are needed. Let `oelm prepare "
                "--vocab-size` train one."
            )
        self.end_of_text: int = end_of_text
        self.name = f"bpe{self.vocab_size}"
        self.sha256 = hashlib.sha256(content.encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encode texts one by one."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.uint16) for encoding in encodings]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of ids."""
        return self._backend.decode(_checked(ids, self.vocab_size), skip_special_tokens=False)

    def save(self, directory: Path) -> None:
        """Write tokenizer.json, which `transformers` reads as well."""
        write_atomically(directory / TOKENIZER, self._content)


def gpt2_tokenizer(vocabulary: Path | None = None) -> GPT2Tokenizer:
    """Return GPT-2's tokenizer, with the files of a given folder or those found on this machine."""
    return GPT2Tokenizer(find_vocabulary(vocabulary))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> TrainedTokenizer:
    """Train a byte-level BPE of exactly `vocab_size` entries, the last of them the end of text.

    The same texts give the same bytes of tokenizer.json. Raises BadData if they hold too little to merge.
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
            f"a vocabulary of {vocab_size} entries was to be trained, but the corpus gives no more than "
            f"{found}. Ask for --vocab-size {found} or fewer, or give it more text."
        )
    return TrainedTokenizer(backend.to_str())


def load_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer of a folder of tokens, or of a folder that one was saved to.

    A folder with neither tokenizer files nor meta.json is nanoGPT's: its ids are GPT-2's.
    """
    meta = read_meta(directory)
    if (directory / TOKENIZER).is_file():
        tokenizer: Tokenizer = TrainedTokenizer(_text(directory / TOKENIZER))
    elif (directory / VOCABULARY).is_file():
        tokenizer = gpt2_tokenizer(directory)
    elif meta is None or meta.tokenizer.name == GPT2Tokenizer.name:
        tokenizer = gpt2_tokenizer()
    else:
        raise BadData(
            f"{directory} holds tokens of {meta.tokenizer.name}, but not its {TOKENIZER}. Restore that file, "
            "or prepare the corpus again."
        )
    if meta is not None and tokenizer.sha256 != meta.tokenizer.sha256:
        raise BadData(
            f"the tokenizer in {directory} ({tokenizer.name}, {tokenizer.sha256[:12]}) is not the one its "
            f"tokens were made with ({meta.tokenizer.name}, {meta.tokenizer.sha256[:12]}). Restore it, or "
            "prepare the corpus again."
        )
    return tokenizer


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read: {error}. Restore it, or prepare the corpus again.") from error


def _checked(ids: Sequence[int] | Ids, vocab_size: int) -> list[int]:
    plain = [int(index) for index in ids]
    if plain and not 0 <= min(plain) <= max(plain) < vocab_size:
        raise BadData(
            f"ids between {min(plain)} and {max(plain)} were to be decoded with a vocabulary of {vocab_size} "
            "entries. Use the tokenizer that the tokens were made with."
        )
    return plain


def _encoding(files: VocabularyFiles) -> tiktoken.Encoding:
    """Build the encoder. GPT-2 numbers its entries in the order of its merges, so ids are ranks."""
    import tiktoken

    as_byte = _bytes_by_letter()
    ranks = {
        bytes(as_byte[letter] for letter in entry): index
        for entry, index in json.loads(files.vocabulary).items()
        if entry != END_OF_TEXT
    }
    special = {END_OF_TEXT: GPT2_VOCAB_SIZE - 1}
    return tiktoken.Encoding("gpt2", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=special)


def _bytes_by_letter() -> dict[str, int]:
    """Return the bytes by the letters that stand for them in vocab.json, where no entry may hold a space."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}
