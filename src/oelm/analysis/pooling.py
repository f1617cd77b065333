"""Pool estimates of one effect from several places (corpora, models) by random effects.

Each place i gives an estimate y_i with standard error s_i and f_i degrees of freedom. The true effects differ between
places with variance tau^2, which is Paule and Mandel's: the one for which

    sum_i w_i (y_i - mu)^2 = k - 1,    w_i = 1 / (s_i^2 + tau^2),    mu = sum w_i y_i / sum w_i,

or 0 if the sum is already smaller at tau^2 = 0. Hartung, Knapp, Sidik and Jonkman's interval is

    mu +- t(k - 1) sqrt(q / sum w_i),    q = max(1, sum w_i (y_i - mu)^2 / (k - 1)),

where q below 1 is raised to 1, because places that happen to agree must not make the interval narrower than their own
errors allow (Knapp and Hartung 2003; Roever, Knapp and Friede 2015). With Paule and Mandel's tau^2, q is therefore
always 1. One place has its own Student interval. The s_i are treated as known, as usual in meta-analysis.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from oelm.analysis.moderation import NO_SPREAD
from oelm.analysis.statistics import Interval

_STEPS = 200
"""Halvings of the bracket of tau^2: more than a float has bits."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and the degrees of freedom of its Student distribution."""

    mean: float
    error: float
    freedom: float

    def interval(self, confidence: float) -> Interval:
        """Return the two-sided interval."""
        from scipy.special import stdtrit  # the quantile alone: scipy.stats takes half a second to import

        half = float(stdtrit(self.freedom, 0.5 + confidence / 2)) * self.error
        return Interval(self.mean - half, self.mean + half)

    def tail(self, distance: float) -> float:
        """Return the one-sided probability of a mean at least so far beyond the true one."""
        from scipy.special import stdtr

        return float(stdtr(self.freedom, -distance / self.error))

    def with_more(self, more: int) -> Estimate:
        """Return the estimate that so many more pairs would give if mean and spread stayed the same."""
        count = self.freedom + 1
        return Estimate(self.mean, self.error * math.sqrt(count / (count + more)), self.freedom + more)


@dataclass(frozen=True)
class Pooled:
    """The effect over all places."""

    estimate: Estimate
    between: float
    """tau: the standard deviation of the true effects between places."""
    places: int


def estimate_of(values: Sequence[float]) -> Estimate | None:
    """Return the estimate of a mean from independent values; None with fewer than two, or where all are equal."""
    if len(values) < 2:
        return None
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    if spread <= NO_SPREAD * max(1.0, abs(mean)):
        return None
    return Estimate(mean, spread / math.sqrt(len(values)), len(values) - 1)


def difference_of(one: Estimate, other: Estimate) -> Estimate:
    """Return `other` minus `one`, of independent samples, with Welch's degrees of freedom."""
    first, second = one.error**2, other.error**2
    freedom = (first + second) ** 2 / (first**2 / one.freedom + second**2 / other.freedom)
    return Estimate(other.mean - one.mean, math.sqrt(first + second), freedom)


def combine(estimates: Sequence[Estimate]) -> Estimate | None:
    """Combine independent estimates of one effect at one place by their inverse variances; None if there are none."""
    if not estimates:
        return None
    weights = [1 / item.error**2 for item in estimates]
    error = 1 / math.sqrt(math.fsum(weights))
    return Estimate(_weighted_mean(estimates, weights), error, sum(item.freedom for item in estimates))


def pool(estimates: Sequence[Estimate]) -> Pooled:
    """Pool estimates by random effects; a single one stays as it is.

    Raise ValueError for an empty sequence.
    """
    if not estimates:
        raise ValueError("there are no estimates to pool")
    if len(estimates) == 1:
        return Pooled(estimates[0], 0.0, 1)
    between = paule_mandel(estimates)
    weights = [1 / (item.error**2 + between) for item in estimates]
    mean = _weighted_mean(estimates, weights)
    # The remaining q is 1 by the choice of tau^2, or below 1 and raised to it.
    error = 1 / math.sqrt(math.fsum(weights))
    return Pooled(Estimate(mean, error, len(estimates) - 1), math.sqrt(between), len(estimates))


def paule_mandel(estimates: Sequence[Estimate]) -> float:
    """Return the variance of the true effects between places, by bisection: the sum of squares falls with it."""
    if _excess(estimates, 0.0) <= 0:
        return 0.0
    means = [item.mean for item in estimates]
    # At tau^2 equal to the sum of squared deviations, every weight is below 1 / tau^2 and the sum below 1 <= k - 1.
    low, high = 0.0, len(means) * statistics.pvariance(means)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _excess(estimates, middle) > 0 else (low, middle)
    return (low + high) / 2


def _excess(estimates: Sequence[Estimate], between: float) -> float:
    weights = [1 / (item.error**2 + between) for item in estimates]
    mean = _weighted_mean(estimates, weights)
    squares = (weight * (item.mean - mean) ** 2 for weight, item in zip(weights, estimates, strict=True))
    return math.fsum(squares) - (len(estimates) - 1)


def _weighted_mean(estimates: Sequence[Estimate], weights: Sequence[float]) -> float:
    return math.fsum(weight * item.mean for weight, item in zip(weights, estimates, strict=True)) / math.fsum(weights)
