"""The light files of a study, to be committed next to the code: everything a report needs, no weights, no paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from oelm.errors import UsageError
from oelm.files import write_atomically
from oelm.record.archive import Index, write_archive
from oelm.record.attention import ATTENTION
from oelm.record.losses import TEST_LOSSES
from oelm.record.paths import record_without_paths
from oelm.record.schema import RunRecord
from oelm.record.stages import CHOICE
from oelm.record.store import METRICS, RECORD, SAMPLES, TIMING, write_study
from oelm.study import AnyStudy

LIGHT = (METRICS, TIMING, ATTENTION, SAMPLES, TEST_LOSSES)
REGISTERED = "registered.json"
"""What a study declared before its first confirming run, where it has registered that."""


def keep(study: AnyStudy, root: Path, found: Iterable[tuple[Path, RunRecord]], target: Path) -> int:
    """Copy the light files of some runs below `root` into `target`; return how many runs there are."""
    _outside(root, target)
    runs = list(found)
    for name, content in light_files(root, runs).items():
        write_atomically(target / name, content)
    _declare(study, root, target)
    return len(runs)


def keep_archived(
    study: AnyStudy, root: Path, found: Iterable[tuple[Path, RunRecord]], target: Path, *, alone: bool = False
) -> Index:
    """Write the light files of some runs as an archive into `target`; return what it lists."""
    _outside(root, target)
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
    write_study(target, study)
    if (root / REGISTERED).is_file():
        write_atomically(target / REGISTERED, (root / REGISTERED).read_bytes())


def _outside(root: Path, target: Path) -> None:
    if target.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"{target} is in the folder of the runs, where copies would pass for runs. Give one outside {root}."
        )
