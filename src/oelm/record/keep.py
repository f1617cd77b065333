"""Copy the small files of a study, to be committed: all that a report needs, without weights and absolute paths."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from oelm.errors import UsageError
from oelm.files import add_checksum, write_atomically
from oelm.record.archive import ArchiveIndex, write_archive
from oelm.record.folder import (
    ATTENTION,
    LOGIT_VARIANCE,
    LOOKS,
    METRICS,
    NOTES,
    PREDICTION,
    RECORD,
    REGISTERED,
    SAMPLES,
    STUDY,
    TEST_LOSSES,
    TIMING,
    UNSEALED,
    WINDOW_LOSSES,
    record_without_paths,
    write_study,
)
from oelm.record.record import RunRecord, refuse_link
from oelm.record.registration import read_registration
from oelm.record.stages import CHOICE
from oelm.spec.study import AnyStudy

LIGHT = (METRICS, TIMING, ATTENTION, SAMPLES, TEST_LOSSES, WINDOW_LOSSES, LOGIT_VARIANCE, LOOKS, NOTES)


def keep(study: AnyStudy, root: Path, found: Iterable[tuple[Path, RunRecord]], target: Path) -> int:
    """Copy the small files of some runs below `root` into `target`; return the number of runs."""
    _refuse_target(root, target)
    runs = list(found)
    for name, content in light_files(root, runs).items():
        write_atomically(target / name, content)
    _declare(study, root, target)
    return len(runs)


def keep_archived(
    study: AnyStudy, root: Path, found: Iterable[tuple[Path, RunRecord]], target: Path, *, alone: bool = False
) -> ArchiveIndex:
    """Write the small files of some runs as an archive into `target`; return its index."""
    _refuse_target(root, target)
    index = write_archive(light_files(root, found), target, alone=alone)
    _declare(study, root, target)
    return index


def light_files(root: Path, found: Iterable[tuple[Path, RunRecord]]) -> dict[str, bytes]:
    """Return the small files of some runs: their names below the study's folder, and their content."""
    files = {}
    for directory, record in found:
        files[f"{directory.name}/{RECORD}"] = _record_bytes(directory, record)
        for name in LIGHT:
            if (directory / name).is_file():
                refuse_link(directory / name)
                files[f"{directory.name}/{name}"] = (directory / name).read_bytes()
    if (root / CHOICE).is_file():
        refuse_link(root / CHOICE)
        files[CHOICE] = (root / CHOICE).read_bytes()
    return files


def _record_bytes(directory: Path, record: RunRecord) -> bytes:
    """Return a record without paths. One that has none keeps its bytes.

    A later version would write it with more fields, and a run that two studies share would be two different files.
    """
    without = record_without_paths(record)
    return (directory / RECORD).read_bytes() if without == record else _format(without)


def _format(record: RunRecord) -> bytes:
    return add_checksum(f"{record.model_dump_json(indent=1)}\n").encode()


def _declare(study: AnyStudy, root: Path, target: Path) -> None:
    for name in (REGISTERED, STUDY, UNSEALED, PREDICTION):
        refuse_link(root / name)
    for name in (REGISTERED, STUDY, UNSEALED) if (root / REGISTERED).is_file() else ():
        if (root / name).is_file():  # the declaration at registration, whatever the study's file says now
            write_atomically(target / name, (root / name).read_bytes())
    if (root / PREDICTION).is_file():
        write_atomically(target / PREDICTION, (root / PREDICTION).read_bytes())
    write_study(target, study)


def _refuse_target(root: Path, target: Path) -> None:
    if target.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"{target} is inside the folder of the runs, where copies would count as runs. Give one outside {root}."
        )
    before = read_registration(target)
    if before is not None and before != read_registration(root):
        raise UsageError(
            f"{target} holds another registration ({before.day}, digest {before.digest[:12]}) than {root}, and a "
            "registration is never replaced. Use another folder."
        )
