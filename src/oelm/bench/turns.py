"""Fresh processes that take turns, one step each, so that whatever else the machine does meets all of them alike.

A process takes one step for every line it reads and answers with the seconds it took. It ends when its input does, so
that none is left behind, whatever becomes of the one that started it.
"""

from __future__ import annotations

import json
import math
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
from oelm.record.memory import peak_resident_bytes

Clock = Literal["cpu", "wall"]
Measure = Clock | Literal["peak_bytes", "loss"]
Turn = dict[str, dict[Measure, float]]
"""One step of every participant: its seconds by either clock, its peak memory so far and, if it has one, its loss."""
WARMUP_STEPS = 2


def take_turns(commands: Mapping[str, Sequence[str]], turns: int, environment: Mapping[str, str]) -> list[Turn]:
    """Start every participant, warm it up, and let them take turns, in an order that is reversed every turn.

    Raises:
        RunFailed: a process ended before its time; its own words are in the message.

    """
    taken: list[Turn] = []
    with ExitStack() as stack:
        steps = {name: stack.enter_context(_started(name, words, environment)) for name, words in commands.items()}
        for number in range(turns):
            order = list(steps) if number % 2 == 0 else list(steps)[::-1]
            taken.append({name: steps[name]() for name in order})
    return taken


def answer_turns(step: Callable[[], float | None]) -> None:
    """In a participant: take one step for every line that comes in, and answer with what was measured."""
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        loss = step()
        found: dict[Measure, float] = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        found["peak_bytes"] = peak_resident_bytes()
        if loss is not None:
            found["loss"] = loss
        print(json.dumps(found), flush=True)


def ratio(blocks: Sequence[Sequence[Turn]], numerator: str, denominator: str, clock: Clock = "cpu") -> Ratio:
    """Return how many times as long one participant takes as another.

    The unit is a block's median of the logarithm over turns; the ratio is the exponential of the mean over blocks.
    """
    logs = [
        statistics.median(math.log(turn[numerator][clock] / turn[denominator][clock]) for turn in turns)
        for turns in blocks
    ]
    interval = interval_of_mean(logs, CONFIDENCE)
    bounds = None if interval is None else (math.exp(interval.low), math.exp(interval.high))
    return Ratio(math.exp(statistics.fmean(logs)), bounds)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two times with its 95 % interval over blocks (None: one block)."""

    value: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        spread = "" if self.interval is None else f" [{self.interval[0]:.2f}, {self.interval[1]:.2f}]"
        return f"{self.value:.2f}{spread}"


@contextmanager
def _started(
    name: str, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Callable[[], dict[Measure, float]]]:
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603  (a command of our own)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )

        def step() -> dict[Measure, float]:
            # A process that has died leaves a broken pipe, or nothing to read.
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
            return cast("dict[Measure, float]", json.loads(line))

        try:
            for _ in range(WARMUP_STEPS):
                step()
            yield step
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                # What was written to a process that is gone cannot be flushed, and need not be.
                with suppress(BrokenPipeError):
                    cast("IO[str]", pipe).close()


def describe_machine() -> dict[str, Any]:
    """Return where and when a measurement was made, and whether the CPU has bf16: the last keys of every result."""
    import torch

    from oelm.record.environment import environment
    from oelm.train.precision import has_native_bf16

    return {
        "environment": environment("cpu", torch.__version__).model_dump(),
        "native_bf16": has_native_bf16("cpu"),
        "date": datetime.now(UTC).date().isoformat(),
    }
