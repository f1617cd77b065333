"""Text to token ids and back.

There are two vocabularies: GPT-2's, and byte-level BPEs that `tokenizers` trains on a corpus. Both split text
by GPT-2's pattern before they merge, both end with one special token, the end of a text, and both read
`<|endoftext|>` in a text as that token. `tiktoken` encodes with either, several times faster than `tokenizers`.

**Why it may.** `tiktoken` merges any two neighbours whose union t is an entry, least rank first; `tokenizers`
only the pair (a, b) of which training made t. They never differ: merges below the rank of t, done left to right
between two boundaries, do not depend on what lies outside. In training they left a, b where t was made, so they
leave a, b wherever the ends of t are boundaries, and no other pair of neighbours can have t for its union. The
ranks must be the order of the merges, which `_ranks` checks; the equality is tested as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oelm.data.meta import TokenizerMeta, read_meta
from oelm.data.vocabulary import GPT2_SHA256, MERGES, VOCABULARY, find_vocabulary
from oelm.errors import BadData
from oelm.files import write_atomically
from oelm.spec.data import END_OF_TEXT
from oelm.spec.model import GPT2_VOCAB_SIZE

if TYPE_CHECKING:
    import tiktoken

GPT2 = "gpt2"
TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (TOKENIZER, VOCABULARY, MERGES)

# What tiktoken states as GPT-2's pattern: equal to the original one, but faster.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

Ids = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A map between text and ids below `vocab_size`, the last of which ends a text. `sha256` names the map."""

    name: str
    vocab_size: int
    sha256: str
    files: Mapping[str, bytes] = field(repr=False, compare=False)
    encoding: tiktoken.Encoding = field(repr=False, compare=False)

    @property
    def end_of_text(self) -> int:
        """Return the id of `<|endoftext|>`."""
        return self.vocab_size - 1

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encode texts one by one. Other threads run meanwhile."""
        encode, special = self.encoding.encode_to_numpy, {END_OF_TEXT}
        return [encode(text, allowed_special=special, disallowed_special=()).astype(np.uint16) for text in texts]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD. Raises BadData for ids beyond."""
        plain = [int(index) for index in ids]
        if plain and not 0 <= min(plain) <= max(plain) < self.vocab_size:
            raise BadData(
                f"ids between {min(plain)} and {max(plain)} were to be decoded with a vocabulary of "
                f"{self.vocab_size} entries. Use the tokenizer that the tokens were made with."
            )
        return self.encoding.decode(plain)

    def save(self, directory: Path) -> None:
        """Write what `load_tokenizer` needs, in files that `transformers` reads as well."""
        for name, content in self.files.items():
            write_atomically(directory / name, content)

    def describe(self) -> TokenizerMeta:
        """State the tokenizer as meta.json does."""
        return TokenizerMeta(
            name=self.name, vocab_size=self.vocab_size, end_of_text=self.end_of_text, sha256=self.sha256
        )


def gpt2_tokenizer(vocabulary: Path | None = None) -> Tokenizer:
    """Return GPT-2's tokenizer, with the files of a given folder or those found on this machine."""
    files = find_vocabulary(vocabulary)
    # GPT-2 numbers its entries in the order of its merges, so ids are ranks.
    ranks = _as_bytes(json.loads(files[VOCABULARY]))
    return Tokenizer(GPT2, GPT2_VOCAB_SIZE, GPT2_SHA256, files, _encoding(ranks))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
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
            f"a vocabulary of {vocab_size} entries was to be trained, but the corpus gives no more than {found}. "
            f"Ask for --vocab-size {found} or fewer, or give it more text."
        )
    return trained_tokenizer(backend.to_str().encode())


def trained_tokenizer(content: bytes) -> Tokenizer:
    """Return the tokenizer that a tokenizer.json of `train_tokenizer` describes; BadData for any other."""
    try:
        ranks = _ranks(json.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadData(
            f"this {TOKENIZER} is not one that `oelm prepare --vocab-size` writes ({error}): a byte-level BPE of ids "
            f"in the order of its merges, {END_OF_TEXT} the last. Restore it, or prepare the corpus again."
        ) from error
    size = len(ranks) + 1
    return Tokenizer(f"bpe{size}", size, hashlib.sha256(content).hexdigest(), {TOKENIZER: content}, _encoding(ranks))


def load_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer of a folder of tokens, or of a folder that one was saved to.

    A folder with neither tokenizer files nor meta.json is nanoGPT's: its ids are GPT-2's.
    """
    meta = read_meta(directory)
    if (directory / TOKENIZER).is_file():
        tokenizer = trained_tokenizer((directory / TOKENIZER).read_bytes())
    elif (directory / VOCABULARY).is_file():
        tokenizer = gpt2_tokenizer(directory)
    elif meta is None or meta.tokenizer.name == GPT2:
        tokenizer = gpt2_tokenizer()
    else:
        raise BadData(
            f"{directory} holds tokens of {meta.tokenizer.name}, but not its {TOKENIZER}. Restore that file, or "
            "prepare the corpus again."
        )
    if meta is not None and tokenizer.sha256 != meta.tokenizer.sha256:
        raise BadData(
            f"the tokenizer in {directory} ({tokenizer.name}, {tokenizer.sha256[:12]}) is not the one its tokens "
            f"were made with ({meta.tokenizer.name}, {meta.tokenizer.sha256[:12]}). Restore it, or prepare the "
            "corpus again."
        )
    return tokenizer


def _encoding(ranks: Mapping[bytes, int]) -> tiktoken.Encoding:
    import tiktoken

    special = {END_OF_TEXT: len(ranks)}
    return tiktoken.Encoding("oelm", pat_str=_PATTERN, mergeable_ranks=dict(ranks), special_tokens=special)


def _ranks(plain: Any) -> dict[bytes, int]:
    """Return the ranks of a trained vocabulary, after checking that it is one of ours: see above why."""
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
    return _as_bytes(entries)


def _as_bytes(entries: Mapping[str, int]) -> dict[bytes, int]:
    """Translate entries from the letters that stand for bytes, since no entry may hold a space, to bytes."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return {
        bytes(byte_of[letter] for letter in entry): index for entry, index in entries.items() if entry != END_OF_TEXT
    }
