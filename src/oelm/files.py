"""Write files atomically, check that they are what was written, and distrust what others may have put into them.

No reader ever sees an incomplete file. JSON is read within limits, and text from files has no control characters when
it becomes a name or is printed.

Every JSON document that can change a result carries the SHA-256 of its own text as its last field. This is the one
scheme for records, curves, checkpoints and data:

    {"step": 38, "loss": 2.5, "file_checksum": "sha256:9f2c01ab"}

The hash is taken over the text without that field, so every byte counts, also a digit that does not change a value. A
line of a JSONL file is a document, so damage costs one line. Documents of earlier versions have no such field and are
accepted as they are.

Files that are not JSON are covered by a document that lists their SHA-256: the tensors of a checkpoint by `state.json`,
tokens and the tokenizer by `meta.json`, the log and the samples of a run by `record.json`, and the files of an archive
by its index.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from oelm.errors import Damaged

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""The errors of a disk that is full or cannot be written: freeing space helps with these and with no other error."""


def write_atomically(path: Path, content: str | bytes, check: Callable[[], None] = lambda: None) -> None:
    """Replace a file in one step: after a crash it holds the old content or the new one, never a part.

    `check` is called just before the new file takes effect; if it raises, nothing has changed.
    """
    with _temporary_copy(path, content) as temporary:
        check()
        temporary.replace(path)


def write_once(path: Path, content: str) -> bool:
    """Create a file with its content unless it exists; return whether this call created it.

    If several processes try at once, on one machine or on several, exactly one succeeds, because the file appears by a
    hard link. It is on the disk when this returns.
    """
    with _temporary_copy(path, content) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    sync(path.parent)
    return True


@contextmanager
def _temporary_copy(path: Path, content: str | bytes) -> Iterator[Path]:
    """Write the content to a temporary file next to `path`; delete the file afterwards if it is still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            _write_to_disk(file, content.encode() if isinstance(content, str) else content)
        temporary.chmod(0o644)  # mkstemp's 0600 would hide a shared folder's records from colleagues
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Append one line and wait until it is on the disk. Lines that other processes append stay whole as well."""
    with path.open("ab") as file:
        _write_to_disk(file, line.encode() + b"\n")
    sync(path.parent)


def _write_to_disk(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Make sure that a file, or the new names in a folder, survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Checksums.

CHECKSUM_FIELD = "file_checksum"
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
    return f'{head}{before}"{CHECKSUM_FIELD}":{after}"{_ALGORITHM}{found}"{tail}'


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
            raise Damaged(f"its fields do not match its {CHECKSUM_FIELD}")
    elif (digits := len(value) - len(_ALGORITHM)) < LINE_DIGITS or add_checksum(plain, digits) != text:
        raise Damaged(f"its text does not match its {name}")
    return plain


def has_checksum(text: str) -> bool:
    """Whether a document carries a checksum. Those of earlier versions do not."""
    last = _LAST_STRING.search(text)
    return last is not None and _is_checksum(last)


def _is_checksum(last: re.Match[str]) -> bool:
    """Whether the last field is a checksum, by its name or by its value: damage to one of them must not hide it."""
    return last[1] == CHECKSUM_FIELD or last[2].startswith(_ALGORITHM)


def parse_checked(content: bytes) -> Any:
    """Parse a JSON document after verifying its checksum.

    Raises:
        ValueError: the content is not JSON, or (Damaged) not what was written.

    """
    return parse_json(strip_checksum(content.decode()))


def digest(value: Any) -> str:
    """Return the SHA-256 of plain JSON data, taken over its canonical text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# What is in a file may be damaged or hostile.

MOST_DIGITS = 30
"""Longest integer in a JSON file. Numbers with thousands of digits overflow wherever they meet a float."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON from a file that may be damaged or hostile; raise ValueError for whatever is wrong with it."""
    try:
        return json.loads(text, parse_int=_parse_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse_integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it has an integer of {len(digits)} digits")
    return int(digits)


_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that move the cursor, change the direction of text or cannot be encoded."""
_HARMLESS = frozenset("\n\t\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}\N{SOFT HYPHEN}")


def has_controls(text: str) -> bool:
    """Whether a text has characters that a name must not have: control characters, line breaks, lone surrogates."""
    return not text.isprintable() and any(unicodedata.category(each) in _HARMFUL for each in text)


def escape_controls(text: str) -> str:
    r"""Replace control characters by what Python would write for them: ESC becomes `\x1b`. Lines stay lines."""
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode() if each not in _HARMLESS and has_controls(each) else each
        for each in text
    )
