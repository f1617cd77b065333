"""Read documents in blocks, from any place on.

A source is read in blocks of whole documents (or of one piece of a very long one). Each block says at which
`Position` the next begins, and what follows a position depends on nothing before it: a preparation that was
interrupted takes up reading where its journal says, and sees the same blocks as one that was not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from oelm.data.documents import LOOKAHEAD, MAX_PIECE, Rule, cuts, piece_end
from oelm.errors import BadData, UsageError

_CHUNK = 1 << 20


class Position(NamedTuple):
    """A place in a source: file, how far into it (bytes, rows, stories), and number of the document."""

    file: int = 0
    offset: int = 0
    document: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive texts, the first of document number `first`; the last may be a piece of its document."""

    texts: Sequence[bytes]
    first: int
    after: Position
    whole: bool = True
    done: int = 0
    """How many bytes of input were read for it."""
    where: str = ""
    offset: int | None = None
    """Where in the file `where` the texts begin, if they lie there side by side."""
    log_probabilities: Sequence[float] = ()


class Source(Protocol):
    """Something to read documents from. `size` is in bytes, None if unknown."""

    size: int | None

    def blocks(self, position: Position, block_bytes: int) -> Generator[Block]:
        """Yield everything from `position` on in blocks of about `block_bytes`."""
        ...


class TextFiles:
    """Text files, one after another, cut into documents by a rule."""

    def __init__(self, files: Sequence[Path], rule: Rule) -> None:
        self.files, self.rule = files, rule
        self.size: int | None = sum(path.stat().st_size for path in files)

    def blocks(self, position: Position, block_bytes: int) -> Generator[Block]:
        """Yield the documents from `position` on; no block spans two files."""
        for number in range(position.file, len(self.files)):
            if number != position.file:
                position = Position(number, 0, position.document)
            with _opened(self.files[number]) as file:
                file.seek(position.offset)
                for texts, whole in _gathered(_pieces(file, self.rule), block_bytes):
                    count, length = len(texts), sum(map(len, texts))
                    after = Position(number, position.offset + length, position.document + count - (not whole))
                    where = str(self.files[number])
                    yield Block(texts, position.document, after, whole, length, where, position.offset)
                    position = after


def _pieces(file: BinaryIO, rule: Rule) -> Iterator[tuple[bytes, bool]]:
    """Yield documents, or pieces of at most `MAX_PIECE` bytes, each with whether its document ends there."""
    text, final = b"", False
    while not final:
        chunk = file.read(_CHUNK)
        final = not chunk
        text += chunk
        start = 0
        for cut in cuts(rule, text, final):
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


def _gathered(pieces: Iterable[tuple[bytes, bool]], block_bytes: int) -> Iterator[tuple[list[bytes], bool]]:
    texts: list[bytes] = []
    length = 0
    for text, ends in pieces:
        texts.append(text)
        length += len(text)
        if length >= block_bytes or not ends:
            yield texts, ends
            texts, length = [], 0
    if texts:
        yield texts, True


class RowFiles:
    """Files of rows that have a `text`: JSON lines or Parquet. Rows without text are no documents."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.size: int | None = sum(path.stat().st_size for path in files)

    def blocks(self, position: Position, block_bytes: int) -> Generator[Block]:
        """Yield the rows from `position` on; no block spans two files."""
        for number in range(position.file, len(self.files)):
            path = self.files[number]
            if number != position.file:
                position = Position(number, 0, position.document)
            rows = _parquet_rows if path.suffix == ".parquet" else _json_rows
            for texts, offset, done in _gathered_rows(rows(path, position.offset), block_bytes):
                after = Position(number, offset, position.document + len(texts))
                yield Block(texts, position.document, after, done=done, where=str(path))
                position = after


class Row(NamedTuple):
    """A row's text, the offset after it, and the bytes of input that it took."""

    text: str
    after: int
    done: int


def _gathered_rows(rows: Iterable[Row], block_bytes: int) -> Iterator[tuple[list[bytes], int, int]]:
    texts: list[bytes] = []
    length = done = 0
    for row in rows:
        done += row.done
        if not row.text:
            continue
        text = utf8(row.text)
        texts.append(text)
        length += len(text)
        if length >= block_bytes:
            yield texts, row.after, done
            texts, length, done = [], 0, 0
    if texts:
        yield texts, row.after, done


def _json_rows(path: Path, offset: int) -> Iterator[Row]:
    with _opened(path) as file:
        file.seek(offset)
        for line in file:
            start, offset = offset, offset + len(line)
            if line.isspace():
                continue
            try:
                text = json.loads(line)["text"] or ""
                if not isinstance(text, str):
                    raise TypeError  # noqa: TRY301  (one message for all that a row may lack)
            except (ValueError, KeyError, TypeError) as error:
                raise BadData(
                    f"{path}, at byte {start}, is not a JSON row with a string `text`: {line[:60]!r}. "
                    'One object in a line, as {"text": "..."}, would do.'
                ) from error
            yield Row(text, offset, len(line))


def _parquet_rows(path: Path, offset: int) -> Iterator[Row]:
    with parquet_file(path) as table:
        names = table.schema_arrow.names
        if "text" not in names:
            raise BadData(
                f"{path} has no column `text`, only {', '.join(names)}. Rename the column that holds the text."
            )
        bytes_per_row = path.stat().st_size / max(1, table.metadata.num_rows)
        number = group = 0  # skip whole groups of rows without reading them
        while group < table.num_row_groups and number + table.metadata.row_group(group).num_rows <= offset:
            number += table.metadata.row_group(group).num_rows
            group += 1
        groups = list(range(group, table.num_row_groups))
        for batch in table.iter_batches(256, row_groups=groups, columns=["text"]):
            for text in batch.column(0).to_pylist():
                number += 1
                if number > offset:
                    done = int(number * bytes_per_row) - int((number - 1) * bytes_per_row)
                    yield Row(text or "", number, done)


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
    except (pa.ArrowException, OSError) as error:
        raise BadData(f"{path} is not readable Parquet: {error}. Fetch or write it again.") from error


class Told(Protocol):
    """A document that a program has written, and the logarithm of its probability."""

    @property
    def text(self) -> str:
        """What is read."""

    @property
    def log_probability(self) -> float:
        """In nats."""


class Generated:
    """A corpus without end: `generate` yields its documents from any number on."""

    size: int | None = None

    def __init__(self, generate: Callable[[int], Iterator[Told]]) -> None:
        self.generate = generate

    def blocks(self, position: Position, block_bytes: int) -> Generator[Block]:
        """Yield documents from number `position.offset` on, for as long as they are taken."""
        texts: list[bytes] = []
        chances: list[float] = []
        length = 0
        for number, told in enumerate(self.generate(position.offset), position.offset):
            texts.append(told.text.encode())
            chances.append(told.log_probability)
            length += len(texts[-1])
            if length >= block_bytes:
                after = Position(0, number + 1, number + 1)
                first = number + 1 - len(texts)
                yield Block(texts, first, after, done=length, log_probabilities=chances)
                texts, chances, length = [], [], 0


def utf8(text: str) -> bytes:
    """Encode text; half a surrogate pair, which JSON can spell but UTF-8 cannot, becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}. Give yourself access to it.") from error
