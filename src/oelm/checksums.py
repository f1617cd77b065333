"""A checksum in every JSON document that can change a result: the one scheme for records, curves, checkpoints and data.

A document carries the SHA-256 of its own text as its last field:

    {"step": 38, "loss": 2.5, "file_checksum": "sha256:9f2c01ab"}

The hash is taken over the text without that field, so every byte counts, also a digit that does not change a value. A
line of a JSONL file is a document, so damage costs one line. Documents of earlier versions have no such field and are
accepted as they are.

Files that are not JSON are covered by a document that lists their SHA-256: the tensors of a checkpoint by `state.json`,
tokens and the tokenizer by `meta.json`, the log and the samples of a run by `record.json`, and the files of an archive
by its index.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from oelm.errors import Damaged
from oelm.files import parse_json
from oelm.spec.value import digest

FIELD = "file_checksum"
LINE_DIGITS = 8
"""Hexadecimal digits of the checksum of a line: it need not tell many lines apart, and curves are archived."""
_ALGORITHM = "sha256:"
_LAST_STRING = re.compile(r',\s*"([^"]*)":\s*"([^"]*)"(?=\s*}\s*\Z)')
_OF_FIELDS = re.compile(r"[0-9a-f]{64}")


def add_checksum(text: str, digits: int = 64) -> str:
    """Return the text of a JSON object with its checksum as the last field. Line breaks and indents are kept."""
    head = text.rstrip().removesuffix("}").rstrip()
    tail = text[len(head) :]
    before, after = (",\n ", " ") if tail.startswith("\n") else (",", "")
    found = hashlib.sha256(text.encode()).hexdigest()[:digits]
    return f'{head}{before}"{FIELD}":{after}"{_ALGORITHM}{found}"{tail}'


def strip_checksum(text: str) -> str:
    """Return a document without its checksum, after verifying it. A document that has none is returned as it is.

    Raises:
        Damaged: the text is not what was written.

    """
    last = _LAST_STRING.search(text)
    if last is None or not _is_checksum(last):
        return text
    name, value = last.groups()
    plain = text[: last.start()] + text[last.end() :]
    if _OF_FIELDS.fullmatch(value):  # the first version, for prepared data only, hashed the fields instead of the text
        if digest(parse_json(plain)) != value:
            raise Damaged(f"its fields do not match its {FIELD}")
    elif (digits := len(value) - len(_ALGORITHM)) < LINE_DIGITS or add_checksum(plain, digits) != text:
        raise Damaged(f"its text does not match its {name}")
    return plain


def has_checksum(text: str) -> bool:
    """Whether a document carries a checksum. Those of earlier versions do not."""
    last = _LAST_STRING.search(text)
    return last is not None and _is_checksum(last)


def _is_checksum(last: re.Match[str]) -> bool:
    """Whether the last field is a checksum, by its name or by its value: damage to one of them must not hide it."""
    return last[1] == FIELD or last[2].startswith(_ALGORITHM)


def parse_checked(content: bytes) -> Any:
    """Parse a JSON document after verifying its checksum.

    Raises:
        ValueError: the content is not JSON, or (Damaged) not what was written.

    """
    return parse_json(strip_checksum(content.decode()))
