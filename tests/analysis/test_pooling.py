from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from oelm.analysis.statistics import Estimate, combine_estimates, difference_of, estimate_of, paule_mandel, pool

KACKER = (
    [61.00, 61.40, 62.21, 62.30, 62.34, 62.60, 62.70, 62.84, 65.90],
    [0.2025, 1.2100, 0.0900, 0.2025, 0.3844, 0.5625, 0.0676, 0.0225, 1.8225],
)
"""Means and their variances from Kacker, Metrologia 41 (2004) 132; table 1 gives Paule and Mandel's tau as 0.8399."""

finite = st.floats(-1.0, 1.0)
errors = st.floats(0.01, 0.5)
estimates = st.builds(Estimate, finite, errors, st.integers(1, 20))
several = st.lists(estimates, min_size=2, max_size=8)


def test_the_variance_between_places_is_the_published_one_of_kackers_example() -> None:
    found = pool([Estimate(mean, math.sqrt(variance), 9) for mean, variance in zip(*KACKER, strict=True)])
    assert found.between == pytest.approx(0.8399, abs=6e-5)
    assert (found.estimate.mean, found.estimate.error) == (
        pytest.approx(62.4076, abs=1e-4), pytest.approx(0.3380, abs=1e-4),
    )  # fmt: skip


def independently(items: list[Estimate]) -> tuple[float, float, float]:
    """Return tau^2, the mean and the half-width, with numpy and scipy's root finder, q written out in full."""
    y, v = np.array([item.mean for item in items]), np.array([item.error**2 for item in items])

    def q(tau2: float) -> float:
        w = 1 / (v + tau2)
        mu = np.average(y, weights=w)
        return float(w @ (y - mu) ** 2)

    k = len(items)
    tau2 = 0.0 if q(0.0) <= k - 1 else float(optimize.brentq(lambda t: q(t) - (k - 1), 0.0, 100.0, xtol=1e-14))
    w = 1 / (v + tau2)
    spread = max(1.0, q(tau2) / (k - 1))
    half = stats.t.ppf(0.975, k - 1) * math.sqrt(spread / w.sum())
    return tau2, float(np.average(y, weights=w)), float(half)


@given(several)
def test_pooling_agrees_with_an_independent_computation(items: list[Estimate]) -> None:
    tau2, mean, half = independently(items)
    found = pool(items)
    interval = found.estimate.interval(0.95)
    assert paule_mandel(items) == pytest.approx(tau2, abs=1e-8)
    assert found.estimate.mean == pytest.approx(mean, abs=1e-7)
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=1e-6)


@given(several, st.randoms())
def test_the_order_of_the_places_does_not_matter(items: list[Estimate], random: Any) -> None:
    shuffled = list(items)
    random.shuffle(shuffled)
    one, other = pool(items).estimate, pool(shuffled).estimate
    assert (one.mean, one.error) == (pytest.approx(other.mean), pytest.approx(other.error))


@given(st.lists(finite, min_size=2, max_size=9, unique=True))
def test_one_place_has_its_own_students_interval(values: list[float]) -> None:
    own = estimate_of(values)
    if own is None:  # all but equal
        return
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    found = pool([own]).estimate.interval(0.95)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


@given(several, st.floats(1.0, 10.0))
def test_more_spread_between_places_never_makes_the_interval_narrower(items: list[Estimate], factor: float) -> None:
    apart = [Estimate(factor * item.mean, item.error, item.freedom) for item in items]
    assert pool(apart).estimate.error >= pool(items).estimate.error * (1 - 1e-9)


def test_places_that_disagree_have_a_wider_interval_and_ones_that_agree_no_narrower_one_than_their_errors() -> None:
    agree = pool([Estimate(0.1, 0.01, 5)] * 3)
    apart = pool([Estimate(mean, 0.01, 5) for mean in (0.0, 0.1, 0.2)])
    assert agree.between == 0
    assert agree.estimate.error == pytest.approx(0.01 / math.sqrt(3))
    assert apart.between > 0.09
    assert apart.estimate.error > 5 * agree.estimate.error


@pytest.mark.programs
def test_the_pooled_interval_covers_the_mean_of_all_corpora_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        true = 0.1 + 0.05 * draw.standard_normal(4)
        samples = [estimate_of(list(mean + 0.03 * draw.standard_normal(6))) for mean in true]
        interval = pool([item for item in samples if item]).estimate.interval(0.95)
        hits += interval.low <= 0.1 <= interval.high
    assert 0.93 <= hits / 2000 <= 0.98


def test_a_difference_of_two_means_is_welchs() -> None:
    draw = np.random.default_rng(1)
    one, other = draw.normal(0.1, 0.02, 4), draw.normal(0.3, 0.1, 7)
    first, second = estimate_of(list(one)), estimate_of(list(other))
    assert first is not None
    assert second is not None
    found = difference_of(first, second)
    expected = stats.ttest_ind(other, one, equal_var=False)
    interval, reference = found.interval(0.95), expected.confidence_interval(0.95)
    assert found.freedom == pytest.approx(expected.df)
    assert (interval.low, interval.high) == (pytest.approx(reference.low), pytest.approx(reference.high))


def test_values_without_spread_have_no_estimate() -> None:
    assert estimate_of([0.1]) is None
    assert estimate_of([0.1, 0.1, 0.1]) is None
    with pytest.raises(ValueError, match="no estimates"):
        pool([])


def test_more_pairs_narrow_an_estimate_as_if_mean_and_spread_stayed() -> None:
    values = [0.1, 0.2, 0.3, 0.4]
    own = estimate_of(values)
    assert own is not None
    more = own.with_more(12)
    assert more.error == pytest.approx(np.std(values, ddof=1) / 4)
    assert (more.mean, more.freedom) == (own.mean, 15)


def test_two_estimates_of_one_place_are_weighted_by_their_precision() -> None:
    found = combine_estimates([Estimate(0.02, 0.01, 4), Estimate(0.5, 1.0, 2)])
    assert found is not None
    assert found.mean == pytest.approx((0.02 / 0.01**2 + 0.5) / (1 / 0.01**2 + 1))
    assert (found.error, found.freedom) == (pytest.approx(1 / math.sqrt(1 / 0.01**2 + 1)), 6)
    assert combine_estimates([]) is None
