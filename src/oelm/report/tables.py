"""The table of results: formatted once, shown in the terminal, in Markdown and on the page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oelm.analysis.compare import Comparison, Row
from oelm.analysis.statistics import Difference, percent
from oelm.report.wording import Say

if TYPE_CHECKING:
    import rich.console
    import rich.table
    import rich.text

ONE_SEED, DIRTY = "†", "‡"


@dataclass(frozen=True)
class Column:
    """What stands in a column, and the heading it stands under."""

    name: str
    heading: str

    @property
    def numeric(self) -> bool:
        """Whether the cells are numbers."""
        return self.name not in ("arm", "verdict")


@dataclass(frozen=True)
class Line:
    """The formatted cells of one row, in the order of the columns."""

    row: Row
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """The results as text, ready to be set in any medium."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]


def results(comparison: Comparison, say: Say) -> Table:
    """Format a comparison: one line per arm and place on the axes."""
    margin = shown_percent(comparison.margin, say, signed=False)
    reference = comparison.study.reference
    columns = (
        *(Column("axis", axis) for axis in comparison.study.axes),
        Column("arm", say("arm")),
        Column("seeds", say("seeds")),
        Column("perplexity", say(f"perplexity_{comparison.judged}")),
        Column("difference", say("difference", reference=reference)),
        Column("interval", say("interval")),
        Column("verdict", say("verdict", margin=margin)),
        Column("trained", say("trained")),
        Column("frozen", say("frozen")),
        Column("speed", say("speed")),
        Column("floor", say("floor")),
    )
    lines = tuple(Line(row, tuple(_cells(row, say))) for row in comparison.rows)
    return Table(columns, lines, tuple(_notes(comparison, say)))


def _cells(row: Row, say: Say) -> Iterable[str]:
    none = say("none")
    yield from (value for _, value in row.cell)
    yield row.arm
    yield str(len(row.evidence))
    yield shown_perplexity(row.perplexity, say) + marks(row)
    yield shown_percent(row.difference.mean, say) if row.difference else none
    yield shown_interval(row.difference, say)
    yield say(row.verdict or "reference")
    yield f"{row.parameters.trainable:,}" if row.parameters else none
    yield f"{row.parameters.frozen:,}" if row.parameters else none
    yield f"{row.tokens_per_second:,.0f}" if row.tokens_per_second else none
    yield shown_perplexity(row.floor, say)


def _notes(comparison: Comparison, say: Say) -> Iterable[str]:
    yield say("table_note")
    every = "".join(marks(row) for row in comparison.rows)
    if ONE_SEED in every:
        yield say("mark_one_seed", mark=ONE_SEED)
    if DIRTY in every:
        yield say("mark_dirty", mark=DIRTY)
    for field, values in comparison.mixed.items():
        yield say("mixed", field=field, values=", ".join(values))


def marks(row: Row) -> str:
    """Return the marks of a row's figures: from one seed, from a dirty tree."""
    single = len(row.evidence) == 1 or (row.difference is not None and row.difference.pairs == 1)
    return ONE_SEED * single + DIRTY * row.dirty


def shown_perplexity(value: float | None, say: Say) -> str:
    """Write a perplexity with as many digits as seeds could ever repeat."""
    if value is None:
        return say("none")
    if not math.isfinite(value):
        return "∞"
    return f"{value:.2f}" if value < 100 else f"{value:,.1f}"


def shown_percent(log_ratio: float, say: Say, *, signed: bool = True) -> str:
    """Write a difference of log perplexity as percent of perplexity."""
    value = percent(log_ratio)
    return say("percent", value=f"{value:+,.1f}" if signed else f"{value:.3g}")


def shown_interval(difference: Difference | None, say: Say) -> str:
    """Write the two-sided interval of a difference, if it has one."""
    if difference is None or difference.interval is None:
        return say("none")
    low, high = (f"{percent(bound):+,.1f}" for bound in (difference.interval.low, difference.interval.high))
    return say("range", low=low, high=high)


def terminal(table: Table, title: str, width: int) -> rich.console.Group:
    """Set the table for a terminal of some width.

    Where it does not fit upright it is laid on its side, in as many parts as it takes: no number is cut off.
    """
    from rich.console import Group
    from rich.text import Text

    parts = [_upright(table)]
    size = len(table.lines)
    while size and not all(_natural_width(part) <= width for part in parts):
        parts = [_on_side(table, table.lines[at : at + size]) for at in range(0, len(table.lines), size)]
        size -= 1
    return Group(Text(title, "bold"), *parts, Text("\n".join(table.notes), "dim"))


def _upright(table: Table) -> rich.table.Table:
    """Set one line per arm, with headings of several words on several lines."""
    shown = _plain_table()
    for column in table.columns:
        heading = "\n".join(column.heading.rsplit(" ", 1)) if column.numeric else column.heading
        shown.add_column(_text(heading), justify="right" if column.numeric else "left")
    for line in table.lines:
        shown.add_row(*(_text(cell, line, column) for cell, column in zip(line.cells, table.columns, strict=True)))
    return shown


def _on_side(table: Table, lines: Sequence[Line]) -> rich.table.Table:
    """Set one column per arm."""
    shown = _plain_table(show_header=False)
    for justify in ("left", *["right"] * len(lines)):
        shown.add_column(justify="left" if justify == "left" else "right", overflow="fold")
    for place, column in enumerate(table.columns):
        cells = (_text(line.cells[place], line, column) for line in lines)
        shown.add_row(_text(column.heading), *cells, end_section=column.name == "arm")
    return shown


def _plain_table(*, show_header: bool = True) -> rich.table.Table:
    import rich.box
    import rich.table

    return rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_header=show_header)


def _text(cell: str, line: Line | None = None, column: Column | None = None) -> rich.text.Text:
    """Return a cell, a verdict in its colour. As Text, not str: a name is never read as markup."""
    from rich.text import Text

    colours = {"met": "green", "not met": "red", "undecided": "yellow", None: "dim"}
    return Text(cell, colours[line.row.verdict] if line and column and column.name == "verdict" else "")


def _natural_width(shown: rich.table.Table) -> int:
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=10_000)
    return Measurement.get(console, console.options, shown).maximum


def markdown(table: Table) -> str:
    """Set the table in Markdown."""
    return "\n".join([
        _markdown_line(column.heading for column in table.columns),
        _markdown_line(("---:" if column.numeric else ":---" for column in table.columns), literal=True),
        *(_markdown_line(line.cells) for line in table.lines),
    ])  # fmt: skip


def _markdown_line(cells: Iterable[str], *, literal: bool = False) -> str:
    return "| " + " | ".join(cell if literal else escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, no HTML, no new cell."""
    flat = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|#~" else letter for letter in flat)
