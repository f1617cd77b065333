"""The light files of a study, to be committed beside the code: everything a report needs, no weights, no paths."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePath

from oelm.record.losses import TEST_LOSSES
from oelm.record.schema import RunRecord
from oelm.record.stages import CHOICE
from oelm.record.store import METRICS, write_record, write_study
from oelm.study import AnyStudy

LIGHT = (METRICS, "timing_stats.json", "attention.json", "samples.txt", TEST_LOSSES)


def keep(study: AnyStudy, root: Path, found: Iterable[tuple[Path, RunRecord]], target: Path) -> int:
    """Copy the light files of some runs below `root` into `target`; return how many runs there are.

    Nothing of the machine's own paths is kept: they would be of no use elsewhere.
    """
    count = 0
    for directory, record in found:
        to = target / directory.name
        write_record(to, without_paths(record))
        for name in LIGHT:
            if (directory / name).is_file():
                shutil.copyfile(directory / name, to / name)
        count += 1
    if (root / CHOICE).is_file():
        shutil.copyfile(root / CHOICE, target / CHOICE)
    write_study(target, study)
    return count


def without_paths(record: RunRecord) -> RunRecord:
    """Return the record without absolute paths: in the spec, in the command, in a traceback."""
    gone = {name: None for name in ("directory", "source") if _is_absolute(getattr(record.spec.data, name, None))}
    spec = record.spec.model_copy(update={"data": record.spec.data.model_copy(update=gone)})
    command = " ".join(map(_short, record.environment.command.split(" ")))
    error = None if record.error is None else re.sub(r'"/[^"\n]*/([^"/\n]+)"', r'"\1"', record.error)
    return record.model_copy(
        update={
            "spec": spec,
            "environment": record.environment.model_copy(update={"command": command}),
            "error": error,
        }
    )


def _is_absolute(path: Path | None) -> bool:
    return path is not None and path.is_absolute()


def _short(word: str) -> str:
    return PurePath(word).name if word.startswith("/") else word
