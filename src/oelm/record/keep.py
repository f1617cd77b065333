"""The light files of a study, to be committed beside the code: everything a report needs, no weights, no paths."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from oelm.errors import UsageError
from oelm.record.attention import ATTENTION, LOGIT_VARIANCE
from oelm.record.losses import TEST_LOSSES
from oelm.record.paths import record_without_paths
from oelm.record.schema import RunRecord
from oelm.record.stages import CHOICE
from oelm.record.store import METRICS, SAMPLES, TIMING, write_record, write_study
from oelm.record.window_losses import WINDOW_LOSSES
from oelm.study import AnyStudy

LIGHT = (METRICS, TIMING, ATTENTION, SAMPLES, TEST_LOSSES, WINDOW_LOSSES, LOGIT_VARIANCE)


def keep(study: AnyStudy, root: Path, found: Iterable[tuple[Path, RunRecord]], target: Path) -> int:
    """Copy the light files of some runs below `root` into `target`; return how many runs there are."""
    if target.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"{target} lies in the folder of the runs, where copies would pass for runs. Give one outside {root}."
        )
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
    write_study(target, study)
    return count
