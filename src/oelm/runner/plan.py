"""What a study takes before anything of it runs: parameters, FLOPs, memory and time on a named device.

FLOPs are counted from shapes. Seconds are FLOPs divided by what the device can do and by one utilisation, fixed here
once and for all and never fitted to results: a plan is to be wrong by a factor that one knows, not right by accident.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from oelm import surgery
from oelm.data import probes
from oelm.data.tasks import CORPORA
from oelm.models.build import build
from oelm.models.configs import named_shape
from oelm.models.cost import Cost, training_cost
from oelm.runner.artefacts import matmul_peak
from oelm.runner.queue import Board, Entry
from oelm.spec.base import digest
from oelm.spec.data import DataSpec, ExamplesSpec
from oelm.spec.epochs import steps_of
from oelm.spec.model import GPT2_VOCAB_SIZE, GPTSpec, ModelSpec
from oelm.spec.run import RunSpec, fingerprint
from oelm.spec.train import TrainSpec
from oelm.study import Study
from oelm.train.precision import resolve_precision

UTILISATION = 0.4
"""The share of a device's matrix-product peak that a training step is taken to reach, on every device."""
TERA, GIB = 10**12, 2**30


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

    @property
    def seconds(self) -> float | None:
        """Device-seconds of what is not done; None where some run's are not known."""
        left = [run.seconds for run in self.runs if run.state not in ("complete", "diverged")]
        return None if None in left else sum(s for s in left if s is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"seconds": self.seconds}


def plan(board: Board, device: str, *, progress: Callable[[str], None] = lambda _: None) -> Plan:
    """Count and estimate every run of the stage that a study is in."""
    peaks: dict[str, float] = dict(DEVICES[device].flops) if device in DEVICES else {}
    costs: dict[str, tuple[surgery.Audit, Cost]] = {}
    tuning = {fingerprint(run) for run in board.stage.tune}
    planned = []
    for entry in board.entries:
        shape, method = _shape(entry.run), entry.run.method
        parts = [part.model_dump(mode="json") for part in (shape.spec, method)]
        key = digest([*parts, shape.vocab_size, _length(entry.run), _written(entry.run), entry.run.train.batch_size])
        if key not in costs:
            progress(f"counting {entry.name}")
            costs[key] = counted(entry.run)
        peak = _peak_name(entry.run.train, on_a_sheet=device in DEVICES)
        if peak not in peaks:
            progress("probing this machine")
            peaks[peak] = probed(entry.run)
        room = DEVICES[device].memory_bytes if device in DEVICES else None
        planned.append(_planned(entry, tuning, *costs[key], peaks[peak], room))
    later = 0
    if isinstance(board.study, Study) and board.stage.name == "tune":
        later = sum(len(board.study.seeds_in(cell)) for cell in board.study.cells()) * len(board.study.arms)
    study = board.study
    return Plan(study.name, study.question, device, UTILISATION, peaks, tuple(planned), later)


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
    entry: Entry, tuning: set[str], audit: surgery.Audit, cost: Cost, peak: float, room: int | None
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
        stage="tune" if key in tuning else "confirm",
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
