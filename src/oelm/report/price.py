"""The sections about price: the cheapest arm within each margin, and repairs given to both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell
from oelm.analysis.price import Cheapest, SameRepair, cheapest, same_repairs
from oelm.analysis.statistics import Difference
from oelm.report.certificates import named
from oelm.report.document import Column, Line, Section, Table
from oelm.report.numbers import shown_difference, shown_interval, shown_margin, shown_share
from oelm.report.wording import Say


def price_sections(comparison: Comparison, say: Say) -> Iterator[Section]:
    """Tell what each margin takes, and what freezing does where both sides have the repair."""
    if found := cheapest(comparison):
        yield Section("price", say("heading_price"), (say("price_note"),), table=_price_table(comparison, found, say))
    if pairs := same_repairs(comparison):
        table = _repair_table(comparison, pairs, say)
        yield Section("same-repair", say("heading_same_repair"), (say("same_repair_note"),), table=table)


def price_of_all(comparisons: Sequence[Comparison], say: Say) -> Iterator[Section]:
    """Tell what each margin takes in every study that has arms to tell it by."""
    found = [(comparison, item) for comparison in comparisons for item in cheapest(comparison)]
    if found:
        columns = (Column("name", say("study")), *_price_columns(say))
        lines = tuple(
            Line((named(comparison.study.name, item.cell), *_price_fields(comparison, item, say)))
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
        shown_margin(item.margin, comparison.measure, say),
        say(f"price_{item.kind}"),
        item.row.arm if item.row else say("price_none"),
        shown_share(item.share, say),
        *_shown(comparison, item.row.difference if item.row else None, say),
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
            *_shown(comparison, item.repair, say),
            *_shown(comparison, item.freezing, say),
        ))
        for item in pairs
    )  # fmt: skip
    return Table("same-repair", columns, lines)


def _axes(comparison: Comparison) -> tuple[Column, ...]:
    return tuple(Column("axis", axis) for axis in comparison.study.axis_names)


def _values(cell: Cell) -> tuple[str, ...]:
    return tuple(value for _, value in cell)


def _shown(comparison: Comparison, difference: Difference | None, say: Say) -> tuple[str, str]:
    mean = shown_difference(difference.mean, comparison.measure, say) if difference else say("none")
    return mean, shown_interval(difference, comparison.measure, say)
