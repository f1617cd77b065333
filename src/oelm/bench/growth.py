"""How the cost of our step grows with context length, width and depth, one at a time.

Every size is a fresh process, and those of one factor take turns (see `oelm.bench.turns`). The exponent is the slope of
log cost against log size. Its interval is Student's, from how far the sizes are from one line: a cost that is a sum of
powers bends, and the interval says so. Memory is what a step needs in addition to one of the smallest GPT, which is
the interpreter and its libraries.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from oelm.analysis.statistics import CONFIDENCE, slope_interval
from oelm.bench.turns import Turn, describe_machine, take_turns
from oelm.errors import InvalidSpec
from oelm.spec.model import GPTSpec, named_size

BASE = GPTSpec(vocab_size=2048, context=256, model_dim=256, num_layers=4, num_heads=4)
FACTORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "context": ("context", (128, 256, 512, 1024, 2048)),
    "width": ("model_dim", (128, 256, 512, 768, 1024)),
    "depth": ("num_layers", (2, 4, 8, 12, 16)),
}
HEAD_SIZE = 64
EMPTY = "empty"
"""The participant whose model is so small that its memory is that of the libraries."""


@dataclass(frozen=True)
class GrowthBench:
    """Measure seconds and memory of our step against context length, width and depth, and fit their exponents.

    One factor changes at a time; the others are those of a GPT of width 256, 4 layers, context 256 and a vocabulary of
    2,048. Heads have 64 coordinates, so that their number grows with the width.

      oelm bench growth --precision auto
    """

    factors: str = "context,width,depth"
    """Factors to vary, with commas."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Precision of the step. `auto` takes bf16 where the CPU has it natively, else fp32."""
    batch: int = 1
    """Sequences per step, each as long as the context."""
    steps: int = 4
    """Turns of each factor, one step of each size; two steps before them are left out as warm-up."""
    threads: int = 1
    """CPU threads of each process."""
    smallest: int = 5
    """How many sizes of each factor to measure, from the smallest on; at least 3."""
    json: bool = False
    """Print the result as JSON only."""

    @property
    def names(self) -> list[str]:
        """The factors in order."""
        return [name.strip() for name in self.factors.split(",") if name.strip()]


def main(argv: list[str]) -> int:
    """Measure, and print what was found."""
    bench = tyro.cli(GrowthBench, args=argv, prog="oelm bench growth", config=(tyro.conf.FlagCreatePairsOff,))
    result = bench_growth(bench, say=lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(result, indent=None if bench.json else 1))
    return 0


def sized(factor: str, size: int) -> GPTSpec:
    """Return the GPT with one factor at a size."""
    changed = {FACTORS[factor][0]: size}
    if factor == "width":
        changed["num_heads"] = max(1, size // HEAD_SIZE)
    return BASE.model_copy(update=changed)


def bench_growth(bench: GrowthBench, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure every factor and return costs by size with their exponents.

    Raises:
        InvalidSpec: an unknown factor, or a number that measures nothing.
        RunFailed: a process broke.

    """
    from oelm.train.precision import resolve_precision

    _refuse(bench)
    bench = GrowthBench(**vars(bench) | {"precision": resolve_precision("cpu", bench.precision)})
    found = {}
    for factor in bench.names:
        sizes = FACTORS[factor][1][: bench.smallest]
        words = json.dumps(vars(bench))
        commands = {
            str(size): [sys.executable, "-m", "oelm.bench.growth", factor, str(size), words] for size in (EMPTY, *sizes)
        }
        turns = take_turns(commands, bench.steps, os.environ | {"OMP_NUM_THREADS": str(bench.threads)})
        found[factor] = summary(sizes, turns)
        say(_verdict(factor, found[factor]))
    return {
        "bench": "growth",
        "base": BASE.model_dump(mode="json", include={"vocab_size", "context", "model_dim", "num_layers"}),
        "precision": bench.precision,
        "batch": bench.batch,
        "threads": bench.threads,
        "factors": found,
        **describe_machine(),
    }


def summary(sizes: Sequence[int], turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the cost of each size, and the exponents of time and memory."""
    seconds = [statistics.median(turn[str(size)]["cpu"] for turn in turns) for size in sizes]
    empty = max(turn[EMPTY]["peak_bytes"] for turn in turns)
    memory = [max(turn[str(size)]["peak_bytes"] for turn in turns) - empty for size in sizes]
    return {"sizes": list(sizes), "seconds": seconds, "bytes": memory} | {
        f"{name}_{key}": value
        for name, costs in (("seconds", seconds), ("bytes", memory))
        for key, value in exponent(sizes, costs).items()
    }


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, Any]:
    """Fit cost = c size^exponent by least squares of the logarithms."""
    slope, interval = slope_interval([math.log(x) for x in sizes], [math.log(max(y, 1e-9)) for y in costs], CONFIDENCE)
    return {"exponent": slope, "exponent_interval": [interval.low, interval.high]}


def _verdict(factor: str, found: dict[str, Any]) -> str:
    def words(name: str) -> str:
        low, high = found[f"{name}_exponent_interval"]
        return f"{name} grow with exponent {found[f'{name}_exponent']:.2f} [{low:.2f}, {high:.2f}]"

    return f"{factor} from {found['sizes'][0]} to {found['sizes'][-1]}: {words('seconds')}, {words('bytes')}"


def _refuse(bench: GrowthBench) -> None:
    unknown = [name for name in bench.names if name not in FACTORS]
    if unknown or not bench.names:
        raise InvalidSpec(f"--factors {bench.factors!r} was given. The factors are {', '.join(FACTORS)}.")
    if min(bench.batch, bench.steps, bench.threads) < 1 or bench.smallest < 3:
        raise InvalidSpec(f"{bench} measures nothing. Give numbers above 0, and at least 3 sizes.")


def _work(factor: str, size: str, bench: GrowthBench) -> None:
    """Be a participant."""
    from oelm.bench.step import OURS, work

    spec = named_size("nano") if size == EMPTY else sized(factor, int(size))
    work(OURS, spec, precision=bench.precision, batch=bench.batch, threads=bench.threads)


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2], GrowthBench(**json.loads(sys.argv[3])))
