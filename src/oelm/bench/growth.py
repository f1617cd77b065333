"""Measure how the cost of our step grows with context length, width and depth, one at a time.

Every size is a new process, and the sizes of one factor take turns (see `oelm.bench`). The exponent is the slope
of log cost against log size. Its interval is Student's, from the residuals of the line: a cost that is a sum of powers
is not a line in logarithms, and its interval is wide. Memory is that of a step beyond the smallest GPT's, which is the
memory of the interpreter and its libraries.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from oelm.analysis.statistics import CONFIDENCE, slope_interval
from oelm.bench import Turn, describe_machine, split_names, take_turns, worker_command
from oelm.errors import InvalidSpec
from oelm.spec.run import GPT_SIZES, GPTSpec

BASE = GPTSpec(vocab_size=2048, context=256, model_dim=256, num_layers=4, num_heads=4)
FACTORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "context": ("context", (128, 256, 512, 1024, 2048)),
    "width": ("model_dim", (128, 256, 512, 768, 1024)),
    "depth": ("num_layers", (2, 4, 8, 12, 16)),
}
HEAD_SIZE = 64
EMPTY = "empty"
"""The worker with a model so small that its memory is that of the libraries."""


@dataclass(frozen=True)
class GrowthBench:
    """Measure time and memory of our step against context length, width and depth, and fit their exponents.

    One factor changes at a time; the others are those of a GPT of width 256, 4 layers, context 256 and a vocabulary of
    2,048. Heads have 64 coordinates, so their number grows with the width.

      oelm bench growth --precision auto
    """

    factors: str = "context,width,depth"
    """Factors to vary, separated by commas."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Precision of the step. `auto` is bf16 where the CPU has it natively, otherwise fp32."""
    batch: int = 1
    """Sequences per step, each as long as the context."""
    steps: int = 4
    """Number of turns per factor, one step of each size. Two warm-up steps come before and do not count."""
    threads: int = 1
    """CPU threads of each process."""
    smallest: int = 5
    """Number of sizes of each factor to measure, starting with the smallest; at least 3."""
    json: bool = False
    """Print the result as one line of JSON."""


def bench_growth(bench: GrowthBench, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure every factor and return costs by size with their exponents.

    Raises:
        InvalidSpec: an unknown factor, or a number that is too small.
        RunFailed: a process failed.

    """
    from oelm.train.device import resolve_precision

    factors = split_names(bench.factors)
    if not factors or set(factors) - set(FACTORS):
        raise InvalidSpec(
            f"--factors {bench.factors!r} is not a list of factors. The factors are {', '.join(FACTORS)}."
        )
    if min(bench.batch, bench.steps, bench.threads) < 1 or bench.smallest < 3:
        raise InvalidSpec("--batch, --steps and --threads must be at least 1, and --smallest at least 3.")
    bench = GrowthBench(**vars(bench) | {"precision": resolve_precision("cpu", bench.precision)})
    found = {}
    for factor in factors:
        sizes = FACTORS[factor][1][: bench.smallest]
        names = [EMPTY, *map(str, sizes)]
        commands = {name: worker_command("oelm.bench.growth", factor, name, arguments=bench) for name in names}
        found[factor] = summarise_growth(sizes, take_turns(commands, bench.steps, bench.threads))
        say(_describe(factor, found[factor]))
    return {
        "bench": "growth",
        "base": BASE.model_dump(mode="json", include={"vocab_size", "context", "model_dim", "num_layers"}),
        "precision": bench.precision,
        "batch": bench.batch,
        "threads": bench.threads,
        "factors": found,
        **describe_machine(),
    }


def resize(factor: str, size: int) -> GPTSpec:
    """Return the GPT with one factor set to a size."""
    changed = {FACTORS[factor][0]: size}
    if factor == "width":
        changed["num_heads"] = max(1, size // HEAD_SIZE)
    return BASE.model_copy(update=changed)


def summarise_growth(sizes: Sequence[int], turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the cost of each size, and the exponents of time and memory."""
    seconds = [statistics.median(turn[str(size)]["cpu"] for turn in turns) for size in sizes]
    empty = max(turn[EMPTY]["peak_bytes"] for turn in turns)
    memory = [max(turn[str(size)]["peak_bytes"] for turn in turns) - empty for size in sizes]
    return {"sizes": list(sizes), "seconds": seconds, "bytes": memory} | {
        f"{name}_{key}": value
        for name, costs in (("seconds", seconds), ("bytes", memory))
        for key, value in fit_exponent(sizes, costs).items()
    }


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, Any]:
    """Fit cost = c size^exponent by least squares of the logarithms."""
    slope, interval = slope_interval([math.log(x) for x in sizes], [math.log(max(y, 1e-9)) for y in costs], CONFIDENCE)
    return {"exponent": slope, "exponent_interval": [interval.low, interval.high]}


def _describe(factor: str, found: dict[str, Any]) -> str:
    def words(name: str) -> str:
        low, high = found[f"{name}_exponent_interval"]
        return f"{name} grow with exponent {found[f'{name}_exponent']:.2f} [{low:.2f}, {high:.2f}]"

    return f"{factor} from {found['sizes'][0]} to {found['sizes'][-1]}: {words('seconds')}, {words('bytes')}"


def _work(factor: str, size: str, bench: GrowthBench) -> None:
    from oelm.bench.step import OURS, run_worker

    spec = GPT_SIZES["nano"] if size == EMPTY else resize(factor, int(size))
    run_worker(OURS, spec, precision=bench.precision, batch=bench.batch, threads=bench.threads)


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2], GrowthBench(**json.loads(sys.argv[3])))
