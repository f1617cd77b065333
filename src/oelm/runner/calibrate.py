"""Measure what a step of a planned run really takes on this machine: some steps of the real model, in processor time.

Processor time and not the clock, so that other work on the machine hardly changes the result. Measured once for each
kind of step (model, method, batch, number format, threads) and kept in the user's cache.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs
import torch
from torch import Tensor, nn

from oelm import surgery
from oelm.data.meta import META, read_meta
from oelm.data.prepare import default_directory
from oelm.errors import OelmError
from oelm.files import write_atomically
from oelm.method.rates import multipliers
from oelm.models.gpt import GPT
from oelm.record.environment import cpu_model
from oelm.spec.base import digest
from oelm.spec.data import DataSpec
from oelm.spec.run import NUMERICS, RunSpec
from oelm.train.allocator import keep_large_blocks
from oelm.train.optimizer import Optimizer
from oelm.train.precision import autocast, resolve_precision

WARM_STEPS, FEWEST_STEPS, ENOUGH_SECONDS = 2, 5, 2.0
Build = Callable[[RunSpec], nn.Module]


@dataclass(frozen=True)
class Timing:
    """Processor seconds of one step, and of one batch of evaluation, divided by the run's threads."""

    step: float
    evaluation: float


def calibration_file() -> Path:
    """Return where measured timings are kept."""
    return platformdirs.user_cache_path("oelm") / "calibration.json"


def calibrate(run: RunSpec, build: Build, cache: Path | None = None) -> Timing:
    """Return the timing of a run of our GPT on this CPU: from the cache, else measured now and kept."""
    path = cache or calibration_file()
    known = json.loads(path.read_text()) if path.exists() else {}
    model = build(run)
    key = _key(run, model)
    if key not in known:
        known[key] = asdict(_measure(run, model))
        write_atomically(path, json.dumps(known, indent=1) + "\n")
    return Timing(**known[key])


def evaluated_tokens(run: RunSpec) -> int:
    """Return how many tokens a run evaluates: validation along the way, the whole splits at the end if prepared."""
    train = run.train
    looks = train.steps // train.eval_every if isinstance(train.eval_every, int) else 0
    along = (looks + 1) * (train.eval_tokens or 0)
    if not isinstance(run.data, DataSpec):
        return along
    directory = run.data.directory or default_directory(run.data)
    try:
        meta = read_meta(directory) if (directory / META).exists() else None
    except OelmError:  # data that cannot be read are reported when the run starts
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
        surgery.apply(model, run.method, seed=run.seed)
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
    assert isinstance(model, GPT)  # noqa: S101  (the plan asks for no other)
    rows = run.train.batch_size // run.train.accumulation
    spec = model.spec
    drawn = torch.randint(0, spec.vocab_size or 2, (2, rows, spec.context), generator=torch.Generator().manual_seed(0))
    return drawn[0], drawn[1]


def _step(run: RunSpec, model: nn.Module, optimizer: Optimizer, ids: tuple[Tensor, Tensor]) -> None:
    with autocast(torch.device("cpu"), run.train.precision):
        loss = model(*ids)
    optimizer.backward(loss)
    optimizer.step(run.train.learning_rate)


def _seconds(work: Callable[[], object]) -> float:
    """Return the median processor time of some repetitions, the first ones left out."""
    times: list[float] = []
    while len(times) < WARM_STEPS + FEWEST_STEPS or sum(times) < ENOUGH_SECONDS:
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times[WARM_STEPS:])
