"""The runs of a study on this machine: one process each, as many at a time as the cores allow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from oelm.errors import BadRecord
from oelm.files import write_atomically
from oelm.record.schema import MetricRecord, RunRecord
from oelm.record.store import METRICS, read_record, run_directory, write_study
from oelm.runner.run import bound
from oelm.spec.run import RunSpec
from oelm.study import Study

POLL_SECONDS = 0.2
PLAIN_SECONDS = 15.0
"""How often a run's place is told where there is no terminal."""


@dataclass
class Slot:
    """A run that is being carried out."""

    run: RunSpec
    directory: Path
    process: subprocess.Popen[bytes]


@dataclass
class Queue:
    """The runs of a study: waiting, at work, done, failed."""

    waiting: list[tuple[RunSpec, Path]]
    done: list[tuple[RunSpec, Path]]
    working: list[Slot] = field(default_factory=list)
    failed: list[tuple[RunSpec, Path]] = field(default_factory=list)


def run_study(study: Study, root: Path, *, slots: int | None = None) -> int:
    """Carry out what is not done of a study; return how many runs failed.

    Ctrl-C asks every run to save itself and waits for them.
    """
    queue = _sorted(study, root)
    write_study(root, study)
    console = Console()
    console.print(f"{study.name}: {study.question}", highlight=False)
    if queue.done:
        console.print(
            f"{len(queue.done)} of {len(queue.done) + len(queue.waiting)} runs are done already.",
            highlight=False,
        )
    with _shown(queue, console) as refresh:
        try:
            while queue.waiting or queue.working:
                _fill(queue, slots)
                _collect(queue, console)
                refresh()
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            _stop(queue, console)
            raise
    return len(queue.failed)


def _sorted(study: Study, root: Path) -> Queue:
    waiting: list[tuple[RunSpec, Path]] = []
    done: list[tuple[RunSpec, Path]] = []
    for declared in study.runs():
        run, _ = bound(declared)
        directory = run_directory(root, run)
        (done if _status(directory) == "complete" else waiting).append((run, directory))
    return Queue(waiting, done)


def _status(directory: Path) -> str | None:
    record = _record(directory)
    return record.status if record else None


def _record(directory: Path) -> RunRecord | None:
    try:
        return read_record(directory)
    except BadRecord:  # not begun, or unreadable: the run itself will say what is wrong when it starts
        return None


def _fill(queue: Queue, slots: int | None) -> None:
    cores = len(os.sched_getaffinity(0))
    while queue.waiting:
        run, directory = queue.waiting[0]
        busy = sum(slot.run.train.threads for slot in queue.working)
        full = len(queue.working) >= slots if slots else queue.working and busy + run.train.threads > cores
        if full:
            return
        queue.waiting.pop(0)
        queue.working.append(Slot(run, directory, _start(run, directory)))


def _start(run: RunSpec, directory: Path) -> subprocess.Popen[bytes]:
    write_atomically(directory / "spec.json", run.model_dump_json(indent=1) + "\n")
    command = [
        sys.executable,
        "-m",
        "oelm",
        "train",
        "--spec",
        str(directory / "spec.json"),
        "--out",
        str(directory),
        "--quiet",
    ]
    with (directory / "stderr.log").open("wb") as errors:
        # A session of its own, so that Ctrl-C reaches the runner alone, which then asks the runs to save themselves.
        return subprocess.Popen(  # noqa: S603  (a command of our own)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )


def _collect(queue: Queue, console: Console) -> None:
    for slot in [slot for slot in queue.working if slot.process.poll() is not None]:
        queue.working.remove(slot)
        if slot.process.returncode == 0:
            queue.done.append((slot.run, slot.directory))
            _say(console, slot, _result(slot.directory))
        else:
            queue.failed.append((slot.run, slot.directory))
            lines = (slot.directory / "stderr.log").read_text(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"exit code {slot.process.returncode}"
            _say(console, slot, f"failed: {reason} (see {slot.directory})")


def _say(console: Console, slot: Slot, words: str) -> None:
    console.print(f"{slot.run.arm}, seed {slot.run.seed}: {words}", markup=False, highlight=False)


def _result(directory: Path) -> str:
    record = _record(directory)
    if record is None or record.result is None:
        return "done"
    loss = record.result.test_perplexity
    speed = f"{record.result.tokens_per_second:,.0f} tokens/s"
    return f"test perplexity {loss:.3f}, {speed}" if loss is not None else f"done, {speed}"


def _stop(queue: Queue, console: Console) -> None:
    console.print("asking the runs to save themselves ...")
    for slot in queue.working:
        slot.process.send_signal(signal.SIGTERM)
    for slot in queue.working:
        slot.process.wait()
    console.print("all saved; the same command continues.")


@contextmanager
def _shown(queue: Queue, console: Console) -> Iterator[Callable[[], None]]:
    """Show a live table on a terminal; elsewhere say every now and then where each run is."""
    if not console.is_terminal:
        last = time.monotonic()

        def say() -> None:
            nonlocal last
            if time.monotonic() - last < PLAIN_SECONDS:
                return
            last = time.monotonic()
            for slot in queue.working:
                step, loss, *_, left = _cells(slot)
                _say(console, slot, f"step {step}, loss {loss}, {left} left" if loss else step)

        yield say
        return
    with Live(_table(queue), console=console, refresh_per_second=4, transient=True) as live:
        yield lambda: live.update(_table(queue))


def _table(queue: Queue) -> Table:
    total = len(queue.waiting) + len(queue.working) + len(queue.done) + len(queue.failed)
    table = Table(title=f"{len(queue.done)}/{total} done", title_justify="left", box=None, pad_edge=False)
    for heading in ("run", "step", "loss", "ppl", "tokens/s", "left"):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for slot in queue.working:
        table.add_row(f"{slot.run.arm}, seed {slot.run.seed}", *_cells(slot))
    return table


def _cells(slot: Slot) -> list[str]:
    metric = _last_metric(slot.directory)
    if metric is None:
        return ["starting", "", "", "", ""]
    steps = slot.run.train.steps
    left = metric.seconds / metric.step * (steps - metric.step)
    return [
        f"{metric.step}/{steps}",
        f"{metric.loss:.3f}",
        f"{2.718281828459045**metric.loss:.2f}",
        f"{metric.tokens_per_second:,.0f}",
        f"{left:.0f} s",
    ]


def _last_metric(directory: Path) -> MetricRecord | None:
    """Return the newest training metric, reading only the end of the file."""
    path = directory / METRICS
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().split(b"\n")[:-1]
    newest = next((line for line in reversed(lines) if b'"train"' in line and line.startswith(b"{")), None)
    return MetricRecord.model_validate_json(newest) if newest else None
