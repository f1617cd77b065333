"""The section of a study's report that compares arms at an equal budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from oelm.analysis.compare import Comparison
from oelm.analysis.convergence import Curves
from oelm.analysis.equal import (
    AsManyParameters,
    AtEqualBudget,
    Budget,
    Line,
    Side,
    at_equal_budgets,
    mean_line,
    with_as_many_parameters,
)
from oelm.analysis.evidence import Cell
from oelm.analysis.statistics import Difference
from oelm.report.certificates import named
from oelm.report.document import Column, Figure, Section, Table
from oelm.report.document import Line as TableLine
from oelm.report.figures import drawn, look, name_the_lines
from oelm.report.numbers import shown_difference, shown_interval, shown_place
from oelm.report.wording import Language, Say, wording

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

WIDTH = 5.8
WORDS: dict[Budget, str] = {
    "tokens": "equal_tokens", "processor": "equal_processor", "seconds": "equal_seconds", "flops": "equal_flops",
}  # fmt: skip
AXES: dict[Budget, str] = {
    "processor": "equal_axis_processor", "seconds": "equal_axis_seconds", "flops": "equal_axis_flops",
}  # fmt: skip
CUT: dict[Side, str] = {"arm": "equal_cut_arm", "reference": "equal_cut_reference"}
Panel = tuple[str, Budget, list[tuple[str, int, Line]]]
"""Title, budget, and the curves of the arms with their places."""


def equal_section(
    comparison: Comparison, curves: Mapping[tuple[str, Cell], Curves], lang: Language
) -> Iterator[Section]:
    """Compare at equal tokens, time and FLOPs, draw the curves over time and FLOPs, and name where they cross."""
    found, alike = at_equal_budgets(comparison, curves), with_as_many_parameters(comparison)
    if not any(item.cut for item in found) and not alike:
        return  # every step costs the same, so equal tokens are equal in everything
    say = wording(lang)
    yield Section(
        "equal",
        say("heading_equal"),
        (say("equal_note"),),
        table=_table(comparison, found, alike, say),
        figure=_figure(comparison, curves, found, lang),
    )


def _table(
    comparison: Comparison, found: Sequence[AtEqualBudget], alike: Sequence[AsManyParameters], say: Say
) -> Table:
    keys = ("arm", "equal_what", "equal_share", "equal_difference", "interval", "equal_cut", "equal_crossing")
    lines = [
        TableLine((
            named(item.arm, item.cell),
            say(WORDS[item.budget]),
            say("percent", value=f"{100 * item.share:.0f}"),
            *_shown(comparison, item.difference, say),
            say("none") if item.cut is None else say(CUT[item.cut]),
            say("none") if item.crossing is None else say("percent", value=f"{100 * item.crossing:.0f}"),
        ))
        for item in found
    ]  # fmt: skip
    lines += [
        TableLine((
            named(item.arm, item.cell), say("equal_parameters", control=item.control), say("none"),
            *_shown(comparison, item.difference, say), say("none"), say("none"),
        ))
        for item in alike
    ]  # fmt: skip
    columns = tuple(Column("words" if key == "equal_what" else key, say(key)) for key in keys)
    return Table("equal", columns, tuple(lines))


def _shown(comparison: Comparison, difference: Difference, say: Say) -> tuple[str, str]:
    measure = comparison.measure
    return shown_difference(difference.mean, measure, say), shown_interval(difference, measure, say)


def _figure(
    comparison: Comparison,
    curves: Mapping[tuple[str, Cell], Curves],
    found: Sequence[AtEqualBudget],
    lang: Language,
) -> Figure | None:
    names = [comparison.study.reference, *(arm.name for arm in comparison.study.arms)]
    order = list(dict.fromkeys(names))
    budgets = list(dict.fromkeys(item.budget for item in found if item.budget != "tokens"))
    panels: list[Panel] = []
    for cell in comparison.cells:
        for budget in budgets:
            rows = [row for row in comparison.rows if row.cell == cell]
            lines = [(row.arm, order.index(row.arm), mean_line(row, curves.get((row.arm, cell), {}), budget))
                     for row in rows]  # fmt: skip
            if present := [line for line in lines if len(line[2]) > 1]:
                panels.append((shown_place(cell), budget, present))
    if not panels:
        return None
    svg, png = drawn(lambda voice: _draw(panels, len(budgets), voice), lang)
    return Figure("equal", svg, png, wording(lang)("equal_caption"))


def _draw(panels: Sequence[Panel], columns: int, say: Say) -> Drawing:
    from matplotlib.figure import Figure as Drawing

    rows = -(-len(panels) // columns)
    figure = Drawing(figsize=(WIDTH, 3.3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row")
    for axes, (title, budget, lines) in zip(grid.flat, panels, strict=False):
        for arm, place, line in lines:
            colour, style = look(place)
            label = f" {arm}" if arm.startswith("_") else arm  # matplotlib hides labels that start with an underscore
            axes.plot(*zip(*line, strict=True), color=colour, linestyle=style, linewidth=1.6, label=label)
        ends = sorted(loss for _, _, line in lines for x, loss in line if x >= line[-1][0] / 5)
        axes.set_ylim(ends[0] - 0.05 * (ends[-1] - ends[0]), ends[-1])
        axes.set_xlabel(say(AXES[budget]))
        axes.grid(alpha=0.25, linewidth=0.6, color="#808080")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(title, fontsize=10, loc="left")
    grid[0, 0].set_ylabel(say("plot_loss"))
    name_the_lines(figure)
    return figure
