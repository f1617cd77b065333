"""Predict the sizes that a study holds back, once, before any run of them starts: `prediction.json`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from oelm.analysis.compare import Comparison, compare_folder
from oelm.analysis.scaling import Form, Quantity, Series, envelope, place_of, predictions, series_of
from oelm.errors import BadRecord
from oelm.record.environment import commit_of, source_tree
from oelm.record.schema import Record
from oelm.study import Study

PREDICTION = "prediction.json"


class FormRecord(Record):
    """What one form of the law says."""

    form: Form
    value: float
    low: float
    high: float


class PredictedRecord(Record):
    """One quantity of one arm at one held-back size: the envelope of its forms, a 95 % prediction interval each."""

    size: str
    arm: str
    quantity: Quantity
    """`loss` in nats; `freezing` (d) and `content` (C) are differences of log perplexity; `lost` is d/C."""
    seeds: int
    """The interval is of the mean of so many seeds."""
    value: float
    low: float
    high: float
    forms: tuple[FormRecord, ...]


class PredictionRecord(Record):
    """What was expected of the held-back sizes, when, and from which records."""

    study: str
    written: str
    commit: str | None
    held_back: tuple[str, ...]
    rests_on: tuple[str, ...]
    """Fingerprints of the confirming runs that the fits use."""
    predicted: tuple[PredictedRecord, ...]


def predict(comparison: Comparison) -> tuple[PredictedRecord, ...]:
    """Predict every quantity at every held-back size, from the other sizes alone."""
    study = comparison.study
    known = [series.without(study.held_back) for series in series_of(comparison)]
    found = (_predicted(study, series, size) for series in known for size in study.held_back)
    return tuple(item for item in found if item)


def _predicted(study: Study, known: Series, size: str) -> PredictedRecord | None:
    cell = study.sizes[size]
    place = place_of(study.run_at(cell))
    seeds = len(study.seeds_in(cell))
    if len(known.points) < 2 or place is None:
        return None
    forms = predictions(known, *place, seeds)
    whole = envelope(forms)
    if whole is None:
        return None
    told = tuple(FormRecord(form=one.form, value=one.value, low=one.low, high=one.high) for one in forms)
    return PredictedRecord(
        size=size, arm=known.arm, quantity=known.quantity, seeds=seeds,
        value=whole.value, low=whole.low, high=whole.high, forms=told,
    )  # fmt: skip


def write_prediction(study: Study, root: Path) -> PredictionRecord:
    """Predict the held-back sizes of a study from its records and write it down; a prediction that exists stays.

    Two processes may try at the same time: linking a finished file into place succeeds for one of them only.
    """
    comparison = compare_folder(study, root)
    held = set(study.held_back)
    tree = source_tree()
    record = PredictionRecord(
        study=study.name,
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit_of(tree) if tree else None,
        held_back=study.held_back,
        rests_on=tuple(
            item.record.fingerprint
            for row in comparison.rows
            for item in row.evidence
            if study.size_of(item.spec) not in held
        ),
        predicted=predict(comparison),
    )
    handle, temporary = tempfile.mkstemp(dir=root, prefix=f".{PREDICTION}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(record.model_dump_json(indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        os.link(temporary, root / PREDICTION)
    except FileExistsError:
        pass
    finally:
        Path(temporary).unlink(missing_ok=True)
    return read_prediction(root) or record


def read_prediction(root: Path) -> PredictionRecord | None:
    """Read the prediction in a study's folder; None where there is none."""
    path = root / PREDICTION
    if not path.exists():
        return None
    try:
        return PredictionRecord.model_validate_json(path.read_text())
    except ValueError as error:
        raise BadRecord(f"{path} is not a readable prediction: {error}. Restore the file from a copy.") from error


def outcome(found: Sequence[Series], predicted: PredictedRecord) -> tuple[float, int] | None:
    """Return the mean that came out for a prediction, and its number of seeds; None before its runs."""
    for series in found:
        if (series.quantity, series.arm) == (predicted.quantity, predicted.arm):
            for point in series.points:
                if point.size == predicted.size:
                    return point.mean, len(point.values)
    return None
