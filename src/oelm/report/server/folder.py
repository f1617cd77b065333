"""Reading below one folder, and nowhere else.

Requests never reach the disk as paths: they are keys of the index, which was found by walking. This module is the
second lock. What is opened must still lie below the folder when every link on the way has been followed, and must
be a plain file: a pipe would wait for a writer for ever.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from oelm.errors import BadRecord


class Folder:
    """A folder of runs as seen by people who may read it and nothing beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def key(self, path: Path) -> str:
        """Name a path below the folder as text, whatever bytes it is made of; the folder itself is ""."""
        relative = path.relative_to(self.root).as_posix()
        return "" if relative == "." else os.fsencode(relative).decode("utf-8", "backslashreplace")

    def follow(self, path: Path) -> Path:
        """Return where a path leads. Raise BadRecord if that is outside, FileNotFoundError if it is nowhere."""
        try:
            real = path.resolve(strict=True)
        except RuntimeError:
            raise BadRecord(f"{path} is a link that leads back to itself. Remove it.") from None
        if not real.is_relative_to(self.root):
            raise BadRecord(
                f"{path} is a link that leads out of {self.root}, where this page does not go. Start `oelm serve` on "
                "the folder that it leads to."
            )
        return real

    def open(self, path: Path) -> BinaryIO:
        """Open a plain file below the folder for reading."""
        real = self.follow(path)
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise BadRecord(f"{path} is not a plain file, so there is nothing to read in it.")
        return os.fdopen(handle, "rb")

    def read(self, path: Path, limit: int) -> bytes:
        """Read at most `limit` bytes of a file."""
        with self.open(path) as file:
            return file.read(limit)
