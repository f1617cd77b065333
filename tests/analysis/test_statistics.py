from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.analysis.statistics import (
    MARGIN,
    Interval,
    interval_of_mean,
    non_inferiority,
    paired_difference,
    percent,
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
def test_the_mean_lies_inside_and_the_bounds_inside_the_interval(values: list[float]) -> None:
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


def test_seeds_that_agree_exactly_have_an_interval_of_no_width() -> None:
    assert paired_difference([0.25, 0.25]).interval == Interval(0.25, 0.25)


def test_bounds_that_touch_the_margin_decide_nothing() -> None:
    assert non_inferiority(Interval(0.0, MARGIN), MARGIN) == "undecided"
    assert non_inferiority(Interval(MARGIN, 1.0), MARGIN) == "undecided"


def test_the_margin_is_5_percent_and_percent_survives_overflow() -> None:
    assert percent(MARGIN) == pytest.approx(5.0)
    assert percent(-math.log(2)) == pytest.approx(-50.0)
    assert percent(1e4) == math.inf


def test_the_mean_is_the_plain_one() -> None:
    assert paired_difference([0.1, 0.2, 0.6]).mean == statistics.fmean([0.1, 0.2, 0.6])
