"""The light files of a study, to be committed next to the code: everything a report needs, no weights, no paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from oelm.errors import UsageError
from oelm.files import write_atomically
from oelm.record.archive import Index, write_archive
from oelm.record.attention import ATTENTION, LOGIT_VARIANCE
from oelm.record.losses import TEST_LOSSES
from oelm.record.paths import record_without_paths
from oelm.record.registration import read_registration
from oelm.record.schema import RunRecord
from oelm.record.stages import CHOICE
from oelm.record.store import LOOKS, METRICS, RECORD, REGISTERED, SAMPLES, STUDY, TIMING, UNSEALED, write_study
from oelm.record.window_losses import WINDOW_LOSSES
from oelm.study import AnyStudy

LIGHT = (METRICS, TIMING, ATTENTION, SAMPLES, TEST_LOSSES, WINDOW_LOSSES, LOGIT_VARIANCE, LOOKS)


def keep(study: AnyStudy, root: Path, found: Iterable[tuple[Path, RunRecord]], target: Path) -> int:
    """Copy the light files of some runs below `root` into `target`; return how many runs there are."""
    _refuse_target(root, target)
    runs = list(found)
    for name, content in light_files(root, runs).items():
        write_atomically(target / name, content)
    _declare(study, root, target)
    return len(runs)


def keep_archived(
    study: AnyStudy, root: Path, found: Iterable[tuple[Path, RunRecord]], target: Path, *, alone: bool = False
) -> Index:
    """Write the light files of some runs as an archive into `target`; return what it lists."""
    _refuse_target(root, target)
    index = write_archive(light_files(root, found), target, alone=alone)
    _declare(study, root, target)
    return index


def light_files(root: Path, found: Iterable[tuple[Path, RunRecord]]) -> dict[str, bytes]:
    """Return the light files of some runs: their names below the study's folder, and their content."""
    files = {}
    for directory, record in found:
        for name, content in _light_files(directory, record):
            files[f"{directory.name}/{name}"] = content
    if (root / CHOICE).is_file():
        files[CHOICE] = (root / CHOICE).read_bytes()
    return files


def _light_files(directory: Path, record: RunRecord) -> Iterator[tuple[str, bytes]]:
    without = record_without_paths(record)
    # A record without paths stays as it is, to the byte: a later version would write it with more fields, and runs
    # that two studies share would no longer be the same file.
    same = without == record
    yield RECORD, (directory / RECORD).read_bytes() if same else f"{without.model_dump_json(indent=1)}\n".encode()
    for name in LIGHT:
        if (directory / name).is_file():
            yield name, (directory / name).read_bytes()


def _declare(study: AnyStudy, root: Path, target: Path) -> None:
    for name in (REGISTERED, STUDY, UNSEALED) if (root / REGISTERED).is_file() else ():
        if (root / name).is_file():  # as it was declared then, whatever the study's file says now
            write_atomically(target / name, (root / name).read_bytes())
    write_study(target, study)


def _refuse_target(root: Path, target: Path) -> None:
    if target.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"{target} is in the folder of the runs, where copies would pass for runs. Give one outside {root}."
        )
    before = read_registration(target)
    if before is not None and before != read_registration(root):
        raise UsageError(
            f"{target} holds another registration ({before.day}, digest {before.digest[:12]}) than {root}, and a "
            "registration is never replaced. Keep the study in another folder."
        )
