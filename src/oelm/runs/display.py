"""Show the runs of a study: one table for the runner and for `oelm status`, and the same as JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oelm.console import Console
from oelm.record.folder import RunFolder
from oelm.record.record import perplexity
from oelm.runs.board import Board, BoardEntry
from oelm.spec.run import ExamplesSpec

PLAIN_SECONDS = 8.0
"""How often progress is printed where there is no terminal."""
_GAP = 2
"""Spaces between two columns."""
_WORDS = ("run", "fingerprint", "stage", "state", "device")
"""Columns with text; the others have numbers."""
_SHOWN_STATES = ("running", "failed", "interrupted")
_COLOURS = {
    "failed": "red",
    "interrupted": "yellow",
    "running": "green",
    "queued": "cyan",
    "complete": "dim",
    "diverged": "yellow",
}


def describe_entry(entry: BoardEntry) -> dict[str, Any]:
    """Return the present state of a run as plain data."""
    metric = RunFolder(entry.directory).last_metric("train") if entry.directory else None
    record = entry.record
    steps = (record.spec if record else entry.run).train.steps  # epochs become steps when a run is resolved
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
        # For a complete run the record's figure, which covers the whole run and is the one that reports compare.
        "tokens_per_second": result.tokens_per_second if result else metric.tokens_per_second if metric else None,
        "seconds_left": left,
        "device": entry.lock.device if entry.lock else None,
        "host": entry.lock.host if entry.lock else None,
        "job": entry.job.id if entry.job else None,
        "job_state": str(entry.job) if entry.job else None,
        "directory": str(entry.directory) if entry.directory else None,
        "failure": explain_failure(entry),
    }


def explain_failure(entry: BoardEntry) -> str | None:
    """Return in one line why a run failed; None if it did not."""
    if entry.trouble:
        return entry.trouble
    if entry.record is None or entry.record.error is None:
        return None
    kind = "" if entry.record.failure in (None, "error") else f"{entry.record.failure}: "
    return kind + entry.record.last_words


@dataclass(frozen=True)
class RunTable:
    """A table with one line for each run. Columns that do not fit the width are left out, and named below the table.

    The width is read when the table is drawn, so a live table follows its terminal.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    expendable: tuple[str, ...]
    """Columns that may be left out, the least important first. Empty columns are left out before them, unnamed."""
    elsewhere: str
    """What shows the columns that are left out."""

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """Draw the columns that fit the width."""
        kept = self._choose_columns(options.max_width)
        grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for heading in kept:
            # If the rest is still too wide, the name is wrapped; numbers and states stay readable at a glance.
            justify: Literal["left", "right"] = "left" if heading in _WORDS else "right"
            grid.add_column(heading, justify=justify, no_wrap=heading != "run", overflow="fold")
        for row in self.rows:
            grid.add_row(*(cell for heading, cell in zip(self.headings, row, strict=True) if heading in kept))
        yield grid
        if missed := [heading for heading in self.headings if heading not in kept and any(self._cells(heading))]:
            yield Text(f"left out: {', '.join(missed)} ({self.elsewhere} shows them)", style="dim")

    def _choose_columns(self, width: int) -> list[str]:
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


def render_board(entries: Sequence[BoardEntry], *, every: bool = False) -> RunTable:
    """Return a table of the runs that are running or need attention, or of all runs."""
    judged = "accuracy" if entries and all(_is_labelled(entry) for entry in entries) else "perplexity"
    return RunTable(
        headings=("run", "state", "step", "loss", judged, "tokens/s", "left", "device"),
        rows=tuple(_cells(entry) for entry in entries if every or entry.state in _SHOWN_STATES),
        # Quality repeats the loss and the time left repeats the step; people look at the table for these two.
        expendable=("device", "tokens/s", "loss", "step", "left", judged),
        elsewhere="a wider terminal or oelm status --json",
    )


def _cells(entry: BoardEntry) -> tuple[Text, ...]:
    now = describe_entry(entry)
    where = f"{now['device']} on {now['host']}" if entry.lock and not entry.lock.is_here else now["device"] or ""
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
        Text(format_duration(now["seconds_left"])),
        Text(where),
    )


def _quality(entry: BoardEntry, now: dict[str, Any]) -> str:
    """Format the quality of a run: on test when complete, on validation for a tuning run, else the last metric."""
    if _is_labelled(entry):
        accuracy = now["test_accuracy"]
        newest = RunFolder(entry.directory).last_metric("val") if entry.directory else None
        if accuracy is None and newest is not None:
            accuracy = newest.accuracy
        return "" if accuracy is None else f"{accuracy:.2%}"
    running = entry.state == "running" and now["loss"] is not None
    tried = perplexity(now["val_loss"]) if entry.trial and now["val_loss"] is not None else None
    found = perplexity(now["loss"]) if running else tried or now["test_perplexity"]
    return f"{found:.2f}" if found is not None and math.isfinite(found) else ""


def _is_labelled(entry: BoardEntry) -> bool:
    data = entry.run.data
    return isinstance(data, ExamplesSpec) or data.probe is not None


def format_duration(seconds: float | None) -> str:
    """Format a duration: 45 s, 12 min, 3.5 h."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def live_display(board: Board, console: Console, waiting: Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Yield a function that updates the display.

    A terminal shows a live table; elsewhere plain lines are printed from time to time. `waiting` returns what the
    runner is waiting for, or an empty text.
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
                    now = describe_entry(entry)
                    where = "starting"
                    if now["loss"] is not None:
                        where = f"step {now['step']}/{now['steps']}, loss {now['loss']:.3f}"
                    left = f", {format_duration(now['seconds_left'])} left" if now["seconds_left"] is not None else ""
                    console.print(f"{entry.name}: {where}{left}")
            if wait := waiting():
                console.print(wait)

        yield say
        return

    def draw() -> RenderableType:
        return Group(
            Text(f"{board.study.name}: {board.progress}"), render_board(board.entries), Text(waiting(), style="dim")
        )

    with Live(draw(), console=console, refresh_per_second=4, transient=True) as live:
        yield lambda: live.update(draw())


def _finite(plain: dict[str, Any]) -> dict[str, Any]:
    """Replace infinite numbers and NaN by None, since JSON has neither."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}


def as_json(board: Board) -> str:
    """Return the state of a study as JSON."""
    return json.dumps(
        {
            "study": board.study.name,
            "stage": board.stage.name,
            "progress": board.progress,
            "done": board.count("complete", "diverged"),
            "total": len(board.entries),
            "runs": [_finite(describe_entry(entry)) for entry in board.entries],
            "unreadable": list(board.troubles),
            "slurm_unreachable": board.slurm.trouble,
        },
        indent=1,
        allow_nan=False,
        default=str,
    )


def describe_result(entry: BoardEntry) -> str:
    """Return the result of a run in one line."""
    result = entry.record.result if entry.record else None
    if result is None:
        return explain_failure(entry) or entry.state
    figure = f"test perplexity {result.test_perplexity:.3f}, " if result.test_perplexity is not None else ""
    if result.test_accuracy is not None:
        figure = f"test accuracy {result.test_accuracy:.2%}, "
    if entry.trial:  # tuning chooses by validation; seeing test results would tempt people to choose by them
        figure = f"validation loss {result.val_loss:.4f}, "
    return f"{figure}{result.tokens_per_second:,.0f} tokens/s"
