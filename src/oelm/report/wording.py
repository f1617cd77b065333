"""The words and numbers of reports: texts of one TOML file per language, and how figures are written in them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from oelm.analysis.evidence import Cell, Judgement, Measure, Row
from oelm.analysis.statistics import Difference, Interval, percent
from oelm.errors import UnknownName
from oelm.record.record import RunRecord, is_outside_history

Language = Literal["en", "zh"]
HTML_LANGUAGES: dict[str, str] = {"en": "en", "zh": "zh-CN"}
TEXTS = Path(__file__).parent / "text"
Say = Callable[..., str]
"""Takes the key of a text and the values of its placeholders, and returns the text."""


@cache
def read_messages(language: str, folder: Path = TEXTS) -> Mapping[str, str]:
    """Return key -> text of a language. The tables of the file only group the keys, so they are flattened."""
    if language not in get_args(Language):
        raise UnknownName("language", language, get_args(Language))
    tables = tomllib.loads((folder / f"{language}.toml").read_text(encoding="utf-8"))
    return {key: text for table in tables.values() for key, text in table.items()}


def wording(language: str, folder: Path = TEXTS) -> Say:
    """Return the function that looks up a text in a language and fills in its placeholders."""
    texts = read_messages(language, folder)

    def say(key: str, **values: Any) -> str:
        return texts[key].format(**values)

    return say


ONE_SEED, DIRTY, IMPORTED, UNKNOWN_TREE, OUTSIDE_HISTORY = "†", "‡", "§", "¶", "※"
RUN_MARKS = {
    DIRTY: "mark_dirty",
    UNKNOWN_TREE: "mark_unknown_tree",
    OUTSIDE_HISTORY: "mark_outside_history",
    IMPORTED: "mark_imported",
}
"""The marks of a single run's figures, and the key of the text that explains each."""


def marks(row: Row) -> str:
    """Return the marks of a row's figures: the one for a single seed, and those of its runs."""
    single = len(row.evidence) == 1 or (row.difference is not None and row.difference.pairs == 1)
    found = "".join(marks_of(item.record) for item in row.evidence)
    return ONE_SEED * single + "".join(mark for mark in RUN_MARKS if mark in found)


def marks_of(record: RunRecord) -> str:
    """Return the marks of a single run's figures, without the one for a single seed."""
    environment = record.environment
    if record.imported:
        return IMPORTED
    unknown = environment.commit is not None and environment.dirty is None
    outside = is_outside_history(environment.commit)
    return DIRTY * bool(environment.dirty) + UNKNOWN_TREE * unknown + OUTSIDE_HISTORY * outside


def mark_notes(text: str, say: Say) -> Iterator[str]:
    """Explain the marks in a text."""
    for mark, key in {ONE_SEED: "mark_one_seed", **RUN_MARKS}.items():
        if mark in text:
            yield say(key, mark=mark)


def format_figure(value: float | None, measure: Measure, say: Say) -> str:
    """Format a perplexity, or an accuracy in points."""
    return format_perplexity(value, say) if measure.name == "perplexity" or value is None else f"{value:.2f}"


def format_perplexity(value: float | None, say: Say) -> str:
    """Format a perplexity with as many digits as seeds could reproduce."""
    if value is None:
        return say("none")
    if not math.isfinite(value):
        return "∞"
    return f"{value:.2f}" if value < 100 else f"{value:,.1f}"


def format_percent(log_ratio: float, say: Say, *, signed: bool = True) -> str:
    """Format a difference of log perplexity as percent of perplexity."""
    value = percent(log_ratio)
    return say("percent", value=f"{value:+,.1f}" if signed else f"{value:.3g}")


def format_share(share: float | None, say: Say) -> str:
    """Format a share as percent."""
    return say("none") if share is None else say("percent", value=f"{100 * share:.1f}")


def format_difference(cost: float, measure: Measure, say: Say) -> str:
    """Format a difference of cost: percent of perplexity, or points of accuracy gained or lost."""
    if measure.name == "perplexity":
        return format_percent(cost, say)
    return say("points", value=f"{without_minus_zero(-cost):+.2f}")


def format_interval(difference: Difference | None, measure: Measure, say: Say) -> str:
    """Format the two-sided interval of a difference, if it has one."""
    return format_bounds(difference.interval if difference else None, measure, say)


def format_bounds(interval: Interval | None, measure: Measure, say: Say) -> str:
    """Format two bounds of a difference of cost."""
    if interval is None:
        return say("none")
    if measure.name == "perplexity":
        low, high = (f"{percent(bound):+,.1f}" for bound in (interval.low, interval.high))
        return say("range", low=low, high=high)
    return say("range_points", low=f"{-interval.high:+.2f}", high=f"{-interval.low:+.2f}")


def format_margin(margin: float, measure: Measure, say: Say) -> str:
    """Format the margin. Accuracy has two; a margin that tuning has not fixed yet is a dash."""
    if math.isnan(margin):
        return say("none")
    if measure.name == "perplexity":
        return format_percent(margin, say, signed=False)
    return say("margin_accuracy", points=f"{margin:.3g}")


def format_crossed(judgement: Judgement, margin: float, measure: Measure, say: Say) -> str:
    """Format the margins that an arm exceeds, which may be one of two."""
    if judgement.relative is None:
        return format_margin(margin, measure, say)
    points = [say("margin_points", points=f"{margin:.3g}")] if judgement.difference.verdict == "not met" else []
    relative = [say("margin_relative")] if judgement.relative.verdict == "not met" else []
    return say("and").join([*points, *relative])


def format_verdict(row: Row, say: Say) -> str:
    """Format a verdict, with the seeds that it waits for, or the early look that decided."""
    if row.verdict is None:
        return say("reference")
    look = row.difference.look if row.difference else None
    if row.verdict == "undecided" and row.awaits:
        return say("undecided_seeds", pairs=row.awaits[0], seeds=row.awaits[1])
    if row.verdict != "undecided" and look and not look.last:
        return say("verdict_at_look", verdict=say(row.verdict), number=look.number, looks=len(look.seeds))
    return say(row.verdict)


def format_freedom(freedom: float | None, say: Say) -> str:
    """Format degrees of freedom."""
    return say("none") if freedom is None else f"{freedom:.1f}".removesuffix(".0")


def format_probability(value: float | None, say: Say) -> str:
    """Format a probability."""
    if value is None:
        return say("none")
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_setting(value: Any) -> str:
    """Format a tuned value."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_place(cell: Cell) -> str:
    """Format a place on the axes of a study; empty if there are no axes."""
    return ", ".join(f"{axis} = {value}" for axis, value in cell)


def format_bytes(count: int | None, say: Say) -> str:
    """Format a size in mebibytes."""
    return say("none") if not count else f"{count / 2**20:,.1f} MiB"


def format_seconds(seconds: float | None, say: Say) -> str:
    """Format a duration with the unit that suits it."""
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
