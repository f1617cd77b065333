"""How numbers are written: with as many digits as seeds could repeat, in the reader's language."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from oelm.analysis.evidence import Cell
from oelm.analysis.measure import Judgement, Measure
from oelm.analysis.rows import Row
from oelm.analysis.statistics import Difference, Interval, percent
from oelm.record.environment import is_outside_history
from oelm.record.schema import RunRecord
from oelm.report.wording import Say

ONE_SEED, DIRTY, IMPORTED, UNKNOWN_TREE, OUTSIDE_HISTORY = "†", "‡", "§", "¶", "※"
RUN_MARKS = {
    DIRTY: "mark_dirty",
    UNKNOWN_TREE: "mark_unknown_tree",
    OUTSIDE_HISTORY: "mark_outside_history",
    IMPORTED: "mark_imported",
}
"""The marks that a single run's figures can have, and the sentence that explains each."""


def marks(row: Row) -> str:
    """Return the marks of a row's figures: from one seed, and those of its runs."""
    single = len(row.evidence) == 1 or (row.difference is not None and row.difference.pairs == 1)
    found = "".join(marks_of(item.record) for item in row.evidence)
    return ONE_SEED * single + "".join(mark for mark in RUN_MARKS if mark in found)


def marks_of(record: RunRecord) -> str:
    """Return the marks of a single run's figures, without that of being single."""
    environment = record.environment
    if record.imported:
        return IMPORTED
    unknown = environment.commit is not None and environment.dirty is None
    outside = is_outside_history(environment.commit)
    return DIRTY * bool(environment.dirty) + UNKNOWN_TREE * unknown + OUTSIDE_HISTORY * outside


def mark_notes(text: str, say: Say) -> Iterator[str]:
    """Explain the marks that stand in a text."""
    for mark, key in {ONE_SEED: "mark_one_seed", **RUN_MARKS}.items():
        if mark in text:
            yield say(key, mark=mark)


def shown_figure(value: float | None, measure: Measure, say: Say) -> str:
    """Write a perplexity, or an accuracy in points."""
    return shown_perplexity(value, say) if measure.name == "perplexity" or value is None else f"{value:.2f}"


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


def shown_share(share: float | None, say: Say) -> str:
    """Write a share as percent."""
    return say("none") if share is None else say("percent", value=f"{100 * share:.1f}")


def shown_difference(cost: float, measure: Measure, say: Say) -> str:
    """Write a difference of cost as people read it: percent of perplexity, or points of accuracy won or lost."""
    if measure.name == "perplexity":
        return shown_percent(cost, say)
    return say("points", value=f"{without_minus_zero(-cost):+.2f}")


def shown_interval(difference: Difference | None, measure: Measure, say: Say) -> str:
    """Write the two-sided interval of a difference, if it has one."""
    return shown_bounds(difference.interval if difference else None, measure, say)


def shown_bounds(interval: Interval | None, measure: Measure, say: Say) -> str:
    """Write two bounds of a difference of cost."""
    if interval is None:
        return say("none")
    if measure.name == "perplexity":
        low, high = (f"{percent(bound):+,.1f}" for bound in (interval.low, interval.high))
        return say("range", low=low, high=high)
    return say("range_points", low=f"{-interval.high:+.2f}", high=f"{-interval.low:+.2f}")


def shown_margin(margin: float, measure: Measure, say: Say) -> str:
    """Write the margin: for accuracy there are two, and a margin that tuning has yet to fix is none."""
    if math.isnan(margin):
        return say("none")
    if measure.name == "perplexity":
        return shown_percent(margin, say, signed=False)
    return say("margin_accuracy", points=f"{margin:.3g}")


def shown_crossed(judgement: Judgement, margin: float, measure: Measure, say: Say) -> str:
    """Write the margins that an arm is beyond: of two it may be one."""
    if judgement.relative is None:
        return shown_margin(margin, measure, say)
    points = [say("margin_points", points=f"{margin:.3g}")] if judgement.difference.verdict == "not met" else []
    relative = [say("margin_relative")] if judgement.relative.verdict == "not met" else []
    return say("and").join([*points, *relative])


def shown_verdict(row: Row, say: Say) -> str:
    """Write a verdict, with the seeds that an open one waits for, or the early look that decided."""
    if row.verdict is None:
        return say("reference")
    look = row.difference.look if row.difference else None
    if row.verdict == "undecided" and row.awaits:
        return say("undecided_seeds", pairs=row.awaits[0], seeds=row.awaits[1])
    if row.verdict != "undecided" and look and not look.last:
        return say("verdict_at_look", verdict=say(row.verdict), number=look.number, looks=len(look.seeds))
    return say(row.verdict)


def shown_freedom(freedom: float | None, say: Say) -> str:
    """Write degrees of freedom."""
    return say("none") if freedom is None else f"{freedom:.1f}".removesuffix(".0")


def shown_probability(value: float | None, say: Say) -> str:
    """Write a probability."""
    if value is None:
        return say("none")
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def shown_setting(value: Any) -> str:
    """Write a tuned value."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown_place(cell: Cell) -> str:
    """Write a place on the axes of a study; nothing where it has none."""
    return ", ".join(f"{axis} = {value}" for axis, value in cell)


def shown_bytes(count: int | None, say: Say) -> str:
    """Write a size in mebibytes."""
    return say("none") if not count else f"{count / 2**20:,.1f} MiB"


def shown_seconds(seconds: float | None, say: Say) -> str:
    """Write a duration with the unit that suits it."""
    if seconds is None:
        return say("none")
    if seconds < 120:
        return say("seconds", value=f"{seconds:.1f}")
    return (
        say("minutes", value=f"{seconds / 60:.1f}") if seconds < 7200 else say("hours", value=f"{seconds / 3600:.1f}")
    )


def without_minus_zero(value: float) -> float:
    """Turn minus zero into zero."""
    return value + 0.0
