"""Variances of like arms, shrunk towards a common prior: the moderated t of Smyth (2004).

Three seeds say little about an arm's variance, and the arms of a study that are alike say more together. With the
variance s^2 of an arm's paired differences on f = n - 1 degrees of freedom, and a prior variance s0^2 that counts as d0
degrees, the interval uses

    (d0 s0^2 + f s^2) / (d0 + f)    on d0 + f degrees of freedom.

d0 and s0 come from the arms of one class at one place on the axes, by the moments of log s^2 (`fitFDist` of limma):
where the arms' variances differ more than chance explains, d0 is small and little is shrunk. Our arms differ from
limma's genes in four ways, and each has its remedy (docs/decisions/030):

- All differences share the reference, so that their variances are correlated: like arms look more alike than they are,
  and together know less than the sum of their degrees. Both are corrected by the mean squared correlation r of the
  differences, taken a fifth nearer to 1 than it is estimated, and d0 + f is at most the degrees that the arms have
  together, sum(f) / (1 + (k - 1) r).
- Where the noise is skewed, a few seeds without an outlier have a mean too low and a variance far too low. So where the
  skewness of the class is marked, no arm's variance is taken for less than the mean one of its class, nor than twice
  their geometric mean if that is less: one arm that varies far more than the others does not speak for them.
- An arm that varies more than the others is often the interesting one. If its variance exceeds theirs by more than
  that of four in five like arms would (an F test at 20 %), it keeps its own variance and degrees.
- There are few arms: with fewer than three of a class, or fewer than three seeds, there is no prior.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

LEAST_ARMS = 3
LEAST_PAIRS = 3
MARKED_SKEWNESS = 0.4
"""Beyond it, on either side, noise counts as skewed."""
NO_SPREAD = 1e-9
"""What rounding leaves between differences that are equal: shares of right answers are counts over counts."""
_UNLIKE = 0.2
"""The level of the F test beyond which an arm counts as one that varies more than the others of its class."""
_CAUTION = 0.2
"""How far the estimated correlation of variances is taken towards 1: with three seeds it is often too low."""


@dataclass(frozen=True)
class Prior:
    """What is known about the variance of an arm before looking at the arm itself."""

    freedom: float
    """The degrees of freedom d0 that it counts as; infinite where like arms differ no more than chance explains."""
    deviation: float
    """s0, the standard deviation of paired differences."""
    limit: float = math.inf
    """The most degrees of freedom that prior and arm may have together."""
    arms: int = 0
    """How many arms of the study it was estimated from; 0: declared."""
    others: float = math.inf
    """The geometric mean deviation of the other arms of the class: the arm must not vary much more to be like them."""
    others_freedom: int = 0
    """Their degrees of freedom."""
    skewness: float | None = None
    """Of the noise of these arms; None: not known."""
    least: float = 0.0
    """The least standard deviation that is used for an arm; not zero where the skewness is marked."""

    def moderate(self, deviation: float, freedom: float) -> tuple[float, float]:
        """Return an arm's standard deviation and degrees of freedom, moderated unless it varies more than most."""
        if not self._covers(deviation, freedom):
            return max(deviation, self.least), freedom
        total = max(freedom, min(self.freedom + freedom, self.limit))
        variance = ((total - freedom) * self.deviation**2 + freedom * deviation**2) / total
        return max(math.sqrt(variance), self.least), total

    def _covers(self, deviation: float, freedom: float) -> bool:
        from scipy.special import fdtri

        others, others_freedom = (self.others, self.others_freedom) if self.arms else (self.deviation, self.freedom)
        if not others_freedom:
            return True
        return deviation <= others * math.sqrt(float(fdtri(freedom, others_freedom, 1 - _UNLIKE)))


def is_marked(skewness: float | None) -> bool:
    """Whether noise is so skewed that intervals must mind it."""
    return skewness is not None and abs(skewness) > MARKED_SKEWNESS


def estimate_priors(differences: Mapping[str, Mapping[int, float]]) -> dict[str, Prior]:
    """Return the prior of each arm of a class: arm -> seed -> paired difference; none with too few of either.

    Arms without any spread are left out: they say that something is wrong, not that noise is small.
    """
    names = [name for name, arm in differences.items() if len(arm) >= LEAST_PAIRS and has_spread(list(arm.values()))]
    usable = [differences[name] for name in names]
    shared = set.intersection(*map(set, usable)) if usable else set()
    on_shared = [[arm[seed] for seed in sorted(shared)] for arm in usable]
    if len(usable) < LEAST_ARMS or len(shared) < LEAST_PAIRS or not all(map(has_spread, on_shared)):
        return {}
    prior = _of_class([list(arm.values()) for arm in usable], correlation_of_variances(on_shared))
    freedoms = [len(arm) - 1 for arm in usable]
    logs = log_variances([statistics.variance(arm.values()) for arm in usable], freedoms)
    return {
        name: replace(
            prior,
            others=math.exp((sum(logs) - log) / (len(logs) - 1) / 2),
            others_freedom=sum(freedoms) - freedom,
        )
        for name, log, freedom in zip(names, logs, freedoms, strict=True)
    }


def _of_class(arms: Sequence[Sequence[float]], alike: float) -> Prior:
    variances = [statistics.variance(arm) for arm in arms]
    freedoms = [len(arm) - 1 for arm in arms]
    freedom, variance = fit_prior(variances, freedoms, alike)
    together = sum(freedoms) / (1 + (len(arms) - 1) * alike)
    prior = Prior(freedom, math.sqrt(variance), together, len(arms))
    scales = [max(prior.moderate(statistics.stdev(arm), len(arm) - 1)[0], prior.deviation) for arm in arms]
    skewness = statistics.fmean(third_moment(arm) / scale**3 for arm, scale in zip(arms, scales, strict=True))
    common = min(statistics.fmean(variances), 2 * math.exp(statistics.fmean(log_variances(variances, freedoms))))
    return replace(prior, skewness=skewness, least=math.sqrt(common) if is_marked(skewness) else 0.0)


def fit_prior(variances: Sequence[float], freedoms: Sequence[int], alike: float = 0.0) -> tuple[float, float]:
    """Return d0 and s0^2 by the moments of the log variances, as `fitFDist` of limma does for independent ones.

    log s^2 - digamma(f / 2) + log(f / 2) has mean log s0^2 - digamma(d0 / 2) + log(d0 / 2) and variance
    trigamma(f / 2) + trigamma(d0 / 2). A correlation `alike` between the variances takes its part from the former.
    """
    from scipy.special import digamma, polygamma

    logs = log_variances(variances, freedoms)
    by_chance = statistics.fmean(float(polygamma(1, freedom / 2)) for freedom in freedoms)
    beyond = statistics.variance(logs) - (1 - alike) * by_chance
    if beyond <= 0:
        return math.inf, statistics.fmean(variances)
    freedom = 2 * trigamma_inverse(beyond)
    return freedom, math.exp(statistics.fmean(logs) + float(digamma(freedom / 2)) - math.log(freedom / 2))


def log_variances(variances: Sequence[float], freedoms: Sequence[int]) -> list[float]:
    """Return log variances without the bias that few degrees of freedom give to the logarithm."""
    from scipy.special import digamma

    return [
        math.log(variance) - float(digamma(freedom / 2)) + math.log(freedom / 2)
        for variance, freedom in zip(variances, freedoms, strict=True)
    ]


def trigamma_inverse(value: float) -> float:
    """Return x with trigamma(x) = value, by limma's iteration of Newton, which rises to x from below."""
    from scipy.special import polygamma

    if value < 1e-6:
        return 1 / value
    if value > 1e7:
        return 1 / math.sqrt(value)
    x = 0.5 + 1 / value
    for _ in range(50):
        current = float(polygamma(1, x))
        change = current * (1 - current / value) / float(polygamma(2, x))
        x += change
        if -change / x < 1e-10:
            break
    return x


def correlation_of_variances(differences: Sequence[Sequence[float]]) -> float:
    """Estimate the mean correlation of the arms' variances: the mean squared correlation of their differences.

    A squared correlation r^2 on m = n - 1 degrees is 1 / m on average where there is none, hence (m r^2 - 1) / (m - 1).
    """
    squares = [statistics.correlation(one, other) ** 2 for one, other in combinations(differences, 2)]
    freedom = len(differences[0]) - 1
    estimated = (freedom * statistics.fmean(squares) - 1) / (freedom - 1)
    return 1 - (1 - min(1.0, max(0.0, estimated))) * (1 - _CAUTION)


def third_moment(values: Sequence[float]) -> float:
    """Return the unbiased estimate of the third central moment; it takes three values."""
    count, mean = len(values), statistics.fmean(values)
    return count / ((count - 1) * (count - 2)) * math.fsum((value - mean) ** 3 for value in values)


def has_spread(values: Sequence[float]) -> bool:
    """Whether values differ by more than rounding."""
    return len(values) > 1 and statistics.stdev(values) > NO_SPREAD * max(1.0, abs(statistics.fmean(values)))


def skewness_of(values: Sequence[float]) -> float | None:
    """Return the skewness of one arm's differences; None with fewer than six, which say nothing about it."""
    if len(values) < 6 or not has_spread(values):
        return None
    return third_moment(values) / statistics.stdev(values) ** 3
