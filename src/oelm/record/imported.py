"""Runs that the published program left (timing_stats.json and training.log), read as records marked imported.

What the files do not say is the caller's to say (learning rate, steps not logged), or taken to be as published (seed
42, the model, the batch, warm-up and how often it was validated).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from oelm.errors import BadRecord, InvalidSpec, UnknownName, UsageError
from oelm.files import write_atomically
from oelm.record.schema import EnvironmentRecord, MetricRecord, ResultRecord, RunRecord, SecondsRecord
from oelm.record.store import LOG, METRICS, RECORD, TIMING, run_directory, write_record
from oelm.record.timing import TimingRecord
from oelm.spec.base import in_words
from oelm.spec.data import DataSpec
from oelm.spec.model import GPTSpec, named_size
from oelm.spec.named import named_method
from oelm.spec.published import CORPORA, METHODS
from oelm.spec.run import RunSpec, fingerprint
from oelm.spec.train import TrainSpec

UNKNOWN = "unknown"
_VALIDATION = re.compile(r"\[Step (\d+)\] Validation - Loss: ([-+.\w]+)")


@dataclass(frozen=True)
class Settings:
    """What the published files leave out."""

    learning_rate: float
    seed: int = 42
    steps: int | None = None
    """None: the last step that the log or the timing knows of."""


def import_run(folder: Path, settings: Settings, out: Path) -> Path:
    """Write a published run as a record below `out`; return its folder. The published files are left as they are."""
    if (folder / RECORD).exists():
        raise UsageError(f"{folder} holds a {RECORD}: it is a run of this program already. Use it as it is.")
    timing = read_timing(folder)
    points = list(read_log(folder))
    record = record_of(folder.resolve().name, timing, points, settings)
    directory = run_directory(out, record.spec)
    if (directory / RECORD).exists():
        raise UsageError(f"{directory} exists: this run has been imported. Remove that folder to import it again.")
    lines = "".join(point.model_dump_json(exclude_none=True) + "\n" for point in _timed(points, timing))
    write_atomically(directory / METRICS, lines)
    write_atomically(directory / TIMING, (folder / TIMING).read_bytes())
    write_record(directory, record)
    return directory


def read_timing(folder: Path) -> TimingRecord:
    """Read a published timing_stats.json; say in words what is wrong with it."""
    path = folder / TIMING
    try:
        return TimingRecord.model_validate(json.loads(path.read_text()))
    except FileNotFoundError:
        raise UsageError(
            f"{folder} was to be imported, but holds no {TIMING}. Give the --out_dir of a published run, with {TIMING} "
            f"and {LOG} in it."
        ) from None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRecord(
            f"{path} is not what the published program writes: {'.'.join(map(str, first['loc']))}: {first['msg']}."
        ) from error
    except ValueError as error:
        raise BadRecord(f"{path} is not whole JSON ({error}). Copy it again from where the run was made.") from error


def read_log(folder: Path) -> Iterator[MetricRecord]:
    """Yield the validation losses of a published training.log; none where there is no log."""
    path = folder / LOG
    if not path.exists():
        return
    seen: dict[int, float] = {}
    for step, loss in _VALIDATION.findall(path.read_text(errors="replace")):
        try:
            seen[int(step)] = float(loss)  # a resumed run logs some steps again: the last one counts
        except ValueError:
            raise BadRecord(f"{path} has {loss!r} for the validation loss of step {step}.") from None
    for step, loss in sorted(seen.items()):
        yield MetricRecord(kind="val", step=step, loss=loss, seconds=0.0)


def _timed(points: list[MetricRecord], timing: TimingRecord) -> list[MetricRecord]:
    """Give every point the training seconds that the mean step time implies."""
    mean = timing.mean_step_time or 0.0
    return [point.model_copy(update={"seconds": mean * point.step}) for point in points]


def record_of(name: str, timing: TimingRecord, points: list[MetricRecord], settings: Settings) -> RunRecord:
    """Make the record: judged on validation, by the published rule at the best of it."""
    if timing.model_type not in METHODS:
        raise UnknownName("published model_type", timing.model_type, METHODS)
    known = [point.step for point in points] or [timing.num_steps_measured + timing.warmup_steps]
    steps = settings.steps or max(known)
    method = METHODS[timing.model_type]
    try:
        run = RunSpec(
            arm=method,
            label=name,
            method=named_method(method),
            model=named_size("medium-512"),
            data=DataSpec(corpus=CORPORA.get(timing.dataset, timing.dataset)),
            train=TrainSpec(
                steps=max(1, steps), learning_rate=settings.learning_rate, warmup_steps=1000, eval_every=1000,
                eval_tokens=None,
            ),
            seed=settings.seed,
        )  # fmt: skip
    except ValidationError as error:
        raise InvalidSpec(f"{name} cannot be such a run: {in_words(error)}.") from error
    finite = [point for point in points if math.isfinite(point.loss)]
    best = min(finite, key=lambda point: point.loss, default=None)
    loss = timing.best_val_loss if timing.best_val_loss is not None else (best.loss if best else None)
    return RunRecord(
        fingerprint=fingerprint(run),
        status="complete" if loss is not None else "interrupted",
        spec=run,
        environment=EnvironmentRecord(
            oelm=UNKNOWN, python=UNKNOWN, torch=UNKNOWN, platform=UNKNOWN, device=UNKNOWN, cores=0, commit=None,
            dirty=None, command=f"imported from {name}",
        ),
        started=UNKNOWN,
        step=steps,
        seconds=SecondsRecord(
            total=timing.total_wall_time, train=(timing.mean_step_time or 0.0) * steps,
            validation=timing.total_validation_time, checkpoint=0.0,
        ),
        result=None if loss is None else _result(run, timing, loss, best),
        error=None if loss is not None else "its files hold no validation loss",
        imported=True,
    )  # fmt: skip


def _result(run: RunSpec, timing: TimingRecord, loss: float, best: MetricRecord | None) -> ResultRecord:
    assert isinstance(run.model, GPTSpec)  # noqa: S101  (as made above)
    tokens = run.train.batch_size * run.model.context
    return ResultRecord(
        val_loss=loss, test_loss=None, best_val_loss=loss, best_step=best.step if best else run.train.steps,
        train_tokens=tokens * run.train.steps,
        tokens_per_second=tokens / timing.mean_step_time if timing.mean_step_time else 0.0,
        peak_memory_bytes=0,
    )  # fmt: skip
