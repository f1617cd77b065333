from __future__ import annotations

import math
import statistics
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from oelm.analysis.statistics import (
    MARGIN,
    Interval,
    holm,
    interval_of_mean,
    non_inferiority,
    paired_difference,
    percent,
    signed_rank_interval,
)

SIMULATIONS = 2000
some = st.lists(st.floats(-5, 5), min_size=2, max_size=20)


def simulated(rng: np.random.Generator, effect: float, seeds: int) -> list[float]:
    """Draw arms that share a large seed effect and have unequal noise of their own."""
    differences = []
    for _ in range(seeds):
        shared = float(rng.normal(1.5, 0.3))
        arm = shared + effect + float(rng.normal(0, 0.03))
        differences.append(arm - (shared + float(rng.normal(0, 0.01))))
    return differences


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_the_interval_covers_the_true_difference_95_times_in_100(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    effect = 0.1
    covered = 0
    for _ in range(SIMULATIONS):
        interval = paired_difference(simulated(rng, effect, seeds)).interval
        assert interval is not None
        covered += interval.low <= effect <= interval.high
    assert 0.93 <= covered / SIMULATIONS <= 0.97


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("verdict", ["met", "not met"])
def test_on_the_margin_either_verdict_is_wrong_at_most_5_times_in_100(seeds: int, verdict: str) -> None:
    rng = np.random.default_rng(100 + seeds)
    wrong = sum(paired_difference(simulated(rng, MARGIN, seeds)).verdict == verdict for _ in range(SIMULATIONS))
    deviation = math.sqrt(0.05 * 0.95 / SIMULATIONS)
    assert wrong / SIMULATIONS <= 0.05 + 2 * deviation


def test_a_clear_difference_is_decided_either_way() -> None:
    assert paired_difference([0.01, 0.012, 0.009]).verdict == "met"
    assert paired_difference([0.10, 0.11, 0.105]).verdict == "not met"
    assert paired_difference([0.0, 0.1]).verdict == "undecided"


def test_the_interval_is_the_one_of_the_textbook() -> None:
    interval = interval_of_mean([1.0, 2.0, 3.0], 0.95)  # t(2, 0.975) = 4.3027, sd 1
    assert interval is not None
    assert interval.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert interval.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)


def test_the_verdict_rests_on_one_sided_bounds() -> None:
    found = paired_difference([1.0, 2.0, 3.0], margin=3.7)  # t(2, 0.95) = 2.9200
    assert found.bounds is not None
    assert found.bounds.high == pytest.approx(2 + 2.919986 / math.sqrt(3), abs=1e-6)
    assert found.verdict == "met"
    assert found.interval is not None
    assert found.interval.high > 3.7


@given(st.floats(-5, 5))
def test_one_seed_has_no_interval_and_decides_nothing(difference: float) -> None:
    found = paired_difference([difference])
    assert (found.pairs, found.mean) == (1, difference)
    assert (found.interval, found.bounds, found.verdict) == (None, None, "undecided")


@pytest.mark.parametrize("values", [[], [math.nan], [0.1, math.inf]])
def test_what_is_not_a_number_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        paired_difference(values)


@given(some)
def test_the_interval_contains_the_bounds_and_the_mean(values: list[float]) -> None:
    assume(max(values) - min(values) > 1e-6)
    found = paired_difference(values)
    assert found.interval is not None
    assert found.bounds is not None
    assert found.interval.low <= found.bounds.low <= found.mean <= found.bounds.high <= found.interval.high


@given(some)
def test_exchanging_the_arms_mirrors_the_interval(values: list[float]) -> None:
    one, other = interval_of_mean(values, 0.95), interval_of_mean([-value for value in values], 0.95)
    assert one is not None
    assert other is not None
    assert one.low == pytest.approx(-other.high, abs=1e-9)


@given(some, st.floats(-5, 5))
def test_what_all_seeds_share_only_shifts(values: list[float], shift: float) -> None:
    one, other = interval_of_mean(values, 0.95), interval_of_mean([value + shift for value in values], 0.95)
    assert one is not None
    assert other is not None
    assert other.low - one.low == pytest.approx(shift, abs=1e-6)


@given(some, st.floats(0, 0.2))
def test_a_wider_margin_never_turns_met_into_not_met(values: list[float], margin: float) -> None:
    order = ["not met", "undecided", "met"]
    narrow = paired_difference(values, margin=margin).verdict
    wide = paired_difference(values, margin=margin + 0.1).verdict
    assert order.index(wide) >= order.index(narrow)


def test_seeds_that_agree_exactly_have_no_spread_and_decide_nothing() -> None:
    found = paired_difference([0.0, 0.0, 0.0])
    assert (found.interval, found.p_none, found.p_margin) == (None, None, None)
    assert found.verdict == "undecided"
    assert found.more_seeds() is None
    shares = [100 * (706 - 701) / 872, 100 * 711 / 872 - 100 * 706 / 872, 100 * 701 / 872 - 100 * 696 / 872]
    assert len(set(shares)) > 1  # equal but for rounding
    assert paired_difference(shares).interval is None


def test_bounds_that_touch_the_margin_decide_nothing() -> None:
    assert non_inferiority(Interval(0.0, MARGIN), MARGIN) == "undecided"
    assert non_inferiority(Interval(MARGIN, 1.0), MARGIN) == "undecided"


def test_the_margin_is_5_percent_and_percent_survives_overflow() -> None:
    assert percent(MARGIN) == pytest.approx(5.0)
    assert percent(-math.log(2)) == pytest.approx(-50.0)
    assert percent(1e4) == math.inf


def test_the_mean_is_the_plain_one() -> None:
    assert paired_difference([0.1, 0.2, 0.6]).mean == statistics.fmean([0.1, 0.2, 0.6])


def test_the_number_of_seeds_to_add_is_about_what_decides() -> None:
    undecided = [0.02, 0.06, 0.04]
    found = paired_difference(undecided)
    assert found.verdict == "undecided"
    more = found.more_seeds()
    assert more is not None
    again = (undecided * 40)[: 3 + more + 1]
    assert paired_difference(again).verdict != "undecided"


def test_one_of_several_arms_needs_more_seeds_than_one_alone() -> None:
    found = paired_difference([0.02, 0.055, 0.03])
    alone, among = found.more_seeds(), found.more_seeds(1 - 0.05 / 6)
    assert alone is not None
    assert among is not None
    assert (alone, among) == (4, 11)


def test_a_mean_on_the_margin_is_beyond_any_number_of_seeds() -> None:
    assert paired_difference([MARGIN - 0.1, MARGIN + 0.1]).more_seeds() is None
    assert paired_difference([0.1]).more_seeds() is None


def test_holm_is_as_its_book_has_it() -> None:
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert {name: item.p for name, item in found.items()} == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert {name: item.times for name, item in found.items()} == {"a": 3, "c": 2, "b": 1}
    assert holm({}) == {}
    assert holm({"only": 0.04})["only"].p == 0.04


@given(st.dictionaries(st.text(min_size=1), st.floats(0, 1), max_size=8))
def test_holm_never_lowers_a_probability_and_keeps_their_order(values: dict[str, float]) -> None:
    adjusted = {name: item.p for name, item in holm(values).items()}
    assert all(values[name] <= adjusted[name] <= 1 for name in values)
    ordered = sorted(values, key=values.__getitem__)
    assert all(adjusted[one] <= adjusted[other] for one, other in pairwise(ordered))


@pytest.mark.parametrize("count", range(6, 13))
def test_the_robust_interval_holds_what_wilcoxons_test_does_not_reject(count: int) -> None:
    rng = np.random.default_rng(count)
    values = [float(value) for value in rng.normal(0.1, 1, count)]
    interval = signed_rank_interval(values)
    assert interval is not None

    def p(mean: float) -> float:
        return float(scipy_stats.wilcoxon(np.array(values) - mean, method="exact").pvalue)

    for end, inside in ((interval.low, 1e-6), (interval.high, -1e-6)):
        assert p(end + inside) > 0.05
        assert p(end - inside) <= 0.05


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_fewer_than_six_pairs_have_no_robust_interval(count: int) -> None:
    assert signed_rank_interval([float(value) for value in range(count)]) is None
