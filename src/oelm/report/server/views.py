"""What the pages ask for: answers as plain data, made from the index and from files of known names."""

from __future__ import annotations

import codecs
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oelm.analysis.evidence import bytes_of, meaning, shown
from oelm.errors import BadRecord, UsageError
from oelm.record.attention import ATTENTION, parsed
from oelm.record.schema import RunRecord
from oelm.record.store import ERRORS, LOG, METRICS, RECORD, SAMPLES, TIMING
from oelm.report.server.folder import Folder
from oelm.report.server.index import Index, Run

LOGS = (LOG, ERRORS)
RUN_FILES = (RECORD, METRICS, *LOGS, SAMPLES, ATTENTION, TIMING)
REPORT_FORMATS = (".html", ".md", ".tex", ".csv", ".svg", ".png")
LOG_BYTES = 1 << 16
"""How much of a log is sent at a time."""
FILE_BYTES = 1 << 20
"""How much of any other file is shown."""
MOST_COMPARED = 40
"""Runs on one comparison; more lines than this nobody tells apart."""


def overview(index: Index, epoch: str, since: int) -> dict[str, Any]:
    """Return the studies, and the rows of runs that are newer than a revision."""
    index.look()
    changes = index.changes(epoch, since)
    states: dict[str, dict[str, int]] = {}
    for run in list(index.runs.values()):
        counts = states.setdefault(run.row["study"], {})
        counts[run.row["status"]] = counts.get(run.row["status"], 0) + 1
    studies = [
        {
            "id": key,
            "name": key or index.folder.root.name,
            "question": found.study.question if found.study else None,
            "reason": found.reason,
            "stage": found.stage,
            "states": states.get(key, {}),
            "done": found.done,
            "expected": sum(states.get(key, {}).values()) if found.declared is None else len(found.declared),
            "reports": found.reports,
        }
        for key, found in sorted(index.studies.items())
    ]
    return {
        "epoch": index.epoch, "revision": changes.revision, "now": time.time(), "whole": changes.whole,
        "studies": studies, "runs": changes.rows, "gone": changes.gone, "problems": index.problems,
    }  # fmt: skip


def run_view(index: Index, run: Run) -> dict[str, Any]:
    """Return everything about one run but its curve and its logs."""
    directory = run.seen.directory
    problems: list[str] = []
    return {
        "now": time.time(),
        "row": run.row,
        "folder": str(directory),
        "record": _told(run.record) if run.record else None,
        "spec": {field: shown(value) for field, value in _fields(run.record).items()} if run.record else {},
        "result": numbers(run.record),
        "attention": _attention(index.folder, directory, problems),
        "timing": _plain(index.folder, directory / TIMING, problems),
        "samples": _text(index.folder, directory / SAMPLES, problems),
        "files": [name for name in RUN_FILES if (directory / name).is_file()],
        "same_seed": _same_seed(index, run),
        "reports": found.reports if (found := index.studies.get(run.row["study"])) else (),
        "problems": problems,
    }


def compare_view(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the rows of some runs, their numbers, and the fields in which they differ."""
    if len(runs) > MOST_COMPARED:
        raise UsageError(f"{len(runs)} runs were chosen, and at most {MOST_COMPARED} are compared. Choose fewer.")
    readable = [run.record for run in runs if run.record]
    fields = [_fields(record) for record in readable]
    names = dict.fromkeys(name for found in fields for name in found)
    differing = [name for name in names if len({shown(found.get(name)) for found in fields}) > 1]
    return {
        "now": time.time(),
        "rows": [run.row for run in runs],
        "results": [numbers(run.record) for run in runs],
        "fields": {
            name: [shown(_fields(run.record).get(name)) if run.record else None for run in runs] for name in differing
        },
    }


def numbers(record: RunRecord | None) -> dict[str, float]:
    """Return every number of a run's result by its name, also those that later versions add."""
    plain = record.result.model_dump() if record and record.result else {}
    return {name: value for name, value in plain.items() if isinstance(value, int | float)}


def log_view(folder: Folder, directory: Path, name: str, offset: int | None) -> dict[str, Any]:
    """Return a log from `offset` on, or its end, which begins with a whole line."""
    if name not in LOGS:
        raise UsageError(f"there is no log named {name!r}; there are {' and '.join(LOGS)}.")
    try:
        file = folder.open(directory / name)
    except FileNotFoundError:
        return {"text": "", "start": 0, "end": 0, "size": 0, "anew": True}
    with file:
        size = file.seek(0, 2)
        anew = offset is None or not 0 <= offset <= size
        start = max(0, size - LOG_BYTES) if offset is None or anew else offset
        file.seek(start)
        data = file.read(LOG_BYTES)
    if anew and start:  # begin with a whole line
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    end = start + len(data) - len(decoder.getstate()[0])  # a character that is half written comes with the next part
    return {"text": text, "start": start, "end": end, "size": size, "anew": anew}


def jsonable(value: Any) -> Any:
    """Make data fit for JSON: what is no number is the text that JavaScript's Number() reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    return value


def _fields(record: RunRecord | None) -> dict[str, Any]:
    """Return dotted field -> value of all that tells one run from another."""
    if record is None:
        return {}
    environment = record.environment
    return meaning(record.spec) | {
        **bytes_of(record.spec),
        "numerics": record.numerics,
        "environment.oelm": environment.oelm,
        "environment.torch": environment.torch,
        "environment.device": environment.device,
        "environment.commit": environment.commit,
        "environment.dirty": environment.dirty,
    }


def _told(record: RunRecord) -> dict[str, Any]:
    plain = record.model_dump(exclude={"spec", "result"})
    plain["frozen_hashes"] = len(record.frozen_hashes)
    return plain


def _same_seed(index: Index, run: Run) -> list[str]:
    """Return the runs of the study with this run's seed: what it is paired with."""
    row = run.row
    return [
        key
        for key, other in list(index.runs.items())
        if (other.row["study"], other.row.get("seed")) == (row["study"], row.get("seed", -1))
    ][:MOST_COMPARED]


def _text(folder: Folder, path: Path, problems: list[str]) -> str | None:
    try:
        return folder.read(path, FILE_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None
    except (OSError, BadRecord) as error:
        problems.append(str(error))
        return None


def _plain(folder: Folder, path: Path, problems: list[str]) -> Any:
    text = _text(folder, path, problems)
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        problems.append(f"{path.name} is not whole JSON ({error}).")
        return None


def _attention(folder: Folder, directory: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return what heads looked at last, as [layer][head]."""
    try:
        seen = parsed(_text(folder, directory / ATTENTION, problems) or "")
    except BadRecord as error:
        problems.append(str(error))
        return None
    return {"entropy": seen[-1].entropy, "distance": seen[-1].distance} if seen else None
