"""What an answer says about noise: the look, the interval that decides, skewness, and what could have been seen."""

from __future__ import annotations

from collections.abc import Iterator

from oelm.analysis.measure import Measure
from oelm.analysis.moderation import is_marked
from oelm.analysis.power import reach_of
from oelm.analysis.rows import Row
from oelm.report.numbers import shown_bounds, shown_difference, shown_freedom
from oelm.report.wording import Say


def noise_sentences(row: Row, measure: Measure, say: Say) -> Iterator[str]:
    """Say at which look an arm was judged, what its interval rests on, and whether its noise is skewed."""
    difference = row.difference
    if difference is None or difference.interval is None:
        return
    if look := difference.look:
        level = say("percent", value=f"{100 * look.level:.2g}")
        yield say(
            "look_at", number=look.number, looks=len(look.seeds), seeds=look.count, all=look.seeds[-1], level=level
        )
    if prior := difference.prior:
        rests_on = {
            "freedom": shown_freedom(difference.freedom, say),
            "plain": shown_bounds(difference.plain, measure, say),
        }
        own = difference.freedom == difference.pairs - 1
        key = "interval_own" if own else "interval_moderated" if prior.arms else "interval_declared"
        yield say(key, arms=prior.arms, **rests_on)
    if difference.skewness is not None and is_marked(difference.skewness):
        robust, skewness = difference.robust, f"{difference.skewness:+.1f}"
        key = "noise_skewed" if robust else "noise_skewed_few"
        yield say(key, skewness=skewness, robust=shown_bounds(robust, measure, say))


def power_sentences(row: Row, measure: Measure, say: Say) -> Iterator[str]:
    """Say what the comparison of one arm could and could not have seen."""
    reach = reach_of(row.difference)
    if reach and row.difference:
        ends = {name: shown_difference(getattr(reach, name), measure, say) for name in ("met", "not_met", "nonzero")}
        yield say(
            "power_line" if measure.name == "perplexity" else "power_line_accuracy", pairs=row.difference.pairs, **ends
        )
