"""Declared looks: their bounds, and how often a study that looks early is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from oelm.analysis.statistics import ERROR, PlannedLook, error_spent, looks_of, nominal_levels


def test_the_bounds_are_those_of_the_tables() -> None:
    # Lan-DeMets spending of O'Brien-Fleming type, five equal looks, one-sided 2.5 %: as gsDesign and ldbounds give it.
    levels = nominal_levels((0.2, 0.4, 0.6, 0.8, 1.0), 0.025)
    assert [float(stats.norm.isf(level)) for level in levels] == pytest.approx(
        [4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=2e-4
    )


def test_one_look_spends_all_of_the_error_at_once() -> None:
    (look,) = looks_of(3, ())
    assert (look.count, look.last, look.level) == (3, True, pytest.approx(ERROR))
    assert look.overall(0.0123) == 0.0123


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(2, 30), min_size=2, max_size=4, unique=True).map(sorted))
def test_all_looks_together_spend_the_error(counts: list[int]) -> None:
    shares = tuple(count / counts[-1] for count in counts)
    levels = nominal_levels(shares)
    bounds = stats.norm.isf(levels)
    correlation = [[min(one, other) / np.sqrt(one * other) for other in shares] for one in shares]
    kept = stats.multivariate_normal(np.zeros(len(shares)), correlation, allow_singular=True).cdf(bounds)
    assert 1 - float(kept) == pytest.approx(ERROR, abs=2e-3)
    assert levels[0] == pytest.approx(error_spent(shares[0], ERROR), rel=1e-6)


@pytest.mark.programs
@settings(deadline=None, max_examples=15)
@given(st.floats(0.0005, 0.4), st.sampled_from([1, 2]))
def test_an_overall_error_is_the_one_at_which_its_look_decides(p: float, number: int) -> None:
    look = PlannedLook(number, (3, 6))
    overall = look.overall(p)
    assert nominal_levels((0.5, 1.0), overall)[number - 1] == pytest.approx(p, rel=1e-3)
    assert (overall <= ERROR) == (p <= look.level)


@pytest.mark.parametrize("counts", [(3, 6), (3, 6, 9), (6, 9)])
def test_on_the_margin_a_study_that_looks_early_passes_in_at_most_6_of_100(counts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (40_000, counts[-1]))
    met = np.zeros(noise.shape[0], dtype=bool)
    careless = met.copy()
    for look in looks_of(counts[-1], counts):
        seen = noise[:, : look.count]
        t = seen.mean(1) / (seen.std(1, ddof=1) / np.sqrt(look.count))
        met |= stats.t(look.count - 1).cdf(t) < look.level
        careless |= stats.t(look.count - 1).cdf(t) < ERROR
    assert met.mean() <= 0.06
    assert careless.mean() > 0.07  # judging each look at 5 %
