"""Benchmarks of speed and memory. Their processes take turns, so other load on the machine affects all of them alike.

A worker process takes one step for every line that it reads and answers with the measurements. It ends when its input
ends, so no worker is left behind when the parent dies.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, Literal, cast

from oelm.analysis.statistics import CONFIDENCE, interval_of_mean
from oelm.errors import RunFailed
from oelm.train.device import peak_resident_bytes

Clock = Literal["cpu", "wall"]
TurnMeasure = Clock | Literal["peak_bytes", "loss"]
Turn = dict[str, dict[TurnMeasure, float]]
"""One step of every worker: its seconds by both clocks, its peak memory so far and, if it has one, its loss."""
Blocks = Sequence[Sequence[Turn]]
"""Turns of several blocks; each block has new processes."""
WARMUP_TURNS = 2


def take_turns(commands: Mapping[str, Sequence[str]], turns: int, threads: int = 1) -> list[Turn]:
    """Start every worker, warm it up, and let the workers take turns, in an order that is reversed after each turn.

    Raises:
        RunFailed: a worker ended early; the message has the end of its standard error.

    """
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    taken: list[Turn] = []
    with ExitStack() as stack:
        steps = {name: stack.enter_context(_start(name, words, environment)) for name, words in commands.items()}
        for number in range(turns):
            order = list(steps) if number % 2 == 0 else list(steps)[::-1]
            taken.append({name: steps[name]() for name in order})
    return taken


def answer_turns(step: Callable[[], float | None], rest: Callable[[], None] = lambda: None) -> None:
    """Be a worker: take one step for every line of standard input and print the measurements.

    `rest` is the part of a step that is not measured.
    """
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        loss = step()
        found: dict[TurnMeasure, float] = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        found["peak_bytes"] = peak_resident_bytes()
        if loss is not None:
            found["loss"] = loss
        rest()
        print(json.dumps(found), flush=True)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two times with its 95 % interval over blocks (None for a single block)."""

    value: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        spread = "" if self.interval is None else f" [{self.interval[0]:.2f}, {self.interval[1]:.2f}]"
        return f"{self.value:.2f}{spread}"


def ratio(blocks: Blocks, numerator: str, denominator: str, clock: Clock = "cpu") -> Ratio:
    """Return how many times as long one worker takes as another.

    Each block gives the median over its turns of the log ratio; the result is the exponential of the mean over blocks.
    """
    logs = [
        statistics.median(math.log(turn[numerator][clock] / turn[denominator][clock]) for turn in turns)
        for turns in blocks
    ]
    interval = interval_of_mean(logs, CONFIDENCE)
    bounds = None if interval is None else (math.exp(interval.low), math.exp(interval.high))
    return Ratio(math.exp(statistics.fmean(logs)), bounds)


@contextmanager
def _start(
    name: str, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Callable[[], dict[TurnMeasure, float]]]:
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603  (a command of our own)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )

        def step() -> dict[TurnMeasure, float]:
            # A dead process leaves a broken pipe or nothing to read.
            try:
                cast("IO[str]", process.stdin).write("step\n")
                cast("IO[str]", process.stdin).flush()
                line = cast("IO[str]", process.stdout).readline()
            except BrokenPipeError:
                line = ""
            if not line:
                process.wait()
                errors.seek(0)
                raise RunFailed(f"{name!r} ended with code {process.returncode}: {errors.read()[-800:]}")
            return cast("dict[TurnMeasure, float]", json.loads(line))

        try:
            for _ in range(WARMUP_TURNS):
                step()
            yield step
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):  # lines that a dead process has not read cannot be flushed
                    cast("IO[str]", pipe).close()


def describe_machine() -> dict[str, Any]:
    """Return where and when a measurement was made, and whether the CPU has native bf16: the last keys of a result."""
    import torch

    from oelm.record.record import describe_environment
    from oelm.train.device import has_native_bf16

    return {
        "environment": describe_environment("cpu", torch.__version__).model_dump(),
        "native_bf16": has_native_bf16("cpu"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def worker_command(module: str, *words: str, arguments: Any) -> list[str]:
    """Return the command that starts a worker of a benchmark: its own words, then the benchmark's arguments."""
    return [sys.executable, "-m", module, *words, json.dumps(vars(arguments))]


def split_names(text: str) -> list[str]:
    """Split names at commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
