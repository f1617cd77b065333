"""The light files of a study, to be committed beside the code: everything a report needs, no weights, no paths.

A folder of runs holds `study.json`, the study as it was declared, so that it can be reported without the file that
declared it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePath

from pydantic import ValidationError

from oelm.errors import BadRecord, UsageError
from oelm.files import write_atomically
from oelm.record.attention import ATTENTION, ATTENTION_AT_THE_END
from oelm.record.losses import TEST_LOSSES
from oelm.record.schema import RunRecord
from oelm.record.stages import CHOICE
from oelm.record.store import METRICS, write_record
from oelm.study import AnyStudy, Listing, Study

STUDY = "study.json"
LIGHT = (METRICS, "timing_stats.json", ATTENTION, ATTENTION_AT_THE_END, "samples.txt", TEST_LOSSES)


def write_study(root: Path, study: AnyStudy) -> None:
    """Leave the study's declaration among its runs."""
    text = study.model_dump_json(indent=1) + "\n"
    path = root / STUDY
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text)


def read_study(root: Path) -> AnyStudy:
    """Read the declaration from a folder of runs."""
    path = root / STUDY
    try:
        plain = json.loads(path.read_text())
        return (Listing if "listed" in plain else Study).model_validate(plain)
    except FileNotFoundError:
        raise UsageError(
            f"{root} was taken for a study's folder, but holds no {STUDY}. Give the Python file that declares the "
            "study; `oelm run` and `oelm report` then leave its declaration among the runs."
        ) from None
    except (ValidationError, ValueError, TypeError) as error:
        raise BadRecord(f"{path} does not hold a study: {error}") from error


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


def study_folders(root: Path) -> list[Path]:
    """Return the folders of studies at or below a folder."""
    return sorted(path.parent for path in root.glob(f"**/{STUDY}"))
