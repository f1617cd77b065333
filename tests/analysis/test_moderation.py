"""Variances of like arms: limma's closed form, and how often the intervals that rest on them are right."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq
from scipy.special import polygamma

from oelm.analysis.statistics import (
    LEAST_ARMS,
    LEAST_PAIRS,
    Prior,
    correlation_of_variances,
    estimate_priors,
    fit_prior,
    is_marked,
    paired_difference,
    skewness_of,
    trigamma_inverse,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    """The script that makes the table of docs/statistics.md."""
    spec = importlib.util.spec_from_file_location("coverage_script", ROOT / "scripts" / "coverage.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def arms(rng: np.random.Generator, count: int, seeds: int, scale: float = 1.0) -> dict[str, dict[int, float]]:
    return {str(arm): dict(enumerate(map(float, rng.normal(0.1, scale, seeds)))) for arm in range(count)}


@given(st.floats(1e-5, 1e6))
def test_the_inverse_of_trigamma_is_its_inverse(value: float) -> None:
    assert float(polygamma(1, trigamma_inverse(value))) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(("freedom", "deviation", "own"), [(4.0, 0.03, 2), (10.0, 2.0, 5), (3.0, 1.0, 8)])
def test_the_prior_that_variances_were_drawn_from_is_found_again(freedom: float, deviation: float, own: int) -> None:
    rng = np.random.default_rng(0)
    drawn = stats.invgamma(freedom / 2, scale=freedom * deviation**2 / 2).rvs(20_000, random_state=rng)
    seen = drawn * rng.chisquare(own, drawn.size) / own
    found, variance = fit_prior(list(seen), [own] * drawn.size)
    assert found == pytest.approx(freedom, rel=0.1)
    assert math.sqrt(variance) == pytest.approx(deviation, rel=0.03)


def test_the_moments_are_those_of_limma() -> None:
    # limma::fitFDist(c(1, 40, 0.05, 9, 250), 2), with digamma(1) = -Euler's gamma and trigamma(1) = pi^2 / 6.
    logs = np.log([1, 40, 0.05, 9, 250]) + np.euler_gamma
    half = brentq(lambda x: polygamma(1, x) - (logs.var(ddof=1) - math.pi**2 / 6), 1e-3, 1e3)
    freedom, variance = fit_prior([1, 40, 0.05, 9, 250], [2] * 5)
    assert freedom == pytest.approx(2 * half)
    assert variance == pytest.approx(math.exp(logs.mean() + float(polygamma(0, half)) - math.log(half)))


def test_variances_that_differ_less_than_by_chance_are_one_variance() -> None:
    assert fit_prior([1.0, 1.1, 0.9, 1.05], [5] * 4) == (math.inf, pytest.approx(1.0125))


def test_the_moderated_interval_is_students_with_the_moderated_variance() -> None:
    values = [0.10, 0.13, 0.07, 0.12]
    found = paired_difference(values, prior=Prior(freedom=6.0, deviation=0.05))
    variance = (6 * 0.05**2 + 3 * np.var(values, ddof=1)) / 9
    expected = stats.t(9, loc=np.mean(values), scale=math.sqrt(variance / 4)).interval(0.95)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(expected)
    assert found.p_none == pytest.approx(2 * stats.t(9).sf(np.mean(values) / math.sqrt(variance / 4)))
    assert found.plain is not None
    plain = stats.t(3, loc=np.mean(values), scale=stats.sem(values)).interval(0.95)
    assert (found.plain.low, found.plain.high) == pytest.approx(plain)


def test_without_a_prior_the_interval_is_the_plain_one() -> None:
    found = paired_difference([0.10, 0.13, 0.07])
    assert found.interval == found.plain
    assert stats.ttest_1samp([0.10, 0.13, 0.07], 0.0).pvalue == pytest.approx(found.p_none)


@pytest.mark.parametrize(("count", "seeds"), [(LEAST_ARMS - 1, 9), (6, LEAST_PAIRS - 1), (0, 3), (1, 3)])
def test_too_few_arms_or_seeds_have_no_prior(count: int, seeds: int) -> None:
    rng = np.random.default_rng(1)
    assert estimate_priors(arms(rng, count, seeds)) == {}
    assert set(estimate_priors(arms(rng, LEAST_ARMS, LEAST_PAIRS))) == {"0", "1", "2"}


def test_an_arm_without_spread_is_no_evidence_of_little_noise() -> None:
    found = arms(np.random.default_rng(2), 4, 3)
    with_constant = estimate_priors({**found, "still": {0: 0.1, 1: 0.1 + 1e-16, 2: 0.1}})
    assert with_constant == estimate_priors(found)


def test_arms_that_are_copies_of_one_another_know_no_more_than_one() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 1, 6)
    copies = {str(arm): dict(enumerate(map(float, noise + arm))) for arm in range(5)}
    assert correlation_of_variances([list(arm.values()) for arm in copies.values()]) == pytest.approx(1.0)
    prior = estimate_priors(copies)["0"]
    assert prior.moderate(1.0, 5) == (pytest.approx(1.0, rel=1), pytest.approx(5.0))


def test_an_arm_that_varies_far_more_than_its_like_keeps_its_own_variance() -> None:
    found = arms(np.random.default_rng(4), 5, 6)
    found["wild"] = {seed: 10 * value for seed, value in found["0"].items()}
    priors = estimate_priors(found)
    assert priors["wild"].moderate(10.0, 5)[1] == 5
    assert priors["1"].moderate(0.5, 5)[1] > 5


@given(st.floats(0.01, 10), st.integers(2, 20), st.floats(0.5, 50), st.floats(0.01, 10))
def test_a_moderated_deviation_is_between_its_own_and_the_prior(
    deviation: float, freedom: int, prior_freedom: float, prior_deviation: float
) -> None:
    moderated, total = Prior(prior_freedom, prior_deviation).moderate(deviation, freedom)
    assert min(deviation, prior_deviation) * (1 - 1e-9) <= moderated <= max(deviation, prior_deviation) * (1 + 1e-9)
    assert freedom <= total <= freedom + prior_freedom


def test_where_noise_is_skewed_no_arm_passes_for_quieter_than_its_class() -> None:
    base = [0.0, 0.01, -0.01, 0.005, 0.0, 0.2]
    found = {str(arm): dict(enumerate(np.roll(base, arm) + 0.001 * arm)) for arm in range(4)}
    found["quiet"] = dict(enumerate([0.0, 0.01, -0.01, 0.005, 0.0, 0.002]))
    priors = estimate_priors(found)
    assert is_marked(priors["quiet"].skewness)
    assert priors["quiet"].moderate(0.007, 5)[0] == priors["quiet"].least > 0.02


def test_the_skewness_of_one_arm_is_scipys_and_takes_six() -> None:
    values = [0.0, 0.1, 0.3, 0.2, 0.9, 0.15, 0.05]
    assert skewness_of(values) == pytest.approx(float(stats.skew(values, bias=False)))
    assert skewness_of(values[:5]) is None


def test_the_nine_frozen_seeds_are_skewed(coverage: ModuleType) -> None:
    noise = coverage.nine_frozen_seeds()
    assert noise.size == 9
    assert float(stats.skew(noise, bias=False)) > 1


@pytest.mark.programs
@pytest.mark.parametrize("seeds", [3, 6, 9])
def test_under_normal_noise_intervals_cover_and_met_is_rarely_false(coverage: ModuleType, seeds: int) -> None:
    found = coverage.rates(coverage.normal, 6, seeds, studies=300)
    assert 0.93 <= found.covered <= 0.97
    assert found.false_met <= 0.06


@pytest.mark.programs
def test_under_skewed_noise_intervals_of_six_seeds_cover_and_met_is_rarely_false(coverage: ModuleType) -> None:
    draw = coverage.skewed(coverage.nine_frozen_seeds())
    found = coverage.rates(draw, 6, 6, studies=300)
    assert found.covered >= 0.91
    assert found.false_met <= 0.08
    alone = coverage.rates(draw, 1, 6, studies=1000)
    assert alone.false_met > 0.12  # why like arms are asked


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tables_of_the_documentation_are_what_the_script_prints(coverage: ModuleType) -> None:
    text = (ROOT / "docs" / "statistics.md").read_text()
    for line in (*coverage.table(), *coverage.looks_table()):
        assert line in text
