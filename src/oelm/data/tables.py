"""Rows with named columns, from CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oelm.data.readers import parquet_file
from oelm.errors import BadData

FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")

Row = Mapping[str, Any]


def read_table(path: Path) -> list[Row]:
    """Read a whole file of rows.

    Tab-separated files are read as GLUE writes them: a quotation mark is a character like any other.

    Raises:
        BadData: the file is of no known format, empty, not UTF-8, or a row does not have the header's columns.

    """
    if path.suffix == ".parquet":
        with parquet_file(path) as table:
            rows: Sequence[Row] = table.read().to_pylist()
    else:
        text = _text(path)
        rows = _json_rows(path, text) if path.suffix == ".jsonl" else _separated_rows(path, text)
    if not rows:
        raise BadData(f"{path} holds no rows. Give a file with a header and at least one row below it.")
    return list(rows)


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}. Give yourself access to it.") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadData(
            f"{path}, line {line}, is not UTF-8 (byte {content[error.start]:#04x}): it is in another encoding, or in "
            "several. Convert it, for example with iconv -f latin1 -t utf-8."
        ) from error


def _json_rows(path: Path, text: str) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadData(f"{path}, line {number}, is not JSON ({error}): {line[:60]!r}.") from error
        if not isinstance(row, dict):
            raise BadData(f"{path}, line {number}, is not a JSON object with columns: {line[:60]!r}.")
        rows.append(row)
    return rows


def _separated_rows(path: Path, text: str) -> list[Row]:
    if path.suffix == ".tsv":
        # Split by hand: a lone carriage return or quotation mark inside a text is part of it.
        lines = [line.removesuffix("\r").split("\t") for line in text.split("\n") if line.strip()]
    else:
        try:
            lines = [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
        except csv.Error as error:
            raise BadData(f"{path} is not a readable CSV file ({error}). Quote texts that hold commas.") from error
    if not lines:
        return []
    header, *body = lines
    for number, line in enumerate(body, 1):
        if len(line) != len(header):
            raise BadData(
                f"{path}, row {number}, has {len(line)} columns, and the header {len(header)} ({', '.join(header)}): "
                f"{line[0][:60]!r} ... Repair the row, or save the table as .jsonl."
            )
    return [dict(zip(header, line, strict=True)) for line in body]
