r"""Read documents from text, JSON lines, Parquet and generators, and assign them to splits.

A text must be cut into documents without changing its tokens. GPT-2's pre-tokenizer gives the last character of a run
of white space to what follows it, unless nothing follows: it splits `"one.\n\ntwo"` into `one` `.` `\n` `\n` `two`, but
`"one.\n\n"` into `one` `.` `\n\n`. A cut at the end of such a run therefore changes the tokens. A cut is safe

- before the last character of a run of white space, if something other than end-of-text follows the run,
- after a run of one character,
- on either side of `<|endoftext|>`, because no other token spans it.

Every cut here is one of these. So the tokens of all documents of a file, one after another, are the tokens of the file
(tested for all rules on random and on real texts). Positions count bytes, so reading can resume at any of them.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from oelm.errors import BadData, UsageError
from oelm.spec.run import END_OF_TEXT, Split, SplitFile

DocumentRule = Literal["stories", "articles", "paragraphs", "lines", "files", "rows"]

SEPARATOR = END_OF_TEXT.encode()
MAX_PIECE = 1 << 20
"""A longer document is read and encoded in pieces of at most this many bytes."""
LOOKAHEAD = 1 << 16
"""How many bytes after a cut may be needed to decide about it."""

# Exactly the characters of Unicode's White_Space, which \s means to both tokenizers.
_SPACE = rb"(?:[\t-\r ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
_SPACES = re.compile(_SPACE + rb"+")
_STORY = re.compile(re.escape(SEPARATOR) + _SPACE + rb"*")
_LINE = re.compile(rb"\n" + _SPACE + rb"*")
_PARAGRAPH = re.compile(rb"\n[^\S\n]*\n" + _SPACE + rb"*")
# A blank line on both sides distinguishes a title from a formula or a legend that was broken before its " = ". With
# this rule the validation and test splits of WikiText-103 have 60 articles each, as its authors state.
_TITLE = re.compile(rb"(?<=\n) ?\n(?= = [^=\n][^\n]* = ?\n ?\n)")
_FIRST_TITLE = re.compile(rb"\s* = [^=\n][^\n]* = ?\n ?\n")


def find_cuts(rule: DocumentRule, text: bytes, final: bool) -> Iterator[int]:
    """Yield where further documents begin in `text`, which begins with a document.

    Unless `final`, more text may follow, and cuts that depend on it are left for the next call. Blank text never
    becomes a document of its own: it joins the first document at the beginning and the last one at the end.
    """
    if rule == "articles":
        yield from (match.end() for match in _TITLE.finditer(text) if not _is_blank(text, 0, match.start()))
    elif rule in {"stories", "lines", "paragraphs"}:
        previous = 0
        pattern = {"stories": _STORY, "lines": _LINE, "paragraphs": _PARAGRAPH}[rule]
        known = len(text) if final else len(text) - len(SEPARATOR) + 1
        for match in pattern.finditer(text):
            if match.end() >= known:
                return  # the end of the text, or something that may become end-of-text, follows
            if text.startswith(SEPARATOR, match.end()) or _is_blank(text, previous, match.start()):
                continue
            previous = match.start() + len(SEPARATOR) if rule == "stories" else _cut_in(text, match)
            yield previous


def piece_end(text: bytes, start: int) -> int:
    """Return where to cut a document that has more than `MAX_PIECE` bytes from `start` on.

    The result does not depend on bytes beyond `start + MAX_PIECE`. A million bytes without white space are not
    language: they are cut between any two characters, which is the only cut that may change tokens.
    """
    end = start + MAX_PIECE
    for low in (end - LOOKAHEAD, start + 1):
        best = 0
        for match in _SPACES.finditer(text, low, end):
            if match.end() + len(SEPARATOR) <= end and not text.startswith(SEPARATOR, match.end()):
                best = _last_character(text, match.end())
        if best > start:
            return best
    inside = text.find(SEPARATOR, end - len(SEPARATOR) + 1, end + len(SEPARATOR) - 1)
    if start < inside < end:
        return inside
    while text[end] & 0xC0 == 0x80:
        end -= 1
    return end


def derive_rule(sample: bytes) -> DocumentRule:
    """Decide from the beginning of a text file how it is cut into documents."""
    if SEPARATOR in sample:
        return "stories"
    if _FIRST_TITLE.match(sample) or _TITLE.search(sample):
        return "articles"
    return "paragraphs" if _PARAGRAPH.search(sample.strip()) else "lines"


def lacks_end(text: bytes) -> bool:
    """Return whether a document does not end with end-of-text."""
    return not text.endswith(SEPARATOR) and not text.rstrip().endswith(SEPARATOR)


def is_title(line: str) -> bool:
    """Return whether a line of WikiText looks like a title; it is one if blank lines surround it."""
    return line.startswith(" = ") and not line.startswith(" = =") and line.rstrip().endswith(" =")


def _is_blank(text: bytes, start: int, end: int) -> bool:
    return start == end or text[start:end].isspace()


def _cut_in(text: bytes, match: re.Match[bytes]) -> int:
    """Return where to cut a run of white space; the match is the part of the run from a newline on."""
    single = match.end() - match.start() == 1
    before = text[max(0, match.start() - 3) : match.start()].decode(errors="ignore")[-1:]
    return match.end() if single and not before.isspace() else _last_character(text, match.end())


def _last_character(text: bytes, end: int) -> int:
    end -= 1
    while text[end] & 0xC0 == 0x80:
        end -= 1
    return end


# Sources of documents.
#
# A source is read in blocks of whole documents, or of one piece of a very long document. Each block states the
# `Position` after it, and what follows a position does not depend on what precedes it. So an interrupted preparation
# continues from the position in its journal and sees the same documents as one that was not interrupted.

_CHUNK = 1 << 20


class Position(NamedTuple):
    """A place in a source: number of the file, offset in it (bytes, rows or stories), and number of the document."""

    file: int = 0
    offset: int = 0
    document: int = 0


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Consecutive texts. The first belongs to document number `first`; the last may be a piece of its document."""

    texts: Sequence[bytes]
    first: int
    after: Position
    whole: bool = True
    done: int = 0
    """Number of input bytes that were read for it."""
    where: str = ""
    offset: int | None = None
    """Where the texts begin in the file `where`, if they follow one another there."""
    log_probabilities: Sequence[float] = ()


class Source(Protocol):
    """Something to read documents from. `size` is in bytes, or None if unknown."""

    size: int | None

    def blocks(self, position: Position, block_bytes: int) -> Generator[TextBlock]:
        """Yield everything from `position` on in blocks of about `block_bytes`."""
        ...


class TextDocument(NamedTuple):
    """A document, or a piece of one, as it is read."""

    text: bytes
    after: int
    """The offset behind it."""
    done: int
    """Number of input bytes that it took."""
    ends: bool = True
    """Whether the document ends with this piece."""
    log_probability: float | None = None


def make_blocks(
    documents: Iterable[TextDocument], position: Position, block_bytes: int, where: str = "", contiguous: bool = False
) -> Generator[TextBlock]:
    """Group the documents of one file, which begin at `position`, into blocks. Empty texts are left out."""
    for group in _group(documents, block_bytes):
        texts = [document.text for document in group if document.text]
        if not texts:
            continue
        last = group[-1]
        after = Position(position.file, last.after, position.document + len(texts) - (not last.ends))
        yield TextBlock(
            texts,
            position.document,
            after,
            last.ends,
            sum(document.done for document in group),
            where,
            position.offset if contiguous else None,
            [document.log_probability for document in group if document.log_probability is not None],
        )
        position = after


def _group(documents: Iterable[TextDocument], block_bytes: int) -> Iterator[list[TextDocument]]:
    group: list[TextDocument] = []
    length = 0
    for document in documents:
        group.append(document)
        length += len(document.text)
        if length >= block_bytes or not document.ends:
            yield group
            group, length = [], 0
    if group:
        yield group


class _Files(ABC):
    """Files that are read one after another."""

    contiguous = False

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.size: int | None = sum(path.stat().st_size for path in files)

    def blocks(self, position: Position, block_bytes: int) -> Generator[TextBlock]:
        """Yield the documents from `position` on; no block spans two files."""
        for number in range(position.file, len(self.files)):
            if number != position.file:
                position = Position(number, 0, position.document)
            path = self.files[number]
            documents = self._read(path, position.offset)
            for block in make_blocks(documents, position, block_bytes, str(path), self.contiguous):
                yield block
                position = block.after

    @abstractmethod
    def _read(self, path: Path, offset: int) -> Iterator[TextDocument]:
        """Yield the documents of a file from an offset on."""


class TextFiles(_Files):
    """Text files, cut into documents by a rule."""

    contiguous = True

    def __init__(self, files: Sequence[Path], rule: DocumentRule) -> None:
        super().__init__(files)
        self.rule = rule

    def _read(self, path: Path, offset: int) -> Iterator[TextDocument]:
        with _open(path) as file:
            file.seek(offset)
            for text, ends in _pieces(file, self.rule):
                offset += len(text)
                yield TextDocument(text, offset, len(text), ends)


def _pieces(file: BinaryIO, rule: DocumentRule) -> Iterator[tuple[bytes, bool]]:
    """Yield documents, or pieces of at most `MAX_PIECE` bytes, and whether the document ends there."""
    text, final = b"", False
    while not final:
        chunk = file.read(_CHUNK)
        final = not chunk
        text += chunk
        start = 0
        for cut in find_cuts(rule, text, final):
            while cut - start > MAX_PIECE:
                end = piece_end(text, start)
                yield text[start:end], False
                start = end
            yield text[start:cut], True
            start = cut
        while len(text) - start > MAX_PIECE + (0 if final else LOOKAHEAD):
            end = piece_end(text, start)
            yield text[start:end], False
            start = end
        text = text[start:]
    if text:
        yield text, True


class RowFiles(_Files):
    """Files of rows that have a `text`: JSON lines or Parquet. Rows with an empty text are skipped."""

    def _read(self, path: Path, offset: int) -> Iterator[TextDocument]:
        return _parquet_rows(path, offset) if path.suffix == ".parquet" else _json_rows(path, offset)


def _json_rows(path: Path, offset: int) -> Iterator[TextDocument]:
    with _open(path) as file:
        file.seek(offset)
        for line in file:
            start, offset = offset, offset + len(line)
            if line.isspace():
                continue
            try:
                text = encode_row(json.loads(line)["text"])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise BadData(
                    f"{path}, at byte {start}, is not a JSON row with a string `text`: {line[:60]!r}. "
                    'Write one object per line, such as {"text": "..."}.'
                ) from error
            yield TextDocument(text, offset, len(line))


def _parquet_rows(path: Path, offset: int) -> Iterator[TextDocument]:
    with parquet_file(path) as table:
        names = table.schema_arrow.names
        if "text" not in names:
            raise BadData(
                f"{path} has no column `text`, only {', '.join(names)}. Rename the column that holds the text."
            )
        bytes_per_row = path.stat().st_size / max(1, table.metadata.num_rows)
        number = group = 0  # skip whole row groups without reading them
        while group < table.num_row_groups and number + table.metadata.row_group(group).num_rows <= offset:
            number += table.metadata.row_group(group).num_rows
            group += 1
        groups = list(range(group, table.num_row_groups))
        for batch in table.iter_batches(256, row_groups=groups, columns=["text"]):
            for value in batch.column(0).to_pylist():
                number += 1
                if number <= offset:
                    continue
                try:
                    text = encode_row(value)
                except TypeError as error:
                    raise BadData(
                        f"{path}, row {number}, has no string in the column `text`: {str(value)[:60]!r}. Convert the "
                        "column to strings."
                    ) from error
                yield TextDocument(text, number, int(number * bytes_per_row) - int((number - 1) * bytes_per_row))


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """Open a Parquet file for streaming."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(
            f"{path} is Parquet, which needs pyarrow. Install it with `pip install '.[data]'`, or give .jsonl."
        ) from error
    try:
        with pq.ParquetFile(path, buffer_size=_CHUNK, pre_buffer=False) as table:
            yield table
    except UnicodeDecodeError as error:
        raise BadData(f"{path} holds text that is not UTF-8 ({error}). Write it again from the original.") from error
    except (pa.ArrowException, OSError) as error:
        raise BadData(
            f"{path} is not readable Parquet: {str(error).rstrip('.')}. Download or write it again."
        ) from error


class ScoredText(Protocol):
    """A document from a generator, with its log-probability."""

    @property
    def text(self) -> str:
        """The text."""

    @property
    def log_probability(self) -> float:
        """The natural logarithm of the probability of the text."""


class Generated:
    """An endless corpus: `generate` yields its documents from any number on."""

    size: int | None = None

    def __init__(self, generate: Callable[[int], Iterator[ScoredText]]) -> None:
        self.generate = generate

    def blocks(self, position: Position, block_bytes: int) -> Generator[TextBlock]:
        """Yield documents from number `position.offset` on, without end."""
        return make_blocks(self._read(position.offset), position, block_bytes)

    def _read(self, start: int) -> Iterator[TextDocument]:
        for number, made in enumerate(self.generate(start), start + 1):
            text = made.text.encode()
            yield TextDocument(text, number, len(text), log_probability=made.log_probability)


def encode_row(value: object) -> bytes:
    """Encode the text of a row, None as an empty text; raise TypeError for anything that is not text.

    Half a surrogate pair, which JSON can express but UTF-8 cannot, becomes U+FFFD.
    """
    if value is None:
        return b""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    try:
        return value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def no_access(path: Path | str, error: OSError) -> BadData:
    """Return the error for a file that the system does not let us read."""
    return BadData(f"{path} cannot be read: {error.strerror}. Check the path and its permissions.")


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise no_access(path, error) from error


# Which documents are held out for validation and test.
#
# Of every `period` consecutive documents (a stretch), one goes to each split that is drawn. A hash of the seed and of
# the number of the stretch chooses it. So the share is exact, the split of a document follows from its number alone
# (reading can begin anywhere), and every part of an ordered corpus is represented. A sealed split takes each of the
# remaining training documents with a given probability.

SPLITS: tuple[Split, ...] = ("train", "val", "test")
SPLIT_FILES: tuple[SplitFile, ...] = (*SPLITS, "sealed")

_SHORTEST_PERIOD = 20
_ENOUGH_BYTES = 16_000_000  # about four million tokens: more would make evaluations slower and hardly more precise
_UNKNOWN_SIZE_PERIOD = 100
_SEAL = np.uint64(0x5EA1)  # sealed documents are drawn with their own seed
_FIRST_STRETCH = 3  # a corpus of three documents has one for every split


def period_for(num_bytes: int | None) -> int:
    """Return of how many documents one is held out: 20 for a small corpus (5 %), more for a large one."""
    if num_bytes is None:
        return _UNKNOWN_SIZE_PERIOD
    return max(_SHORTEST_PERIOD, math.ceil(num_bytes / _ENOUGH_BYTES))


@dataclass(frozen=True, slots=True)
class Allocation:
    """Assign the documents of a source to the split `own`, except those drawn for other splits."""

    own: Split
    drawn: tuple[Split, ...] = ()
    period: int = _SHORTEST_PERIOD
    seed: int = 0
    seal: float | None = None
    """Share of the own documents that is sealed. The other splits do not depend on it."""

    def places(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the splits of `count` documents from number `first` on, as indices of `SPLIT_FILES`."""
        places = np.full(count, SPLITS.index(self.own))
        document = np.arange(first, first + count, dtype=np.uint64)
        if self.drawn:
            self._hold_out(places, document)
        if self.seal is not None:
            chance = _mix(_mix(np.full(count, self.seed, dtype=np.uint64) ^ _SEAL) + document)
            sealed = (places == SPLITS.index(self.own)) & (chance < np.uint64(int(self.seal * 2**64)))
            places[sealed] = SPLIT_FILES.index("sealed")
        return places

    def _hold_out(self, places: NDArray[np.int64], document: NDArray[np.uint64]) -> None:
        """Draw one document of each stretch for every split that is drawn."""
        stretch, number = np.divmod(document, np.uint64(self.period))
        # The first stretch draws from its first three documents, so that even the smallest corpus has all splits.
        length = np.where(stretch == 0, min(_FIRST_STRETCH, self.period), self.period).astype(np.uint64)
        chance = _mix(_mix(np.full(len(places), self.seed, dtype=np.uint64)) + stretch)
        one = chance % length
        other = (one + np.uint64(1) + (chance >> np.uint64(32)) % (length - np.uint64(1))) % length
        for split, position in zip(self.drawn, (one, other), strict=False):
            places[number == position] = SPLITS.index(split)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each number with SplitMix64."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
