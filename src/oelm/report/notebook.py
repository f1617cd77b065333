"""A comparison for notebooks: shown as HTML, as a table of plain values, and as a figure."""

from __future__ import annotations

import html
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from oelm.analysis.compare import Comparison
from oelm.report.render import Table, render_terminal
from oelm.report.study import answer_of, forest_figure
from oelm.report.tables import results
from oelm.report.wording import wording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]


def as_frame(rows: Rows) -> Any:
    """Return rows as a pandas DataFrame if pandas is installed, otherwise as they are."""
    if importlib.util.find_spec("pandas") is None:
        return rows
    import pandas as pd

    return pd.DataFrame(rows)


@dataclass(frozen=True)
class ShownComparison(Comparison):
    """A comparison that notebooks show, with its table and its figure."""

    @classmethod
    def of(cls, comparison: Comparison) -> Self:
        """Return the same comparison with these methods."""
        return cls(**{field.name: getattr(comparison, field.name) for field in fields(comparison)})

    def table(self) -> Any:
        """Return one row per arm and place on the axes: a DataFrame if pandas is installed, else a list of dicts.

        Differences, intervals and the margin are in percent of perplexity, or in points of accuracy that are lost.
        `bound` is the one-sided bound that decides the verdict.
        """
        return as_frame([self._row(row) for row in self.rows])

    def plot(self) -> Figure:
        """Draw the differences with their intervals and the margin; raise UsageError if there is no interval yet."""
        return forest_figure(self, "en")

    def _row(self, row: Any) -> dict[str, Any]:
        scaled, difference = self.measure.scaled, row.difference
        interval, bounds = (difference.interval, difference.bounds) if difference else (None, None)
        return {
            **dict(row.cell),
            "arm": row.arm,
            "seeds": len(row.evidence),
            self.measure.name: row.figure,
            "difference": scaled(difference.mean) if difference else None,
            "low": scaled(interval.low) if interval else None,
            "high": scaled(interval.high) if interval else None,
            "bound": scaled(bounds.high) if bounds else None,
            "margin": scaled(self.margin),
            "verdict": row.verdict,
        }

    def __str__(self) -> str:
        from oelm.console import Console

        page = io.StringIO()  # not a terminal, so there are no colours
        console = Console(file=page, width=120)
        console.print(render_terminal(results(self, wording("en")), self.study.question, console.width))
        return page.getvalue()

    def _repr_html_(self) -> str:
        say = wording("en")
        answers = [answer_of(self, row, say) for row in self.rows if row.verdict is not None]
        sentences = "".join(
            f"<p><b>{html.escape(answer.subject)}: {html.escape(answer.word)}.</b> {html.escape(answer.sentence)}</p>"
            for answer in answers
        )
        title = html.escape(f"{self.study.name}: {self.study.question}")
        return f"<h4>{title}</h4>{sentences}{_html_table(results(self, say))}"


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column.heading)}</th>" for column in table.columns)
    body = "".join(f"<tr>{_cells(line.cells)}</tr>" for line in table.lines)
    notes = "".join(f"<p><small>{html.escape(note)}</small></p>" for note in table.notes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _cells(cells: Sequence[str]) -> str:
    return "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
