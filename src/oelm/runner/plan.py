"""What a study takes before anything of it runs: parameters, FLOPs, memory and time on a named device.

FLOPs are counted from shapes. Seconds are FLOPs divided by what the device can do and by one utilisation, fixed here
once and for all and never fitted to results: a plan is to be wrong by a factor that one knows, not right by accident.
With `calibrate`, the seconds of our GPT on this CPU come from some real steps instead, evaluation included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from oelm import surgery
from oelm.data import probes
from oelm.data.tasks import CORPORA
from oelm.models.build import build
from oelm.models.configs import named_shape
from oelm.models.cost import Cost, training_cost
from oelm.record.stages import StageName
from oelm.runner.artefacts import matmul_peak
from oelm.runner.calibrate import Build, Timing, evaluated_tokens
from oelm.runner.queue import Board, Entry
from oelm.spec.base import digest
from oelm.spec.data import DataSpec, ExamplesSpec
from oelm.spec.epochs import steps_of
from oelm.spec.model import GPT2_VOCAB_SIZE, GPTSpec, ModelSpec
from oelm.spec.run import RunSpec, branches_off, fingerprint
from oelm.spec.train import TrainSpec
from oelm.study import Study
from oelm.train.precision import resolve_precision

UTILISATION = 0.4
"""The share of a device's matrix-product peak that a training step is taken to reach, on every device."""
TERA, GIB = 10**12, 2**30
Calibration = Callable[[RunSpec, Build], Timing]


@dataclass(frozen=True)
class Device:
    """A device by its data sheet: dense matrix products per second by precision, memory in bytes."""

    flops: dict[str, float]
    memory_bytes: int


def _sheet(fp32: float, half: float, gibibytes: int) -> Device:
    # TensorFloat-32 runs at half the speed of the half types on all of these.
    flops = {"fp32": fp32, "tf32": half / 2, "bf16": half, "fp16": half}
    return Device({name: tera * TERA for name, tera in flops.items()}, gibibytes * GIB)


DEVICES = {
    # fp32 without TF32; half precision with float32 sums, no sparsity
    "a5000": _sheet(27.8, 111.1, 24),
    "a100": _sheet(19.5, 311.9, 80),
    "h100": _sheet(66.9, 989.4, 80),
    "rtx4090": _sheet(82.6, 165.2, 24),
}

TRAINING_ROWS = {"sst2": 67_349, "mnli": 392_702, "xnli": 392_702, "ag_news": 120_000, "imdb": 25_000}
"""Rows of the public training splits, for plans of runs whose data are not at hand."""
ROW_TOKENS = {"sst2": 14, "xnli": 38, "mnli": 38}
"""Tokens of a training row on the average, as counted here (MNLI as XNLI, whose pairs are of its kind)."""
ANSWER_TOKENS = 3
"""Of the name of a label, written: a word or two, and its end."""
FEWEST_LABELS = 2
"""Of data whose labels nobody has counted: a head is small, but a model without one is another model."""


@dataclass(frozen=True)
class Planned:
    """One run of the plan. `seconds` is None where the number of steps hangs on data that are not at hand."""

    run: str
    arm: str
    seed: int
    stage: str
    fingerprint: str
    """Of the run as declared; binding it to its data gives it another."""
    state: str
    trained: int
    frozen: int
    steps: int | None
    step_flops: int
    step_seconds: float
    memory_bytes: int
    """An estimate of what a step holds at once on each device."""
    fits: bool | None
    """Whether the named device has that much; None for this machine, whose memory others use as well."""
    seconds: float | None
    settings: dict[str, Any]
    """What the run's spec says that is not a default."""
    core_hours: float | None = None
    """Time on a CPU, by the run's threads and processes."""


@dataclass(frozen=True)
class Plan:
    """The runs that are known now, and how many more the second stage will have."""

    study: str
    question: str
    device: str
    utilisation: float
    peak_flops: dict[str, float]
    runs: tuple[Planned, ...]
    confirm_runs: int
    """Runs of the second stage that will be known when tuning has ended."""
    confirm_seconds: float | None = None
    """Theirs: which setting tuning chooses changes no time."""
    core_hours: float | None = None
    """Of everything that is not done, both stages, on a CPU; None where some run's time is not known."""
    calibrated: bool = False
    """Whether the times come from measured steps."""

    @property
    def seconds(self) -> float | None:
        """Device-seconds of what is not done; None where some run's are not known."""
        left = [run.seconds for run in self.runs if run.state not in ("complete", "diverged")]
        return None if None in left else sum(s for s in left if s is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"seconds": self.seconds}


class Planner:
    """Counts and estimates runs on one device; what several runs share is counted once."""

    def __init__(self, device: str, calibration: Calibration | None, progress: Callable[[str], None]) -> None:
        self.device, self.progress = device, progress
        self.calibration = calibration if device not in DEVICES else None
        self.peaks: dict[str, float] = dict(DEVICES[device].flops) if device in DEVICES else {}
        self._costs: dict[str, tuple[surgery.Audit, Cost]] = {}
        self._timings: dict[str, Timing] = {}

    def estimate(self, entry: Entry, stage: StageName) -> Planned:
        """Return what one run takes."""
        shape, method = _shape(entry.run), entry.run.method
        parts = [part.model_dump(mode="json") for part in (shape.spec, method)]
        key = digest([*parts, shape.vocab_size, _length(entry.run), _written(entry.run), entry.run.train.batch_size])
        if key not in self._costs:
            self.progress(f"counting {entry.name}")
            self._costs[key] = counted(entry.run)
        peak = _peak_name(entry.run.train, on_a_sheet=self.device in DEVICES)
        if peak not in self.peaks:
            self.progress("probing this machine")
            self.peaks[peak] = probed(entry.run)
        room = DEVICES[self.device].memory_bytes if self.device in DEVICES else None
        planned = _planned(entry, stage, *self._costs[key], self.peaks[peak], room)
        is_text = isinstance(entry.run.data, DataSpec) and isinstance(entry.run.model, GPTSpec)
        if self.calibration is None or not is_text or entry.run.train.device != "cpu":
            return planned
        if (kind := f"{key} {peak}") not in self._timings:
            self.progress(f"timing steps of {entry.name}")
            self._timings[kind] = self.calibration(entry.run, lambda run: _shape(run).build())
        return _with_timing(planned, entry.run, self._timings[kind])


def plan(
    board: Board,
    device: str,
    *,
    calibration: Calibration | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Count and estimate every run of the stage that a study is in, and the sum of the stage to come."""
    planner = Planner(device, calibration, progress)
    tuning = {fingerprint(run) for run in board.stage.tune}
    planned = _of_branches(
        [(entry, planner.estimate(entry, "tune" if fingerprint(entry.run) in tuning else "confirm"))
         for entry in board.entries]
    )  # fmt: skip
    study = board.study
    later: tuple[Planned, ...] = ()
    if isinstance(study, Study) and board.stage.name == "tune" and study.seeds:
        runs = study.confirming(lambda _cell, _arm: {field: grid[0] for field, grid in study.tuned.items()})
        wanted = {entry.run.arm for entry in board.entries}
        entries = [Entry(run, None) for run in runs if run.arm in wanted]
        later = _of_branches([(entry, planner.estimate(entry, "confirm")) for entry in entries])
    left = [run for run in planned if run.state not in ("complete", "diverged")]
    return Plan(
        study.name, study.question, device, UTILISATION, planner.peaks, planned, len(later),
        confirm_seconds=_sum(run.seconds for run in later),
        core_hours=None if device in DEVICES else _sum(run.core_hours for run in (*left, *later)),
        calibrated=planner.calibration is not None,
    )  # fmt: skip


def _of_branches(planned: Sequence[tuple[Entry, Planned]]) -> tuple[Planned, ...]:
    """Leave out the time of the steps that a run takes over from a longer one."""
    kept = [entry.run for entry, _ in planned if entry.run.train.branch_at]
    found = []
    for entry, plan in planned:
        train = entry.run.train
        if any(train.decay_start in trunk.train.branch_at and branches_off(entry.run, trunk) for trunk in kept):
            share = 1 - train.decay_start / train.steps
            times = {name: value * share for name in ("seconds", "core_hours") if (value := getattr(plan, name))}
            plan = replace(plan, **times)  # noqa: PLW2901
        found.append(plan)
    return tuple(found)


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)


def _with_timing(planned: Planned, run: RunSpec, timing: Timing) -> Planned:
    """Return the plan of a run with measured times: of the steps that it has to do itself, and of its evaluations."""
    if planned.steps is None:
        return replace(planned, step_seconds=timing.step)
    batches = evaluated_tokens(run) / (run.train.batch_size * _length(run))
    seconds = planned.steps * timing.step + batches * timing.evaluation
    return replace(planned, step_seconds=timing.step, seconds=seconds, core_hours=seconds * run.train.threads / 3600)


def _peak_name(train: TrainSpec, *, on_a_sheet: bool) -> str:
    """Name the rate of matrix products that a run has: by its number format, on a CPU also by its threads."""
    precision: str = resolve_precision("cuda" if on_a_sheet else "cpu", train.precision)
    if on_a_sheet:
        return "tf32" if precision == "fp32" and train.tf32 else precision
    return f"{train.threads} threads{'' if precision == 'fp32' else ', ' + precision}"


def counted(run: RunSpec) -> tuple[surgery.Audit, Cost]:
    """Return what a run's model consists of under its method, and what a step of it costs."""
    model = _shape(run).build()
    audit = surgery.apply(model, run.method, seed=run.seed)
    return audit, training_cost(model.train(), run.train.batch_size, _length(run), _written(run))


def probed(run: RunSpec) -> float:
    """Measure the matrix products per second of this machine's CPU with the run's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(run.train.threads)
    try:
        return matmul_peak(torch.device("cpu"), run.train.precision)
    finally:
        torch.set_num_threads(before)


def _planned(
    entry: Entry, stage: StageName, audit: surgery.Audit, cost: Cost, peak: float, room: int | None
) -> Planned:
    run, key = entry.run, fingerprint(entry.run)
    parts = run.train.processes * run.train.accumulation  # of a batch: one at a time is on a device
    memory = cost.memory_bytes - cost.activation_bytes + cost.activation_bytes // parts
    step_flops = cost.total_flops
    step_seconds = step_flops / (peak * UTILISATION * run.train.processes)
    steps = _steps(run)
    return Planned(
        run=entry.name,
        arm=run.arm,
        seed=run.seed,
        stage=stage,
        fingerprint=key,
        state=entry.state,
        trained=audit.trainable,
        frozen=audit.frozen,
        steps=steps,
        step_flops=step_flops,
        step_seconds=step_seconds,
        memory_bytes=memory,
        fits=None if room is None else memory <= room,
        seconds=None if steps is None else steps * step_seconds,
        settings=run.meaning(),
        core_hours=None
        if steps is None or room
        else step_seconds * steps * run.train.threads * run.train.processes / 3600,
    )


def _steps(run: RunSpec) -> int | None:
    if run.train.epochs is None or run.data.checksum is not None:
        return run.train.steps
    rows = (run.data.rows or TRAINING_ROWS.get(run.data.corpus)) if isinstance(run.data, ExamplesSpec) else None
    if rows is None:
        return None
    batches = math.ceil(rows / run.train.batch_size)  # each epoch ends with what is left, as when a run is bound
    return steps_of(run.train.epochs, batches)


@dataclass(frozen=True)
class Shape:
    """A model of a run's shapes, which needs neither data nor the hub."""

    spec: ModelSpec
    vocab_size: int | None = None
    """Of a foreign model that is given the data's; None: its own."""

    def build(self) -> nn.Module:
        """Build it."""
        return build(self.spec, vocab_size=self.vocab_size)


def _shape(run: RunSpec) -> Shape:
    data, model = run.data, run.model
    if isinstance(data, ExamplesSpec) and data.answers == "label":
        known = CORPORA.get(data.corpus)
        labels = len(known.labels) if known and known.labels else FEWEST_LABELS
        model = model.model_copy(update={"labels": model.labels or labels})
    if isinstance(model, GPTSpec):
        probe = isinstance(data, DataSpec) and data.probe is not None
        own = probes.VOCAB_SIZE if probe else data.vocab_size or GPT2_VOCAB_SIZE
        return Shape(model.model_copy(update={"vocab_size": model.vocab_size or own}))
    return Shape(named_shape(model), data.vocab_size if isinstance(data, ExamplesSpec) else None)


def _length(run: RunSpec) -> int:
    if isinstance(run.data, ExamplesSpec):
        # Rows of one length are hardly padded; of a table that nobody has counted the longest row is taken.
        typical = run.data.max_length if run.data.padding == "max_length" else ROW_TOKENS.get(run.data.corpus)
        return min(run.data.max_length, typical or run.data.max_length)
    return run.model.context if isinstance(run.model, GPTSpec) else 128


def _written(run: RunSpec) -> int | None:
    return ANSWER_TOKENS if isinstance(run.data, ExamplesSpec) and run.data.answers == "text" else None
