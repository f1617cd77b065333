"""Unfinished work on a folder of tokens: it can be taken up, and is never mistaken for whole.

Until everything is there, all files lie in `.preparing` inside the folder asked for. `journal.json` states,
as of some moment, how far the input was read and how many tokens that gave; what the files hold beyond it is
cut off when work is taken up. At the end they are moved out one by one, and `meta.json`, without which
nothing is whole, comes last.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout
from pydantic import BaseModel, Field, ValidationError

from oelm.data.allocation import SPLIT_FILES, SPLITS
from oelm.data.encode import Encoded
from oelm.data.meta import META, Request, TokenMeta, read_meta
from oelm.data.readers import Position
from oelm.data.tokenizer import TOKENIZER_FILES
from oelm.errors import BadData, OelmError, RunLocked, UsageError
from oelm.files import write_atomically
from oelm.spec.data import SplitFile

WORKSPACE = ".preparing"
_JOURNAL = "journal.json"
_LOCK = ".lock"
_BYTES_PER_ID = 2


class Count(BaseModel):
    """What a split holds so far."""

    documents: int = 0
    text_tokens: int = 0
    added_tokens: int = 0
    log_probability: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Return the length of the file in tokens."""
        return self.text_tokens + self.added_tokens


def _counts(files: Iterable[SplitFile]) -> dict[SplitFile, Count]:
    return {file: Count() for file in files}


class Journal(BaseModel):
    """How far a preparation is: what is asked, where in which section to read on, and what the files hold."""

    request: Request
    revision: str | None = None
    section: int = 0
    position: Position = Position()
    whole: bool = True
    """Whether the last document that was read is complete."""
    done: int = 0
    """How many bytes of input were read."""
    counts: dict[SplitFile, Count] = Field(default_factory=lambda: _counts(SPLITS))
    """By file; "sealed" is among them where a sealed split is asked for."""

    @property
    def num_tokens(self) -> int:
        """Return how many tokens there are in all."""
        return sum(count.num_tokens for count in self.counts.values())


class Workspace:
    """The unfinished work in a folder; the one process that holds its lock may change it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / WORKSPACE
        self._files: dict[SplitFile, BinaryIO] = {}

    @contextmanager
    def locked(self, wait: bool = False) -> Iterator[None]:
        """Hold the folder, at once or after waiting; say in words what the system refuses to write."""
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.directory / _LOCK)
            try:
                lock.acquire(timeout=-1 if wait else 0)
            except Timeout:
                raise RunLocked(
                    f"another process is preparing {self.directory} at this moment. Wait for it, or choose "
                    "another folder with --out."
                ) from None
            try:
                yield
            finally:
                self.close()
                lock.release()

    def clear(self) -> None:
        """Remove unfinished work."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def begun(self) -> bool:
        """Tell whether there is work to continue."""
        return (self.path / _JOURNAL).exists()

    def journal(self) -> Journal | None:
        """Read how far the work is; None where it has not begun."""
        try:
            return Journal.model_validate_json((self.path / _JOURNAL).read_text())
        except FileNotFoundError:
            return None
        except (ValidationError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{self.path / _JOURNAL} cannot be read: unfinished work of another version of oelm. Delete "
                f"{self.path} to begin anew, or choose another folder with --out."
            ) from error

    def finished(self) -> TokenMeta | None:
        """Read the statement of files that are whole but not all moved out yet."""
        return read_meta(self.path)

    def open(self, journal: Journal) -> None:
        """Open the files as the journal knows them."""
        self.path.mkdir(exist_ok=True)
        for split in journal.counts:
            path = self.path / f"{split}.bin"
            length = journal.counts[split].num_tokens * _BYTES_PER_ID
            path.touch()
            if path.stat().st_size < length:
                raise BadData(
                    f"{path} is shorter than its journal states: something else has changed it. Delete "
                    f"{self.path} and run the command again."
                )
            os.truncate(path, length)
            self._files[split] = path.open("ab")

    def append(self, journal: Journal, encoded: Encoded) -> None:
        """Add a block's tokens to the files, and to the journal's counts."""
        for split, part in encoded.parts.items():
            self._files[split].write(part.ids.data)
            count = journal.counts[split]
            count.documents += part.documents
            count.added_tokens += part.added_tokens
            count.text_tokens += len(part.ids) - part.added_tokens
            count.log_probability += part.log_probability
        journal.position, journal.whole = encoded.after, encoded.whole
        journal.done += encoded.done

    def save(self, journal: Journal) -> None:
        """Make what is written so far certain, then say so in the journal."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        write_atomically(self.path / _JOURNAL, journal.model_dump_json() + "\n")

    def close(self) -> None:
        """Close the files; what is not in the journal does not count."""
        for file in self._files.values():
            with suppress(OSError):  # a full disk was told of when the journal was written
                file.close()
        self._files = {}

    def publish(self) -> None:
        """Move finished files out, the statement last, and remove the workspace."""
        for name in (*(f"{split}.bin" for split in SPLIT_FILES), *TOKENIZER_FILES, META):
            if (self.path / name).exists():
                (self.path / name).replace(self.directory / name)
        shutil.rmtree(self.path)

    def discard(self) -> None:
        """Remove unfinished work, and the folder itself if nothing else is in it."""
        self.clear()
        if [file.name for file in self.directory.iterdir()] == [_LOCK]:
            shutil.rmtree(self.directory)


def refuse_foreign_files(directory: Path) -> None:
    """Raise if preparing here would overwrite files that it did not make."""
    names = (*(f"{split}.bin" for split in SPLIT_FILES), *TOKENIZER_FILES, META)
    if found := [name for name in names if (directory / name).exists()]:
        raise UsageError(
            f"tokens were to be written to {directory}, but it holds {', '.join(found)} of unknown origin, "
            "and nothing is overwritten. Choose another folder with --out, or move these files away."
        )


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Turn what the system says against writing to a folder into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise OelmError(
                f"the disk is full: {directory} takes no more ({error.strerror}). Make room and run the same "
                "command again: it continues where it stopped. Or choose another folder with --out, or "
                "fewer --tokens."
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT}:
            raise UsageError(
                f"{directory} cannot be written to: {error.strerror}"
                f"{f' ({error.filename})' if error.filename else ''}. Choose a folder that is yours with "
                "--out."
            ) from error
        raise
