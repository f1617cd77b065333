"""Runs that another study has done already: the same fingerprint is the same run, whoever asked for it first."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from oelm.errors import BadRecord
from oelm.record.store import CLAIM, RECORD, read_record


class Neighbours:
    """The complete runs in the other studies' folders beside one study's root."""

    def __init__(self, root: Path) -> None:
        self._found: dict[str, list[Path]] = {}
        for path in sorted(root.parent.glob(f"*/*_*/{RECORD}")) if root.parent.is_dir() else []:
            if path.parent.parent != root:
                self._found.setdefault(path.parent.name.rpartition("_")[2], []).append(path.parent)

    def adopt(self, fingerprint: str, directory: Path) -> None:
        """Make `directory` hold the run of this fingerprint, if a neighbour has completed it.

        Files are linked, not copied, where the file system can: what is complete is never written to again. A run that
        was not scored on test may be, here: of such a run only the checkpoints, which are never changed in place, are
        linked. One that was scored is preferred.
        """
        complete: list[tuple[bool, Path]] = []
        for neighbour in self._found.get(fingerprint, []):
            with suppress(BadRecord):
                record = read_record(neighbour)
                if record.fingerprint == fingerprint and record.status == "complete":
                    complete.append((record.is_unscored, neighbour))
        if complete:
            unscored, neighbour = min(complete)
            _link(neighbour, directory, _weights_linked if unscored else _linked)


def _link(source: Path, target: Path, copy: Callable[[str, str], None]) -> None:
    whole = target.parent / f".adopting-{uuid.uuid4().hex}"
    shutil.copytree(source, whole, copy_function=copy, ignore=shutil.ignore_patterns(f"{CLAIM}*", ".*"))
    try:
        whole.rename(target)
    except OSError:  # another runner has done it in the meantime, or the run has begun here
        shutil.rmtree(whole)


def _weights_linked(source: str, target: str) -> None:
    (_linked if "checkpoints" in Path(source).parent.parts[-2:] else shutil.copy2)(source, target)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
