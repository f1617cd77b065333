"""Write files atomically, so that no reader ever sees an incomplete one, and identify them by their content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""The errors of a disk that is full or cannot be written: freeing space helps with these and with no other error."""


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
    _sync_folder(path.parent)
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
    _sync_folder(path.parent)


def _write_to_disk(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make sure that new names in a folder survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
