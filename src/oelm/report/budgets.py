"""The sections about budgets: the cheapest arm within each margin, repairs on both sides, equal time and FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from oelm.analysis.budgets import (
    AsManyParameters,
    AtEqualBudget,
    Budget,
    Cheapest,
    Polyline,
    SameRepair,
    Side,
    at_equal_budgets,
    cheapest,
    mean_line,
    same_repairs,
    with_as_many_parameters,
)
from oelm.analysis.compare import Comparison
from oelm.analysis.convergence import SeedCurves
from oelm.analysis.evidence import Cell
from oelm.analysis.statistics import Difference
from oelm.report.figures import draw_figure, name_the_lines, style_of
from oelm.report.render import Column, Figure, Line, Section, Table
from oelm.report.tables import name_arm
from oelm.report.wording import (
    Language,
    Say,
    format_difference,
    format_interval,
    format_margin,
    format_place,
    format_share,
    wording,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def price_sections(comparison: Comparison, say: Say) -> Iterator[Section]:
    """Show the cheapest arm within each margin, and the effect of freezing if both sides have the repair."""
    if found := cheapest(comparison):
        yield Section("price", say("heading_price"), (say("price_note"),), table=_price_table(comparison, found, say))
    if pairs := same_repairs(comparison):
        table = _repair_table(comparison, pairs, say)
        yield Section("same-repair", say("heading_same_repair"), (say("same_repair_note"),), table=table)


def price_of_all(comparisons: Sequence[Comparison], say: Say) -> Iterator[Section]:
    """Show the cheapest arm within each margin for every study."""
    found = [(comparison, item) for comparison in comparisons for item in cheapest(comparison)]
    if found:
        columns = (Column("name", say("study")), *_price_columns(say))
        lines = tuple(
            Line((name_arm(comparison.study.name, item.cell), *_price_fields(comparison, item, say)))
            for comparison, item in found
        )
        yield Section("price", say("heading_price"), (say("price_note"),), table=Table("price", columns, lines))


def _price_table(comparison: Comparison, found: Sequence[Cheapest], say: Say) -> Table:
    lines = tuple(Line((*_values(item.cell), *_price_fields(comparison, item, say))) for item in found)
    return Table("price", (*_axes(comparison), *_price_columns(say)), lines)


def _price_columns(say: Say) -> tuple[Column, ...]:
    return (
        Column("margin", say("forest_margin")),
        Column("words", say("price_kind")),
        Column("arm", say("price_arm")),
        Column("qk", say("qk_trained")),
        Column("difference", say("step_difference")),
        Column("interval", say("interval")),
    )


def _price_fields(comparison: Comparison, item: Cheapest, say: Say) -> tuple[str, ...]:
    return (
        format_margin(item.margin, comparison.measure, say),
        say(f"price_{item.kind}"),
        item.row.arm if item.row else say("price_none"),
        format_share(item.share, say),
        *format_estimate(comparison, item.row.difference if item.row else None, say),
    )


def _repair_table(comparison: Comparison, pairs: Sequence[SameRepair], say: Say) -> Table:
    columns = (
        *_axes(comparison),
        Column("arm", say("arm")),
        Column("words", say("same_repair_control")),
        Column("difference", say("same_repair_repair", reference=comparison.study.reference)),
        Column("interval", say("interval")),
        Column("freezing", say("same_repair_freezing")),
        Column("bounds", say("interval")),
    )
    lines = tuple(
        Line((
            *_values(item.cell),
            item.frozen,
            item.control,
            *format_estimate(comparison, item.repair, say),
            *format_estimate(comparison, item.freezing, say),
        ))
        for item in pairs
    )  # fmt: skip
    return Table("same-repair", columns, lines)


def _axes(comparison: Comparison) -> tuple[Column, ...]:
    return tuple(Column("axis", axis) for axis in comparison.study.axis_names)


def _values(cell: Cell) -> tuple[str, ...]:
    return tuple(value for _, value in cell)


def format_estimate(comparison: Comparison, difference: Difference | None, say: Say) -> tuple[str, str]:
    """Format a difference and its interval."""
    mean = format_difference(difference.mean, comparison.measure, say) if difference else say("none")
    return mean, format_interval(difference, comparison.measure, say)


BUDGET_WIDTH = 5.8
BUDGET_WORDS: dict[Budget, str] = {
    "tokens": "equal_tokens", "processor": "equal_processor", "seconds": "equal_seconds", "flops": "equal_flops",
}  # fmt: skip
AXES: dict[Budget, str] = {
    "processor": "equal_axis_processor", "seconds": "equal_axis_seconds", "flops": "equal_axis_flops",
}  # fmt: skip
CUT: dict[Side, str] = {"arm": "equal_cut_arm", "reference": "equal_cut_reference"}
BudgetPanel = tuple[str, Budget, list[tuple[str, int, Polyline]]]
"""Title, budget, and the curves of the arms with their places."""


def equal_section(
    comparison: Comparison, curves: Mapping[tuple[str, Cell], SeedCurves], lang: Language
) -> Iterator[Section]:
    """Compare at equal tokens, time and FLOPs, and show where the curves cross."""
    found, alike = at_equal_budgets(comparison, curves), with_as_many_parameters(comparison)
    if not any(item.cut for item in found) and not alike:
        return  # every step costs the same, so equal tokens are an equal budget
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
        Line((
            name_arm(item.arm, item.cell),
            say(BUDGET_WORDS[item.budget]),
            say("percent", value=f"{100 * item.share:.0f}"),
            *format_estimate(comparison, item.difference, say),
            say("none") if item.cut is None else say(CUT[item.cut]),
            say("none") if item.crossing is None else say("percent", value=f"{100 * item.crossing:.0f}"),
        ))
        for item in found
    ]  # fmt: skip
    lines += [
        Line((
            name_arm(item.arm, item.cell), say("equal_parameters", control=item.control), say("none"),
            *format_estimate(comparison, item.difference, say), say("none"), say("none"),
        ))
        for item in alike
    ]  # fmt: skip
    columns = tuple(Column("words" if key == "equal_what" else key, say(key)) for key in keys)
    return Table("equal", columns, tuple(lines))


def _figure(
    comparison: Comparison,
    curves: Mapping[tuple[str, Cell], SeedCurves],
    found: Sequence[AtEqualBudget],
    lang: Language,
) -> Figure | None:
    names = [comparison.study.reference, *(arm.name for arm in comparison.study.arms)]
    order = list(dict.fromkeys(names))
    budgets = list(dict.fromkeys(item.budget for item in found if item.budget != "tokens"))
    panels: list[BudgetPanel] = []
    for cell in comparison.cells:
        for budget in budgets:
            rows = [row for row in comparison.rows if row.cell == cell]
            lines = [(row.arm, order.index(row.arm), mean_line(row, curves.get((row.arm, cell), {}), budget))
                     for row in rows]  # fmt: skip
            if present := [line for line in lines if len(line[2]) > 1]:
                panels.append((format_place(cell), budget, present))
    if not panels:
        return None
    caption = wording(lang)("equal_caption")
    return draw_figure("equal", lambda voice: _draw(panels, len(budgets), voice), caption, lang)


def _draw(panels: Sequence[BudgetPanel], columns: int, say: Say) -> Drawing:
    from matplotlib.figure import Figure as Drawing

    rows = -(-len(panels) // columns)
    figure = Drawing(figsize=(BUDGET_WIDTH, 3.3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row")
    for axes, (title, budget, lines) in zip(grid.flat, panels, strict=False):
        for arm, place, line in lines:
            colour, style = style_of(place)
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
