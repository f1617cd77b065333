"""What paired seeds say about the cost of an arm.

Cost is log perplexity for language (nats) and lost accuracy for classification (points): more is worse. Arms share
seeds, hence data order and all initial weights that the method leaves alone. So the unit of evidence is the
difference d_s = cost(arm, s) - cost(reference, s) of one seed, and with n seeds the plain interval is

    mean(d) +- t(n - 1) sd(d) / sqrt(n).

Where a study has like arms, their variances are shrunk towards one another (analysis/moderation.py): the moderated
interval decides, and the plain one is shown next to it.

Non-inferiority asks whether the arm loses less than a margin: *met* if the upper one-sided bound is below it,
*not met* if the lower one is above it, else *undecided*. One seed has no spread, so it decides nothing; nor do seeds
that all differ by the same, as two arms do that both answer at chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from oelm.analysis.looks import Look
from oelm.analysis.moderation import Prior, has_spread, skewness_of
from oelm.record.schema import perplexity

Verdict = Literal["met", "not met", "undecided"]
CONFIDENCE = 0.95
MARGIN = math.log1p(0.05)
"""The success rule of the published study: at most 5 % of perplexity."""
MOST_SEEDS = 200
"""Beyond so many more seeds, nobody would add them: the number is not told."""


@dataclass(frozen=True)
class Interval:
    """Two bounds on a mean difference of cost."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A mean difference of cost over paired seeds, and what it decides about the margin.

    `interval` is two-sided; `bounds` are the two one-sided ones that the verdict rests on. Both are None without
    any spread, as are the probabilities.
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
    """Two-sided: of a difference at least as large if there were none."""
    p_margin: float | None
    """One-sided: of a result at least as far on its side of the margin if the truth were on the margin. At one of
    several looks: the least error over all looks at which it would decide."""
    plain: Interval | None = None
    """Student's two-sided interval of these differences alone."""
    deviation: float | None = None
    """The standard deviation that the interval rests on: moderated where there is a prior, else `spread`."""
    freedom: float | None = None
    """The degrees of freedom of the interval."""
    prior: Prior | None = None
    skewness: float | None = None
    """Of the noise of like arms, or of these differences if there are six and no prior; None: not known."""
    robust: Interval | None = None
    """The interval of Wilcoxon's signed ranks, which no outlier moves far; None with fewer than six pairs."""
    look: Look | None = None
    """At which of the declared looks it was judged; None: at all the pairs there are."""

    def more_seeds(self, confidence: float = CONFIDENCE) -> int | None:
        """Return about how many more pairs would decide, if mean and spread stay as they are; None: beyond reach."""
        if self.spread is None:
            return None
        for more in range(1, MOST_SEEDS + 1):
            count = self.pairs + more
            deviation, freedom = _moderated(self.spread, count, self.prior)
            if _quantile(freedom, confidence) * deviation / math.sqrt(count) < abs(self.mean - self.margin):
                return more
        return None


def paired_difference(
    differences: Sequence[float], *, margin: float = MARGIN, prior: Prior | None = None, look: Look | None = None
) -> Difference:
    """Summarise the differences of cost (arm minus reference), one per seed.

    Raise ValueError for an empty sequence or one that is not finite: a diverged run is no number to average,
    and what to make of it is the caller's to say.
    """
    if not differences or not all(map(math.isfinite, differences)):
        raise ValueError(f"a mean needs finite differences, at least one; found {list(differences)}")
    mean, count = statistics.fmean(differences), len(differences)
    if not has_spread(differences):
        return Difference(count, mean, None, None, None, margin, "undecided", None, None, look=look)
    spread = statistics.stdev(differences)
    deviation, freedom = _moderated(spread, count, prior)
    error = deviation / math.sqrt(count)
    level = look.level if look else 1 - CONFIDENCE
    bounds = _around(mean, _quantile(freedom, 1 - level) * error)
    beyond = _tail(freedom, abs(mean - margin) / error)
    return Difference(
        pairs=count,
        mean=mean,
        spread=spread,
        interval=_around(mean, _quantile(freedom, 0.5 + CONFIDENCE / 2) * error),
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


def _moderated(spread: float, count: int, prior: Prior | None) -> tuple[float, float]:
    return prior.moderate(spread, count - 1) if prior else (spread, count - 1)


def _around(mean: float, half: float) -> Interval:
    return Interval(mean - half, mean + half)


def signed_rank_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the exact interval of Wilcoxon's signed-rank test; None where the values are too few for the confidence.

    It is of the median of all means of two values (Hodges and Lehmann), which is the mean where noise is symmetric.
    Its bounds are the k-th smallest and largest of these means, with the largest k that keeps the confidence.
    """
    count = len(values)
    means = sorted((values[i] + values[j]) / 2 for i in range(count) for j in range(i, count))
    ways = [1]  # of the ranks 1 to n to have each sum
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
    half = _quantile(count - 1, 0.5 + confidence / 2) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean - half, mean + half)


def slope_interval(xs: Sequence[float], ys: Sequence[float], confidence: float) -> tuple[float, Interval]:
    """Return the slope of the least-squares line and Student's two-sided interval of it; it takes three points."""
    x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
    spread = math.fsum((x - x_mean) ** 2 for x in xs)
    slope = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread
    left = math.fsum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in zip(xs, ys, strict=True))
    freedom = len(xs) - 2
    half = _quantile(freedom, 0.5 + confidence / 2) * math.sqrt(left / freedom / spread)
    return slope, Interval(slope - half, slope + half)


def _quantile(freedom: float, probability: float) -> float:
    from scipy.special import stdtrit  # the quantile alone: scipy.stats takes half a second to import

    return float(stdtrit(freedom, probability))


def _tail(freedom: float, distance: float) -> float:
    """Return the one-sided probability of a mean at least so many standard errors from the supposed one."""
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
    """A p-value among others: what Holm's rule makes of it, and how many it was multiplied by."""

    p: float
    times: int


def holm(probabilities: Mapping[str, float]) -> dict[str, Adjusted]:
    """Adjust the p-values of a family by Holm's step-down rule: any of them below 5 % is wrong in at most 5 %."""
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
