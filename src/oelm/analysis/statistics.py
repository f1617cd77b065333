"""Statistics of paired seeds: intervals, non-inferiority, early looks, and pooling over corpora.

Cost is log perplexity for language (nats) and lost accuracy for classification (points): more is worse. Arms share
seeds, hence data order and all initial weights that the method does not change. So the unit of evidence is the
difference d_s = cost(arm, s) - cost(reference, s) of one seed, and with n seeds the plain interval is

    mean(d) +- t(n - 1) sd(d) / sqrt(n).

Where a study has several arms of one class, their variances are shrunk towards a common value: this moderated interval
decides, and reports show the plain one next to it.

Non-inferiority asks whether the arm loses less than a margin: *met* if the upper one-sided bound is below it,
*not met* if the lower one is above it, else *undecided*. One seed has no spread and decides nothing. Nor do seeds with
equal differences, such as those of two arms that both guess.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Literal

from oelm.record.record import perplexity

# Shrink the variances of arms of one class towards a common prior: the moderated t of Smyth (2004).
#
# Three seeds say little about one arm's variance; all arms of a class together say more. With the variance s^2 of an
# arm's paired differences on f = n - 1 degrees of freedom, and a prior variance s0^2 worth d0 degrees, the interval
# uses
#
#     (d0 s0^2 + f s^2) / (d0 + f)    on d0 + f degrees of freedom.
#
# d0 and s0 come from the arms of one class at one place on the axes, by the moments of log s^2 (`fitFDist` of limma):
# where the variances differ more than chance explains, d0 is small and little is shrunk. Our arms differ from limma's
# genes in four ways (docs/decisions/030):
#
# - All differences share the reference, so their variances are correlated: arms look more alike than they are, and
#   together they know less than the sum of their degrees. Both are corrected by the mean squared correlation r of the
#   differences, moved a fifth of the way from its estimate to 1. d0 + f is at most sum(f) / (1 + (k - 1) r).
# - With skewed noise, a few seeds without an outlier have a mean too low and a variance far too low. So where the
#   skewness of the class is marked, the variance used for an arm is at least the mean one of its class, or twice their
#   geometric mean if that is less (so that a single arm with a huge variance does not decide for all).
# - An arm that varies more than the others is often the interesting one. It keeps its own variance and degrees if its
#   variance exceeds theirs in an F test at 20 %.
# - With fewer than three arms of a class, or fewer than three seeds, there is no prior.

LEAST_ARMS = 3
LEAST_PAIRS = 3
MARKED_SKEWNESS = 0.4
"""Beyond it, on either side, noise counts as skewed."""
NO_SPREAD = 1e-9
"""Relative spread that rounding alone can cause: accuracies are ratios of counts."""
_UNLIKE = 0.2
"""Level of the F test that finds an arm which varies more than the others of its class."""
_CAUTION = 0.2
"""How far the estimated correlation of variances is moved towards 1: with three seeds it is often too low."""


@dataclass(frozen=True)
class Prior:
    """What is known about the variance of an arm before looking at the arm itself."""

    freedom: float
    """Its degrees of freedom d0; infinite where the arms differ no more than chance explains."""
    deviation: float
    """s0, the standard deviation of paired differences."""
    limit: float = math.inf
    """The most degrees of freedom that prior and arm may have together."""
    arms: int = 0
    """How many arms of the study it was estimated from; 0: declared."""
    others: float = math.inf
    """The geometric mean deviation of the other arms of the class."""
    others_freedom: int = 0
    """The degrees of freedom of the other arms."""
    skewness: float | None = None
    """Skewness of the noise of these arms; None: unknown."""
    least: float = 0.0
    """The least standard deviation that is used for an arm; above zero where the skewness is marked."""

    def moderate(self, deviation: float, freedom: float) -> tuple[float, float]:
        """Return an arm's moderated standard deviation and degrees of freedom; its own if it varies more than most."""
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
    """Whether noise is so skewed that intervals must account for it."""
    return skewness is not None and abs(skewness) > MARKED_SKEWNESS


def estimate_priors(differences: Mapping[str, Mapping[int, float]]) -> dict[str, Prior]:
    """Return the prior of each arm of a class, from arm -> seed -> paired difference; none with too few of either.

    Arms without any spread are left out: there something is wrong; it does not mean that noise is small.
    """
    names = [name for name, arm in differences.items() if len(arm) >= LEAST_PAIRS and has_spread(list(arm.values()))]
    usable = [differences[name] for name in names]
    shared = set.intersection(*map(set, usable)) if usable else set()
    on_shared = [[arm[seed] for seed in sorted(shared)] for arm in usable]
    if len(usable) < LEAST_ARMS or len(shared) < LEAST_PAIRS or not all(map(has_spread, on_shared)):
        return {}
    prior = _fit_class([list(arm.values()) for arm in usable], correlation_of_variances(on_shared))
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


def _fit_class(arms: Sequence[Sequence[float]], alike: float) -> Prior:
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
    trigamma(f / 2) + trigamma(d0 / 2). A correlation `alike` between the variances reduces the first of these terms.
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
    """Return log variances, corrected for the bias of the logarithm at few degrees of freedom."""
    from scipy.special import digamma

    return [
        math.log(variance) - float(digamma(freedom / 2)) + math.log(freedom / 2)
        for variance, freedom in zip(variances, freedoms, strict=True)
    ]


def trigamma_inverse(value: float) -> float:
    """Return x with trigamma(x) = value, by limma's Newton iteration, which rises to x from below."""
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
    """Return the unbiased estimate of the third central moment; it needs three values."""
    count, mean = len(values), statistics.fmean(values)
    return count / ((count - 1) * (count - 2)) * math.fsum((value - mean) ** 3 for value in values)


def has_spread(values: Sequence[float]) -> bool:
    """Whether values differ by more than rounding."""
    return len(values) > 1 and statistics.stdev(values) > NO_SPREAD * max(1.0, abs(statistics.fmean(values)))


def skewness_of(values: Sequence[float]) -> float | None:
    """Return the skewness of one arm's differences; None with fewer than six, which are too few to estimate it."""
    if len(values) < 6 or not has_spread(values):
        return None
    return third_moment(values) / statistics.stdev(values) ** 3


# Declared looks: judge a study before all its seeds are complete, by stricter bounds.
#
# The one-sided error of 5 % is spent over the looks as O'Brien and Fleming's bounds spend it (Lan and DeMets 1983).
# With the share u of all seeds,
#
#     spent(u) = 2 - 2 Phi(z(1 - alpha / 2) / sqrt(u)),
#
# which is almost zero early on. The nominal level of look k is such that sums of normal differences cross their bound
# for the first time at look k with probability spent(u_k) - spent(u_(k-1)). The p-value of Student's t at that look is
# compared with this level (the significance-level approach of Pocock 1977). tests/analysis/test_looks.py checks the
# result by a simulation with few seeds.

ERROR = 0.05
"""The one-sided probability of a wrong verdict on the margin."""
_NODES = 64
_FAR = 9.0
"""Standard deviations beyond which a normal density counts as zero."""


@dataclass(frozen=True)
class PlannedLook:
    """One of the looks of a study."""

    number: int
    """The number of the look, from 1 on."""
    seeds: tuple[int, ...]
    """The number of seeds at every look."""

    @property
    def last(self) -> bool:
        """Whether the look includes all seeds."""
        return self.number == len(self.seeds)

    @property
    def count(self) -> int:
        """The number of seeds at this look."""
        return self.seeds[self.number - 1]

    @property
    def level(self) -> float:
        """The one-sided level that a p-value at this look is compared with."""
        return self._level(ERROR)

    def overall(self, p: float) -> float:
        """Return the least overall error at which a p-value of this look would decide; p itself if there is one look.

        Such p-values of different looks and arms can be compared with one another and with 5 %, and corrected by Holm.
        """
        if len(self.seeds) == 1:
            return p
        low, high = 0.0, 1.0
        for _ in range(36):
            middle = (low + high) / 2
            low, high = (low, middle) if self._level(middle) >= p else (middle, high)
        return high

    def _level(self, error: float) -> float:
        return nominal_levels(tuple(count / self.seeds[-1] for count in self.seeds), error)[self.number - 1]


def looks_of(seeds: int, declared: Sequence[int]) -> list[PlannedLook]:
    """Return the looks of a study: those it declares, or a single one at all its seeds."""
    counts = tuple(declared) or (seeds,)
    return [PlannedLook(number, counts) for number in range(1, len(counts) + 1)]


def error_spent(share: float, error: float) -> float:
    """Return how much of the error may be spent when a share of the seeds is complete."""
    from scipy.special import ndtr, ndtri

    return float(2 * ndtr(ndtri(error / 2) / math.sqrt(share)))


@cache
def nominal_levels(shares: tuple[float, ...], error: float = ERROR) -> tuple[float, ...]:
    """Return the one-sided level of each look, for looks at increasing shares of the seeds, the last of which is 1.

    S(u) is a Brownian motion. Its density on the paths that have crossed no bound so far is carried from look to look
    on Gauss-Legendre nodes (Armitage, McPherson and Rowe 1969).
    """
    import numpy as np
    from scipy.special import ndtr

    levels: list[float] = []
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    points, mass = np.zeros(1), np.ones(1)  # S(0) = 0
    before = 0.0
    for share in shares:
        step = math.sqrt(share - before)
        goal = error_spent(share, error) - (error_spent(before, error) if before else 0.0)
        low, high = -_FAR, _FAR  # of the bound on S / sqrt(share)
        for _ in range(44):
            bound = (low + high) / 2
            crossing = float(mass @ ndtr((points - bound * math.sqrt(share)) / step))
            low, high = (bound, high) if crossing > goal else (low, bound)
        levels.append(float(ndtr(-high)))
        start, end = -_FAR * math.sqrt(share), high * math.sqrt(share)
        reached = start + (nodes + 1) / 2 * (end - start)
        density = np.exp(-(((reached[:, None] - points) / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        points, mass = reached, density @ mass * weights * (end - start) / 2
        before = share
    return tuple(levels)


Verdict = Literal["met", "not met", "undecided"]
CONFIDENCE = 0.95
MARGIN = math.log1p(0.05)
"""The default margin: a loss of 5 % of perplexity."""
MOST_SEEDS = 200
"""If more additional seeds than this are needed, the number is not reported."""


@dataclass(frozen=True)
class Interval:
    """Two bounds on a mean difference of cost."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A mean difference of cost over paired seeds, and its verdict on the margin.

    `interval` is two-sided; `bounds` are the two one-sided bounds that give the verdict. Both are None without any
    spread, as are the probabilities.
    """

    pairs: int
    mean: float
    spread: float | None
    """The standard deviation of the differences; None with one pair, or where all are equal."""
    interval: Interval | None
    bounds: Interval | None
    margin: float
    verdict: Verdict
    p_none: float | None
    """Two-sided p-value of no difference."""
    p_margin: float | None
    """One-sided p-value of a true difference equal to the margin. At one of several looks: the least overall error at
    which it would decide."""
    plain: Interval | None = None
    """Student's two-sided interval of these differences alone."""
    deviation: float | None = None
    """The standard deviation behind the interval: moderated where there is a prior, else `spread`."""
    freedom: float | None = None
    """The degrees of freedom of the interval."""
    prior: Prior | None = None
    skewness: float | None = None
    """Skewness of the noise of the class, or of six or more differences without a prior; None: unknown."""
    robust: Interval | None = None
    """The interval of Wilcoxon's signed ranks, which outliers hardly move; None with fewer than six pairs."""
    look: PlannedLook | None = None
    """The declared look of the verdict; None: all pairs on record."""

    def more_seeds(self, confidence: float = CONFIDENCE) -> int | None:
        """Return about how many more pairs would decide if mean and spread stay as they are; None: beyond reach."""
        if self.spread is None:
            return None
        for more in range(1, MOST_SEEDS + 1):
            count = self.pairs + more
            deviation, freedom = _moderate(self.spread, count, self.prior)
            if t_quantile(freedom, confidence) * deviation / math.sqrt(count) < abs(self.mean - self.margin):
                return more
        return None


def paired_difference(
    differences: Sequence[float], *, margin: float = MARGIN, prior: Prior | None = None, look: PlannedLook | None = None
) -> Difference:
    """Summarise the differences of cost (arm minus reference), one per seed.

    Raise ValueError for an empty sequence or values that are not finite: the caller decides what a diverged run means.
    """
    if not differences or not all(map(math.isfinite, differences)):
        raise ValueError(f"a mean needs finite differences, at least one; found {list(differences)}")
    mean, count = statistics.fmean(differences), len(differences)
    if not has_spread(differences):
        return Difference(count, mean, None, None, None, margin, "undecided", None, None, look=look)
    spread = statistics.stdev(differences)
    deviation, freedom = _moderate(spread, count, prior)
    error = deviation / math.sqrt(count)
    level = look.level if look else 1 - CONFIDENCE
    bounds = _around(mean, t_quantile(freedom, 1 - level) * error)
    beyond = _tail(freedom, abs(mean - margin) / error)
    return Difference(
        pairs=count,
        mean=mean,
        spread=spread,
        interval=_around(mean, t_quantile(freedom, 0.5 + CONFIDENCE / 2) * error),
        bounds=bounds,
        margin=margin,
        verdict=non_inferiority(bounds, margin),
        p_none=2 * _tail(freedom, abs(mean) / error),
        p_margin=look.overall(beyond) if look else beyond,
        plain=interval_of_mean(differences, CONFIDENCE),
        deviation=deviation,
        freedom=freedom,
        prior=prior,
        skewness=prior.skewness if prior and prior.skewness is not None else skewness_of(differences),
        robust=signed_rank_interval(differences),
        look=look,
    )


def _moderate(spread: float, count: int, prior: Prior | None) -> tuple[float, float]:
    return prior.moderate(spread, count - 1) if prior else (spread, count - 1)


def _around(mean: float, half: float) -> Interval:
    return Interval(mean - half, mean + half)


def signed_rank_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the exact interval of Wilcoxon's signed-rank test; None with too few values for the confidence.

    It is an interval of the median of all means of two values (Hodges and Lehmann), which is the mean if noise is
    symmetric. Its bounds are the k-th smallest and largest of these means, for the largest k that keeps the confidence.
    """
    count = len(values)
    means = sorted((values[i] + values[j]) / 2 for i in range(count) for j in range(i, count))
    ways = [1]  # in how many ways the ranks 1 to n give each sum
    for rank in range(1, count + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if 0 <= total - rank < len(ways) else 0)
            for total in range(len(ways) + rank)
        ]
    below, rank = ways[0], 0
    while 2 * below <= (1 - confidence) * 2**count:
        rank += 1
        below += ways[rank]
    return Interval(means[rank - 1], means[-rank]) if rank else None


def interval_of_mean(values: Sequence[float], confidence: float) -> Interval | None:
    """Return Student's two-sided interval of a mean; None with fewer than two values."""
    count = len(values)
    if count < 2:
        return None
    mean = statistics.fmean(values)
    return _around(mean, t_quantile(count - 1, 0.5 + confidence / 2) * statistics.stdev(values) / math.sqrt(count))


def slope_interval(xs: Sequence[float], ys: Sequence[float], confidence: float) -> tuple[float, Interval]:
    """Return the slope of the least-squares line and its two-sided Student interval; it needs three points."""
    x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
    spread = math.fsum((x - x_mean) ** 2 for x in xs)
    slope = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread
    left = math.fsum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in zip(xs, ys, strict=True))
    freedom = len(xs) - 2
    half = t_quantile(freedom, 0.5 + confidence / 2) * math.sqrt(left / freedom / spread)
    return slope, _around(slope, half)


def t_quantile(freedom: float, probability: float) -> float:
    """Return a quantile of Student's t distribution."""
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    return float(stdtrit(freedom, probability))


def _tail(freedom: float, distance: float) -> float:
    """Return the one-sided probability of a mean at least `distance` standard errors from the true one."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -distance))


def non_inferiority(bounds: Interval | None, margin: float) -> Verdict:
    """Judge one-sided bounds against a margin."""
    if bounds is None:
        return "undecided"
    if bounds.high < margin:
        return "met"
    return "not met" if bounds.low > margin else "undecided"


@dataclass(frozen=True)
class Adjusted:
    """A p-value adjusted by Holm's rule, and the factor that the rule multiplied it by."""

    p: float
    times: int


def holm(probabilities: Mapping[str, float]) -> dict[str, Adjusted]:
    """Adjust the p-values of a family by Holm's step-down rule: the chance of any error below 5 % is at most 5 %."""
    adjusted: dict[str, Adjusted] = {}
    largest = 0.0
    for rank, (name, value) in enumerate(sorted(probabilities.items(), key=lambda item: item[1])):
        times = len(probabilities) - rank
        largest = max(largest, min(1.0, times * value))
        adjusted[name] = Adjusted(largest, times)
    return adjusted


def percent(log_ratio: float) -> float:
    """Turn a difference of log perplexity into percent of perplexity."""
    return 100 * (perplexity(log_ratio) - 1)


# Pool estimates of one effect from several places (corpora, models) by random effects.
#
# Each place i gives an estimate y_i with standard error s_i. The true effects differ between places with variance
# tau^2. Paule and Mandel's estimate of it solves
#
#     sum_i w_i (y_i - mu)^2 = k - 1,    w_i = 1 / (s_i^2 + tau^2),    mu = sum w_i y_i / sum w_i,
#
# or 0 if the sum is already smaller at tau^2 = 0. Hartung, Knapp, Sidik and Jonkman's interval is
#
#     mu +- t(k - 1) sqrt(q / sum w_i),    q = max(1, sum w_i (y_i - mu)^2 / (k - 1)),
#
# where q below 1 is raised to 1, because places that agree by chance must not make the interval narrower than their own
# errors allow (Knapp and Hartung 2003; Roever, Knapp and Friede 2015). With Paule and Mandel's tau^2, q is therefore
# always 1. One place has its own Student interval. The s_i are treated as known, as usual in meta-analysis.

_STEPS = 200
"""Bisection steps for tau^2: more than a float has bits."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and the degrees of freedom of its Student distribution."""

    mean: float
    error: float
    freedom: float

    def interval(self, confidence: float) -> Interval:
        """Return the two-sided interval."""
        return _around(self.mean, t_quantile(self.freedom, 0.5 + confidence / 2) * self.error)

    def tail(self, distance: float) -> float:
        """Return the one-sided probability of a mean at least `distance` beyond the true one."""
        return _tail(self.freedom, distance / self.error)

    def with_more(self, more: int) -> Estimate:
        """Return the estimate that `more` further pairs would give if mean and spread stayed the same."""
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
    """Return the estimate of a mean from independent values; None with fewer than two, or if all are equal."""
    if not has_spread(values):
        return None
    return Estimate(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1)


def difference_of(one: Estimate, other: Estimate) -> Estimate:
    """Return `other` minus `one` for independent samples, with Welch's degrees of freedom."""
    first, second = one.error**2, other.error**2
    freedom = (first + second) ** 2 / (first**2 / one.freedom + second**2 / other.freedom)
    return Estimate(other.mean - one.mean, math.sqrt(first + second), freedom)


def combine_estimates(estimates: Sequence[Estimate]) -> Estimate | None:
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
    # q is 1 by the choice of tau^2, or below 1 and raised to 1.
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
