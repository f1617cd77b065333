"""Runs as people see them: one table for the runner and for whoever looks on from another terminal."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oelm.record.schema import MetricRecord, perplexity
from oelm.record.store import METRICS, newest_metrics
from oelm.runner.queue import Board, Entry
from oelm.spec.data import ExamplesSpec

PLAIN_SECONDS = 15.0
"""How often a run's place is told where there is no terminal."""
_GAP = 2
"""Blanks between two columns."""
_WORDS = ("run", "fingerprint", "stage", "state", "device")
"""Columns of words; the others hold numbers."""
_SHOWN_STATES = ("running", "failed", "interrupted")
_COLOURS = {
    "failed": "red",
    "interrupted": "yellow",
    "running": "green",
    "queued": "cyan",
    "complete": "dim",
    "diverged": "yellow",
}


def facts(entry: Entry) -> dict[str, Any]:
    """Return what is known of a run at this moment, as plain data."""
    metric = last_metric(entry.directory) if entry.directory else None
    record = entry.record
    steps = (record.spec if record else entry.run).train.steps  # epochs become steps when a run is bound to its data
    running = entry.state == "running"
    left = metric.seconds / metric.step * (steps - metric.step) if metric and metric.step and running else None
    result = record.result if record else None
    return {
        "run": entry.name,
        "arm": entry.run.arm,
        "seed": entry.run.seed,
        "state": entry.state,
        "step": metric.step if metric else record.step if record else 0,
        "steps": steps,
        "loss": metric.loss if metric else None,
        "trial": list(entry.trial),
        "val_loss": result.val_loss if result else None,
        "test_perplexity": result.test_perplexity if result and not entry.trial else None,
        "test_accuracy": result.test_accuracy if result and not entry.trial else None,
        # Of a run that is done the record's, which is that of the whole run and the one that reports compare.
        "tokens_per_second": result.tokens_per_second if result else metric.tokens_per_second if metric else None,
        "seconds_left": left,
        "device": entry.claim.device if entry.claim else None,
        "host": entry.claim.host if entry.claim else None,
        "job": entry.job.id if entry.job else None,
        "job_state": str(entry.job) if entry.job else None,
        "directory": str(entry.directory) if entry.directory else None,
        "failure": reason(entry),
    }


def reason(entry: Entry) -> str | None:
    """Say in one line why a run has not gone well."""
    if entry.trouble:
        return entry.trouble
    if entry.record is None or entry.record.error is None:
        return None
    kind = "" if entry.record.failure in (None, "error") else f"{entry.record.failure}: "
    return kind + entry.record.last_words


@dataclass(frozen=True)
class RunTable:
    """Runs, one line each, with their names whole: columns that the width does not hold are left out, and named below.

    What is left out is decided when the table is drawn, so a live one follows its terminal.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    expendable: tuple[str, ...]
    """What may be left out, the least important first. Columns in which nothing stands go before them, unnamed."""
    elsewhere: str
    """What shows what is left out."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw what the width holds."""
        kept = self._kept(options.max_width)
        grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for heading in kept:
            # Where even the rest is too wide the name is broken: numbers and states are read at a glance or not at all.
            justify: Literal["left", "right"] = "left" if heading in _WORDS else "right"
            grid.add_column(heading, justify=justify, no_wrap=heading != "run", overflow="fold")
        for row in self.rows:
            grid.add_row(*(cell for heading, cell in zip(self.headings, row, strict=True) if heading in kept))
        yield grid
        if missed := [heading for heading in self.headings if heading not in kept and any(self._cells(heading))]:
            yield Text(f"left out: {', '.join(missed)} ({self.elsewhere} shows them)", style="dim")

    def _kept(self, width: int) -> list[str]:
        kept = {
            heading: max(cell_len(heading), *(cell.cell_len for cell in self._cells(heading)), 0)
            for heading in self.headings
        }
        for heading in sorted(self.expendable, key=lambda heading: any(self._cells(heading))):
            if sum(kept.values()) + _GAP * (len(kept) - 1) <= width:
                break
            kept.pop(heading, None)
        return list(kept)

    def _cells(self, heading: str) -> list[Text]:
        place = self.headings.index(heading)
        return [row[place] for row in self.rows]


def table(entries: Sequence[Entry], *, every: bool = False) -> RunTable:
    """Draw the runs at work and those that need someone's attention, or all of them."""
    judged = "accuracy" if entries and all(_is_labelled(entry) for entry in entries) else "perplexity"
    return RunTable(
        headings=("run", "state", "step", "loss", judged, "tokens/s", "left", "device"),
        rows=tuple(_cells(entry) for entry in entries if every or entry.state in _SHOWN_STATES),
        # Quality says what a loss says, and the time left what a step says; those two are why one looks.
        expendable=("device", "tokens/s", "loss", "step", "left", judged),
        elsewhere="a wider terminal or oelm status --json",
    )


def _cells(entry: Entry) -> tuple[Text, ...]:
    now = facts(entry)
    where = f"{now['device']} on {now['host']}" if entry.claim and not entry.claim.is_here else now["device"] or ""
    if entry.state == "queued":
        where = str(now["job_state"])
    done = now["step"] == now["steps"]
    return (
        Text(entry.name),
        Text(entry.state, style=_COLOURS.get(entry.state, "")),
        Text(str(now["steps"]) if done else f"{now['step']}/{now['steps']}"),
        Text("" if now["loss"] is None else f"{now['loss']:.3f}"),
        Text(_quality(entry, now)),
        Text(f"{now['tokens_per_second']:,.0f}" if now["tokens_per_second"] else ""),
        Text(duration(now["seconds_left"])),
        Text(where),
    )


def _quality(entry: Entry, now: dict[str, Any]) -> str:
    """Write how good a run is: on the test split when it is done, a trial on validation; before as was last said."""
    if _is_labelled(entry):
        accuracy = now["test_accuracy"]
        if accuracy is None and entry.directory is not None:
            accuracy = _accuracy(entry.directory)
        return "" if accuracy is None else f"{accuracy:.2%}"
    running = entry.state == "running" and now["loss"] is not None
    tried = perplexity(now["val_loss"]) if entry.trial and now["val_loss"] is not None else None
    found = perplexity(now["loss"]) if running else tried or now["test_perplexity"]
    return f"{found:.2f}" if found is not None and math.isfinite(found) else ""


def _is_labelled(entry: Entry) -> bool:
    data = entry.run.data
    return isinstance(data, ExamplesSpec) or data.probe is not None


def _accuracy(directory: Path) -> float | None:
    """Return what validation last said of a run on labelled text."""
    newest = last_metric(directory, "val")
    return newest.accuracy if newest else None


def duration(seconds: float | None) -> str:
    """Write a time to wait: 45 s, 12 min, 3.5 h."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def shown(board: Board, console: Console, waiting: Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Yield a function that brings the display up to date.

    A live table on a terminal; elsewhere plain lines every now and then. `waiting` says what, if anything, is being
    waited for.
    """
    if not console.is_terminal:
        last = time.monotonic()

        def say() -> None:
            nonlocal last
            if time.monotonic() - last < PLAIN_SECONDS:
                return
            last = time.monotonic()
            for entry in board.entries:
                if entry.state == "running":
                    now = facts(entry)
                    where = "starting"
                    if now["loss"] is not None:
                        where = f"step {now['step']}/{now['steps']}, loss {now['loss']:.3f}"
                    left = f", {duration(now['seconds_left'])} left" if now["seconds_left"] is not None else ""
                    console.print(f"{entry.name}: {where}{left}", markup=False, highlight=False)
            if wait := waiting():
                console.print(wait, markup=False, highlight=False)

        yield say
        return

    def drawn() -> RenderableType:
        return Group(Text(f"{board.study.name}: {board.progress}"), table(board.entries), Text(waiting(), style="dim"))

    with Live(drawn(), console=console, refresh_per_second=4, transient=True) as live:
        yield lambda: live.update(drawn())


def last_metric(directory: Path, kind: Literal["train", "val"] = "train") -> MetricRecord | None:
    """Return the newest metric of a kind, reading only the end of the file."""
    try:
        with (directory / METRICS).open("rb") as file:
            return newest_metrics(file).get(kind)
    except FileNotFoundError:
        return None


def _finite(plain: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: a figure beyond the floats is left out."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}


def as_json(board: Board) -> str:
    """Write a study's state for machines."""
    return json.dumps(
        {
            "study": board.study.name,
            "stage": board.stage.name,
            "progress": board.progress,
            "done": board.count("complete", "diverged"),
            "total": len(board.entries),
            "runs": [_finite(facts(entry)) for entry in board.entries],
            "unreadable": list(board.troubles),
            "slurm_unreachable": board.slurm.trouble,
        },
        indent=1,
        allow_nan=False,
        default=str,
    )


def result_of(entry: Entry) -> str:
    """Say what came out of a run."""
    result = entry.record.result if entry.record else None
    if result is None:
        return reason(entry) or entry.state
    figure = f"test perplexity {result.test_perplexity:.3f}, " if result.test_perplexity is not None else ""
    if result.test_accuracy is not None:
        figure = f"test accuracy {result.test_accuracy:.2%}, "
    if entry.trial:  # chosen by validation; who sees the test split while tuning begins to choose by it
        figure = f"validation loss {result.val_loss:.4f}, "
    return f"{figure}{result.tokens_per_second:,.0f} tokens/s"
