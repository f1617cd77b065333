"""Read and write what lies in a run's directory, and the study among its runs. Nothing here leaves half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from oelm.errors import BadRecord, UsageError
from oelm.files import write_atomically
from oelm.record.archive import archives_below
from oelm.record.paths import study_without_paths
from oelm.record.schema import SCHEMA, MetricRecord, RunRecord
from oelm.spec.run import NUMERICS, RunSpec, fingerprint
from oelm.study import AnyStudy, Listing, Study

RECORD, METRICS, STUDY = "record.json", "metrics.jsonl", "study.json"
SPEC, SAMPLES, TIMING = "spec.json", "samples.txt", "timing_stats.json"
LOG, ERRORS = "training.log", "stderr.log"
REGISTERED = "registered.json"
"""What a study declared before its first confirming run: see record/registration.py."""
LOOKS = "test_looks.jsonl"
"""When `oelm evaluate` scored a test split with the run's weights: see record/looks.py."""
PREDICTION = "prediction.json"
"""What a study predicted for its held-back sizes before any of their runs started."""
UNSEALED = "unsealed.json"
"""What a study's final weights score on a sealed split: see record/seal.py."""
CLAIM = "claim."
"""How the files begin by which a process holds a run."""
_TAIL = 1 << 15
"""Bytes at the end of a curve in which its newest points are looked for."""


def run_directory(root: Path, run: RunSpec) -> Path:
    """Return where a run lives: its label or arm and seed for people, its fingerprint for certainty."""
    name = run.label or f"{run.arm}-seed{run.seed}"
    return root / f"{file_name(name)}_{fingerprint(run)}"


def file_name(name: str) -> str:
    """Return a label or an arm as it may stand in the name of a folder."""
    return name.replace(":", "_").replace("/", "_")


def write_record(directory: Path, record: RunRecord) -> None:
    """Write a run's record."""
    write_atomically(directory / RECORD, record.model_dump_json(indent=1) + "\n")


def read_record(directory: Path) -> RunRecord:
    """Read a run's record; say in words what is wrong with it."""
    path = directory / RECORD
    try:
        plain = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadRecord(f"{directory} holds no {RECORD}: no run has started there.") from None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadRecord(
            f"{path} is not whole JSON ({error}). Records are written in one step, so something else has "
            "changed it; restore it or run again."
        ) from error
    version = plain.get("schema_version") if isinstance(plain, dict) else None
    if isinstance(version, int) and version > SCHEMA:
        raise BadRecord(f"{path} has schema version {version}; this program knows up to {SCHEMA}. Update oelm.")
    try:
        record = RunRecord.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRecord(
            f"{path} is not a run's record: {'.'.join(map(str, first['loc']))}: {first['msg']} "
            f"({error.error_count()} problems in all)."
        ) from error
    if record.numerics == NUMERICS and record.fingerprint != fingerprint(record.spec):
        raise BadRecord(
            f"{path} says it is run {record.fingerprint}, but its spec is that of {fingerprint(record.spec)}: "
            "one of the two was changed by hand. Restore it, or move the folder away and run again."
        )
    return record


def find_records(root: Path) -> tuple[list[tuple[Path, RunRecord]], list[BadRecord]]:
    """Read every record below a folder; what cannot be read is returned as well, never dropped.

    Folders whose names begin with a dot are being made, or were left by a process that was killed while it made them.
    """
    found: list[tuple[Path, RunRecord]] = []
    bad: list[BadRecord] = []
    for path in sorted(root.glob(f"**/{RECORD}")):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        try:
            found.append((path.parent, read_record(path.parent)))
        except BadRecord as error:
            bad.append(error)
    # Archives are opened before they are read. Without this line an archived study would look like one without runs.
    bad += [BadRecord(f"{path} is an archive. Unpack it with `oelm unpack`.") for path in archives_below(root)]
    return found, bad


def write_study(root: Path, study: AnyStudy) -> None:
    """Leave what a study declares among its runs: for readers, and to be reported without the file that declared it.

    Without paths of this machine: reports are committed, and no run depends on where its data lay. The declaration of
    a registered study is never replaced.
    """
    text = study_without_paths(study).model_dump_json(indent=1) + "\n"
    path = root / STUDY
    if path.exists() and (root / REGISTERED).exists():
        return
    if not path.exists() or path.read_text(errors="replace") != text:
        write_atomically(path, text)


def read_study(root: Path) -> AnyStudy:
    """Read what was declared when a study was last run or reported; say in words what is wrong with it."""
    path = root / STUDY
    try:
        plain = json.loads(path.read_bytes())
        return (Listing if "listed" in plain else Study).model_validate(plain)
    except FileNotFoundError:
        raise UsageError(
            f"{root} was taken for a study's folder, but holds no {STUDY}. Give the Python file that declares the "
            "study; `oelm run` and `oelm report` then leave its declaration among the runs."
        ) from None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    except (ValueError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise BadRecord(
            f"{path} does not hold a study: {reason}. `oelm run` or `oelm report` on the study's file writes it anew."
        ) from error


def study_folders(root: Path) -> list[Path]:
    """Return the folders of studies at or below a folder."""
    return sorted(path.parent for path in root.glob(f"**/{STUDY}"))


def read_metrics(directory: Path) -> list[MetricRecord]:
    """Read a run's curve. A last line that a crash cut short is left out: resuming writes it anew."""
    return list(_metrics(directory))


def newest_metrics(file: BinaryIO) -> dict[str, MetricRecord]:
    """Return the last point of each kind, from the end of an open curve. Lines that are none are passed over."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    found: dict[str, MetricRecord] = {}
    for line in reversed(file.read().split(b"\n")[:-1]):
        with suppress(ValidationError):
            metric = MetricRecord.model_validate_json(line)
            found.setdefault(metric.kind, metric)
        if len(found) == 2:  # training and validation
            break
    return found


def _metrics(directory: Path) -> Iterator[MetricRecord]:
    path = directory / METRICS
    if not path.exists():
        return
    try:
        lines = path.read_text(errors="replace").split("\n")  # torn bytes become a line that is refused below
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield MetricRecord.model_validate_json(line)
        except ValidationError as error:
            raise BadRecord(f"{path}, line {number}, is not a metric: {line[:80]!r}.") from error
