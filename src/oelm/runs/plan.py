"""Estimate what a study takes before it runs: parameters, FLOPs, memory and time on a named device.

FLOPs are counted once for each kind of step and kept in the user's cache, because importing `transformers` takes longer
than everything else in a plan.

FLOPs are counted from shapes. Seconds are FLOPs divided by the peak of the device and by one utilisation, which is
fixed here and never fitted to results: a plan should be wrong by a known factor rather than right by accident. With
`calibrate`, the times of our GPT on this CPU come from measured steps instead, including evaluation.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor, nn

from oelm.data import probes
from oelm.data.labelled import LABELLED_CORPORA
from oelm.data.meta import META, read_meta
from oelm.data.prepare import default_directory
from oelm.errors import OelmError
from oelm.files import add_checksum, digest, parse_checked, sha256_of, write_atomically
from oelm.method.freeze import multipliers
from oelm.models import apply as surgery
from oelm.models.build import build, named_shape
from oelm.models.flops import Cost, training_cost
from oelm.models.gpt import GPT
from oelm.record.record import cpu_model
from oelm.record.stages import StageName
from oelm.runs.board import Board, BoardEntry
from oelm.runs.execute import matmul_peak
from oelm.runs.resolve import free_memory, memory_of_step, warn_of_vocabulary
from oelm.spec.method import InitSpec
from oelm.spec.run import (
    GPT2_VOCAB_SIZE,
    NUMERICS,
    DataSpec,
    ExamplesSpec,
    GPTSpec,
    ModelSpec,
    RunSpec,
    TrainSpec,
    branches_off,
    fingerprint,
    steps_of,
)
from oelm.spec.study import Study
from oelm.train.device import autocast, keep_large_blocks, resolve_precision
from oelm.train.loop import Optimizer

# Calibration: some steps of the real model, measured in processor time, so that other load on the machine hardly
# matters. Each kind of step (model, method, batch, precision, threads) is measured once and kept in the user's cache.

WARM_STEPS, FEWEST_STEPS, ENOUGH_SECONDS = 2, 5, 2.0
Build = Callable[[RunSpec], nn.Module]


@dataclass(frozen=True)
class Timing:
    """Processor seconds of one step, and of one batch of evaluation, divided by the run's threads."""

    step: float
    evaluation: float


def calibration_file() -> Path:
    """Return the file with measured timings."""
    return platformdirs.user_cache_path("oelm") / "calibration.json"


def costs_file() -> Path:
    """Return the file with counted costs."""
    return platformdirs.user_cache_path("oelm") / "costs.json"


COUNTED = Path(__file__).with_name("costs.json")
"""The costs of the published runs, which come with the program: counting them takes 20 seconds. A test counts again."""


class CostCache:
    """Counted costs by kind of step, for this code and these libraries. A cache that cannot be written is not kept."""

    def __init__(self, path: Path | None = None, counted: Path = COUNTED) -> None:
        self._path = path or costs_file()
        self._counted: dict[str, Any] = json.loads(counted.read_text()) if counted.is_file() else {}
        self._code = _digest_code()
        try:
            known = json.loads(self._path.read_text())
        except (OSError, ValueError):
            known = {}
        self._known: dict[str, Any] = known.get(self._code, {}) if isinstance(known, dict) else {}

    def get(self, kind: str) -> tuple[Counts, Cost] | None:
        """Return the parameters and the cost of a kind of step, if they are known."""
        found = self._known.get(kind) or self._counted.get(kind)
        return (Counts(**found["counts"]), Cost(**found["cost"])) if found else None

    def put(self, kind: str, counts: Counts, cost: Cost) -> None:
        """Keep them. Counts of other code are dropped, so that the file stays small."""
        self._known[kind] = {"counts": asdict(counts), "cost": asdict(cost)}
        with suppress(OSError):
            write_atomically(self._path, json.dumps({self._code: self._known}) + "\n")


def _digest_code() -> str:
    """Return a digest of everything that counts depend on: the code of models and methods, and their libraries."""
    package = Path(__file__).parents[1]
    files = sorted(path for part in ("models", "method", "spec") for path in (package / part).rglob("*.py"))
    versions = [importlib.metadata.version(name) for name in ("torch", "transformers")]
    return digest([*versions, *(sha256_of(path) for path in files)])[:16]


def calibrate(run: RunSpec, build: Build, cache: Path | None = None) -> Timing:
    """Return the timing of a run of our GPT on this CPU: from the cache, or measured now and kept."""
    path = cache or calibration_file()
    known = _read_timings(path)
    model = build(run)
    key = _key(run, model)
    if key not in known:
        known[key] = asdict(_measure(run, model))
        write_atomically(path, add_checksum(json.dumps(known, indent=1) + "\n"))
    return Timing(**known[key])


def _read_timings(path: Path) -> dict[str, Any]:
    """Return the timings by key; none if the file is missing or damaged, as they can be measured again."""
    try:
        known = parse_checked(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def evaluated_tokens(run: RunSpec) -> int:
    """Return the number of tokens that a run evaluates: during training, and all of val and test at the end."""
    train = run.train
    looks = train.steps // train.eval_every if isinstance(train.eval_every, int) else 0
    along = (looks + 1) * (train.eval_tokens or 0)
    if not isinstance(run.data, DataSpec):
        return along
    directory = run.data.directory or default_directory(run.data)
    try:
        meta = read_meta(directory) if (directory / META).exists() else None
    except OelmError:  # unreadable data are reported when the run starts
        meta = None
    splits = meta.splits if meta else {}
    return along + sum(split.num_tokens for name, split in splits.items() if name != "train")


def _key(run: RunSpec, model: nn.Module) -> str:
    spec = model.spec.model_dump(mode="json") if isinstance(model, GPT) else None
    method = run.method.model_dump(mode="json")
    train = [run.train.batch_size, run.train.accumulation, run.train.threads]
    precision = resolve_precision("cpu", run.train.precision)
    return digest([spec, method, train, precision, torch.__version__, cpu_model(), NUMERICS])[:16]


def _measure(run: RunSpec, model: nn.Module) -> Timing:
    before = torch.get_num_threads()
    torch.set_num_threads(run.train.threads)
    keep_large_blocks()
    try:
        surgery.apply(model, run.method, seed=run.seed, scheduled=True)
        model.train()
        rates = multipliers(
            [name for name, _ in model.named_parameters()], surgery.projections_in_reach(model), run.method.rates
        )
        optimizer = Optimizer(model, run.train, rates)
        ids = _tokens(run, model)
        step = _seconds(lambda: _step(run, model, optimizer, ids)) / run.train.threads
        model.eval()
        with torch.no_grad(), autocast(torch.device("cpu"), run.train.precision):
            evaluation = _seconds(lambda: model(*ids)) / run.train.threads
        return Timing(step * run.train.accumulation, evaluation * run.train.accumulation)
    finally:
        torch.set_num_threads(before)


def _tokens(run: RunSpec, model: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(model, GPT)  # noqa: S101  (only our GPT is calibrated)
    rows = run.train.batch_size // run.train.accumulation
    spec = model.spec
    ids = torch.randint(0, spec.vocab_size or 2, (2, rows, spec.context), generator=torch.Generator().manual_seed(0))
    return ids[0], ids[1]


def _step(run: RunSpec, model: nn.Module, optimizer: Optimizer, ids: tuple[Tensor, Tensor]) -> None:
    with autocast(torch.device("cpu"), run.train.precision):
        loss = model(*ids)
    optimizer.backward(loss)
    optimizer.step(run.train.learning_rate)


def _seconds(work: Callable[[], object]) -> float:
    """Return the median processor time of some repetitions, without the first ones."""
    times: list[float] = []
    while len(times) < WARM_STEPS + FEWEST_STEPS or sum(times) < ENOUGH_SECONDS:
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times[WARM_STEPS:])


ASSUMED_UTILISATION = 0.4
"""The assumed share of a device's matrix-product peak that a training step reaches, on every device."""
TERA, GIB = 10**12, 2**30
Calibration = Callable[[RunSpec, Build], Timing]


@dataclass(frozen=True)
class Device:
    """The data sheet of a device: FLOPs per second of dense matrix products by precision, memory in bytes."""

    flops: dict[str, float]
    memory_bytes: int


def _sheet(fp32: float, half: float, gibibytes: int) -> Device:
    # TensorFloat-32 has half the speed of the 16-bit types on all of these.
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
"""Rows of the public training splits, for runs whose data are not available here."""
ROW_TOKENS = {"sst2": 14, "xnli": 38, "mnli": 38}
"""Mean number of tokens of a training row, as counted (MNLI as XNLI, whose pairs are similar)."""
ANSWER_TOKENS = 3
"""Tokens of a label's name as generated text: a word or two, and the end token."""
FEWEST_LABELS = 2
"""Assumed number of labels if it is unknown: a head is small, but a model without one is a different model."""


@dataclass(frozen=True)
class Counts:
    """Parameters of a model under its method."""

    trained: int
    frozen: int


@dataclass(frozen=True)
class Planned:
    """One run of the plan. `seconds` is None if the number of steps depends on data that are not available."""

    run: str
    arm: str
    seed: int
    stage: str
    fingerprint: str
    """Fingerprint of the declared run; resolving it with its data changes the fingerprint."""
    state: str
    trained: int
    frozen: int
    steps: int | None
    step_flops: int
    step_seconds: float
    memory_bytes: int
    """Estimated peak memory of a step on each device."""
    fits: bool
    """Whether the named device has enough memory, or this machine has enough free memory now."""
    seconds: float | None
    warning: str | None
    """What is wrong with the proportions of the model."""
    settings: dict[str, Any]
    """Every field of the run's spec, defaults included."""
    core_hours: float | None = None
    """Hours on a CPU, times the run's threads and processes."""


@dataclass(frozen=True)
class Plan:
    """The runs that are known now, and the number that the confirming stage will add."""

    study: str
    question: str
    device: str
    utilisation: float
    peak_flops: dict[str, float]
    runs: tuple[Planned, ...]
    confirm_runs: int
    """Number of confirming runs that will be known when tuning has ended."""
    confirm_seconds: float | None = None
    """Their seconds, which do not depend on the setting that tuning chooses."""
    core_hours: float | None = None
    """Core hours of everything that is not done, both stages, on a CPU; None if the time of some run is unknown."""
    calibrated: bool = False
    """Whether the times come from measured steps."""

    @property
    def seconds(self) -> float | None:
        """Device-seconds of the runs that are not done; None if the time of some run is unknown."""
        left = [run.seconds for run in self.runs if run.state not in ("complete", "diverged")]
        return None if None in left else sum(s for s in left if s is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"seconds": self.seconds}


class Planner:
    """Estimates runs on one device. Models that several runs share are counted once."""

    def __init__(self, device: str, calibration: Calibration | None, progress: Callable[[str], None]) -> None:
        self.device, self.progress = device, progress
        self.calibration = calibration if device not in DEVICES else None
        self.peaks: dict[str, float] = dict(DEVICES[device].flops) if device in DEVICES else {}
        self._costs = CostCache()
        self._timings: dict[str, Timing] = {}

    def estimate(self, entry: BoardEntry, stage: StageName) -> Planned:
        """Return the estimate of one run."""
        key = kind_of_step(entry.run)
        counted = self._costs.get(key)
        if counted is None:
            self.progress(f"counting {entry.name}")
            counted = count_cost(entry.run)
            self._costs.put(key, *counted)
        peak = _peak_name(entry.run.train, on_a_sheet=self.device in DEVICES)
        if peak not in self.peaks:
            self.progress("probing this machine")
            self.peaks[peak] = measure_matmul_rate(entry.run)
        on_a_sheet = self.device in DEVICES
        room = DEVICES[self.device].memory_bytes if on_a_sheet else free_memory()
        planned = _estimate(entry, stage, *counted, self.peaks[peak], room, on_a_sheet=on_a_sheet)
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
    """Estimate every run of a study's present stage, and the sum of the confirming stage."""
    planner = Planner(device, calibration, progress)
    tuning = {fingerprint(run) for run in board.stage.tune}
    planned = _without_shared_steps(
        [(entry, planner.estimate(entry, "tune" if fingerprint(entry.run) in tuning else "confirm"))
         for entry in board.entries]
    )  # fmt: skip
    study = board.study
    later: tuple[Planned, ...] = ()
    if isinstance(study, Study) and board.stage.name == "tune" and study.seeds:
        runs = study.confirming(lambda _cell, _arm: {field: grid[0] for field, grid in study.tuned.items()})
        wanted = {entry.run.arm for entry in board.entries}
        entries = [BoardEntry(run, None) for run in runs if run.arm in wanted]
        later = _without_shared_steps([(entry, planner.estimate(entry, "confirm")) for entry in entries])
    left = [run for run in planned if run.state not in ("complete", "diverged")]
    return Plan(
        study.name, study.question, device, ASSUMED_UTILISATION, planner.peaks, planned, len(later),
        confirm_seconds=_sum(run.seconds for run in later),
        core_hours=None if device in DEVICES else _sum(run.core_hours for run in (*left, *later)),
        calibrated=planner.calibration is not None,
    )  # fmt: skip


def _without_shared_steps(planned: Sequence[tuple[BoardEntry, Planned]]) -> tuple[Planned, ...]:
    """Leave out the time of the steps that a run takes over from a longer run."""
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
    """Return the plan of a run with measured times of its steps and its evaluations."""
    if planned.steps is None:
        return replace(planned, step_seconds=timing.step)
    batches = evaluated_tokens(run) / (run.train.batch_size * _length(run))
    seconds = planned.steps * timing.step + batches * timing.evaluation
    return replace(planned, step_seconds=timing.step, seconds=seconds, core_hours=seconds * run.train.threads / 3600)


def _peak_name(train: TrainSpec, *, on_a_sheet: bool) -> str:
    """Name the peak that applies to a run: by its precision, on a CPU also by its threads."""
    precision: str = resolve_precision("cuda" if on_a_sheet else "cpu", train.precision)
    if on_a_sheet:
        return "tf32" if precision == "fp32" and train.tf32 else precision
    return f"{train.threads} threads{'' if precision == 'fp32' else ', ' + precision}"


def kind_of_step(run: RunSpec) -> str:
    """Return the digest of everything in a run that its counts depend on."""
    shape, method = _shape(run), run.method
    # Dense draws cost the same, whatever their shape and source.
    if method.init.shape in ("normal", "orthogonal", "hadamard"):
        method = method.model_copy(update={"init": InitSpec()})
    parts = [part.model_dump(mode="json") for part in (shape.spec, method)]
    return digest([*parts, shape.vocab_size, _length(run), _answer_tokens(run), run.train.batch_size])


def count_kinds(runs: Iterable[RunSpec]) -> dict[str, Any]:
    """Count the cost of every kind of step among some runs, as JSON data: the content of `COUNTED`."""
    kinds = {kind_of_step(run): run for run in runs}
    counted = {kind: count_cost(run) for kind, run in kinds.items()}
    return {kind: {"counts": asdict(counts), "cost": asdict(cost)} for kind, (counts, cost) in counted.items()}


def count_cost(run: RunSpec) -> tuple[Counts, Cost]:
    """Return the parameters of a run's model under its method, and the cost of a step.

    Most methods only choose which weights train, so that shapes are enough and no weight is drawn.
    """
    model = _shape(run).build_without_values()
    audit = surgery.apply_to_shapes(model, run.method)
    if audit is None:
        model = _shape(run).build()
        audit = surgery.apply(model, run.method, seed=run.seed, scheduled=True)
    cost = training_cost(model.train(), run.train.batch_size, _length(run), _answer_tokens(run))
    return Counts(audit.trainable, audit.frozen), cost


def measure_matmul_rate(run: RunSpec) -> float:
    """Measure the FLOPs per second of matrix products on this machine's CPU with the run's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(run.train.threads)
    try:
        return matmul_peak(torch.device("cpu"), run.train.precision)
    finally:
        torch.set_num_threads(before)


def _estimate(
    entry: BoardEntry, stage: StageName, counts: Counts, cost: Cost, peak: float, room: int, *, on_a_sheet: bool
) -> Planned:
    run, key = entry.run, fingerprint(entry.run)
    memory = memory_of_step(run, cost)
    step_flops = cost.total_flops
    step_seconds = step_flops / (peak * ASSUMED_UTILISATION * run.train.processes)
    steps = _steps(run)
    return Planned(
        run=entry.name,
        arm=run.arm,
        seed=run.seed,
        stage=stage,
        fingerprint=key,
        state=entry.state,
        trained=counts.trained,
        frozen=counts.frozen,
        steps=steps,
        step_flops=step_flops,
        step_seconds=step_seconds,
        memory_bytes=memory,
        fits=memory <= room,
        seconds=None if steps is None else steps * step_seconds,
        warning=warn_of_vocabulary(_shape(run).spec, counts.trained + counts.frozen),
        settings=run.model_dump(mode="json", exclude={"arm", "label", "scores_test"}),
        core_hours=None
        if steps is None or on_a_sheet
        else step_seconds * steps * run.train.threads * run.train.processes / 3600,
    )


def _steps(run: RunSpec) -> int | None:
    if run.train.epochs is None or run.data.checksum is not None:
        return run.train.steps
    rows = (run.data.rows or TRAINING_ROWS.get(run.data.corpus)) if isinstance(run.data, ExamplesSpec) else None
    if rows is None:
        return None
    batches = math.ceil(rows / run.train.batch_size)  # each epoch ends with a smaller batch, as in `resolve`
    return steps_of(run.train.epochs, batches)


@dataclass(frozen=True)
class Shape:
    """A model with a run's shapes, which needs neither the data nor the Hugging Face hub."""

    spec: ModelSpec
    vocab_size: int | None = None
    """Vocabulary size of the data, for a Hugging Face model that uses it; None: the model's own."""

    def build(self) -> nn.Module:
        """Build the model."""
        return build(self.spec, vocab_size=self.vocab_size)

    def build_without_values(self) -> nn.Module:
        """Build the model on the meta device, where tensors have shapes only."""
        if isinstance(self.spec, GPTSpec):
            return GPT(self.spec, device="meta")
        if self.spec.pretrained:  # its weights are read, so there is nothing to gain
            return self.build()
        with torch.device("meta"):
            return self.build()


def _shape(run: RunSpec) -> Shape:
    data, model = run.data, run.model
    if isinstance(data, ExamplesSpec) and data.answers == "label":
        known = LABELLED_CORPORA.get(data.corpus)
        labels = len(known.labels) if known and known.labels else FEWEST_LABELS
        model = model.model_copy(update={"labels": model.labels or labels})
    if isinstance(model, GPTSpec):
        probe = isinstance(data, DataSpec) and data.probe is not None
        own = probes.VOCAB_SIZE if probe else data.vocab_size or GPT2_VOCAB_SIZE
        return Shape(model.model_copy(update={"vocab_size": model.vocab_size or own}))
    own_vocabulary = data.vocab_size
    if isinstance(data, DataSpec) and not model.pretrained and data.tokenizer is None:
        own_vocabulary = own_vocabulary or GPT2_VOCAB_SIZE
    return Shape(named_shape(model), own_vocabulary)


def _length(run: RunSpec) -> int:
    if isinstance(run.data, ExamplesSpec):
        # Rows are grouped by length, so they are hardly padded. For an unknown table the longest row is assumed.
        typical = run.data.max_length if run.data.padding == "max_length" else ROW_TOKENS.get(run.data.corpus)
        return min(run.data.max_length, typical or run.data.max_length)
    return run.model.context


def _answer_tokens(run: RunSpec) -> int | None:
    return ANSWER_TOKENS if isinstance(run.data, ExamplesSpec) and run.data.answers == "text" else None
