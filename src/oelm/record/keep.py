"""The light files of a study, to be committed beside the code: everything a report needs, no weights, no paths."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from oelm.errors import UsageError
from oelm.files import write_atomically
from oelm.record.attention import ATTENTION
from oelm.record.losses import TEST_LOSSES
from oelm.record.paths import record_without_paths
from oelm.record.registration import read_registration
from oelm.record.schema import RunRecord
from oelm.record.stages import CHOICE
from oelm.record.store import LOOKS, METRICS, REGISTERED, SAMPLES, STUDY, TIMING, UNSEALED, write_record, write_study
from oelm.study import AnyStudy

LIGHT = (METRICS, TIMING, ATTENTION, SAMPLES, TEST_LOSSES, LOOKS)


def keep(study: AnyStudy, root: Path, found: Iterable[tuple[Path, RunRecord]], target: Path) -> int:
    """Copy the light files of some runs below `root` into `target`; return how many runs there are."""
    if target.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"{target} lies in the folder of the runs, where copies would pass for runs. Give one outside {root}."
        )
    _refuse_other_registration(root, target)
    count = 0
    for directory, record in found:
        to = target / directory.name
        write_record(to, record_without_paths(record))
        for name in LIGHT:
            if (directory / name).is_file():
                shutil.copyfile(directory / name, to / name)
        count += 1
    if (root / CHOICE).is_file():
        shutil.copyfile(root / CHOICE, target / CHOICE)
    for name in (REGISTERED, STUDY, UNSEALED) if (root / REGISTERED).is_file() else ():
        if (root / name).is_file():  # as it was declared then, whatever the study's file says now
            write_atomically(target / name, (root / name).read_bytes())
    write_study(target, study)
    return count


def _refuse_other_registration(root: Path, target: Path) -> None:
    before = read_registration(target)
    if before is not None and before != read_registration(root):
        raise UsageError(
            f"{target} holds another registration ({before.day}, digest {before.digest[:12]}) than {root}, and a "
            "registration is never replaced. Keep the study in another folder."
        )
