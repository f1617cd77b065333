"""Fresh processes that take turns, one step each, so that whatever else the machine does meets all of them alike.

A process takes one step for every line it reads and answers with the seconds it took. It ends when its input does, so
that none is left behind, whatever becomes of the one that started it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Literal, cast

from oelm.errors import RunFailed

Clock = Literal["cpu", "wall"]
Turn = dict[str, dict[Clock, float]]
"""One step of everybody: participant -> seconds by either clock."""
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


def answer_turns(step: Callable[[], None]) -> None:
    """In a participant: take one step for every line that comes in, and say how long it took."""
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}), flush=True)


@contextmanager
def _started(
    name: str, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Callable[[], dict[Clock, float]]]:
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603  (a command of our own)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )

        def step() -> dict[Clock, float]:
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
            return cast("dict[Clock, float]", json.loads(line))

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
