"""What paired seeds say about the cost of an arm.

Cost is log perplexity for language (nats) and lost accuracy for classification (points): more is worse. Arms share
seeds, hence data order and all initial weights that the method leaves alone. So the unit of evidence is the
difference d_s = cost(arm, s) - cost(reference, s) of one seed, and with n seeds

    mean(d) +- t(n - 1) sd(d) / sqrt(n).

This is exact whatever the arms' variances are; the model that pools the residuals of several arms is narrower and
is not (docs/decisions/022), so it stands beside the interval and decides nothing.

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

from oelm.record.schema import perplexity

Verdict = Literal["met", "not met", "undecided"]
CONFIDENCE = 0.95
MARGIN = math.log1p(0.05)
"""The success rule of the published study: at most 5 % of perplexity."""
NO_SPREAD = 1e-9
"""What rounding leaves between differences that are equal: shares of right answers are counts over counts."""
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
    """One-sided: of a result at least as far on its side of the margin if the truth were on the margin."""

    def more_seeds(self, confidence: float = CONFIDENCE) -> int | None:
        """Return about how many more pairs would decide, if mean and spread stay as they are; None: beyond reach."""
        if self.spread is None:
            return None
        for more in range(1, MOST_SEEDS + 1):
            count = self.pairs + more
            if _quantile(count - 1, confidence) * self.spread / math.sqrt(count) < abs(self.mean - self.margin):
                return more
        return None


def paired_difference(differences: Sequence[float], *, margin: float = MARGIN) -> Difference:
    """Summarise the differences of cost (arm minus reference), one per seed.

    Raise ValueError for an empty sequence or one that is not finite: a diverged run is no number to average,
    and what to make of it is the caller's to say.
    """
    if not differences or not all(map(math.isfinite, differences)):
        raise ValueError(f"a mean needs finite differences, at least one; found {list(differences)}")
    mean = statistics.fmean(differences)
    spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
    if spread <= NO_SPREAD * max(1.0, abs(mean)):
        return Difference(len(differences), mean, None, None, None, margin, "undecided", None, None)
    bounds = interval_of_mean(differences, 2 * CONFIDENCE - 1)
    error = spread / math.sqrt(len(differences))
    return Difference(
        pairs=len(differences),
        mean=mean,
        spread=spread,
        interval=interval_of_mean(differences, CONFIDENCE),
        bounds=bounds,
        margin=margin,
        verdict=non_inferiority(bounds, margin),
        p_none=2 * _tail(len(differences) - 1, abs(mean) / error),
        p_margin=_tail(len(differences) - 1, abs(mean - margin) / error),
    )


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


def _quantile(freedom: int, probability: float) -> float:
    from scipy.special import stdtrit  # the quantile alone: scipy.stats takes half a second to import

    return float(stdtrit(freedom, probability))


def _tail(freedom: int, distance: float) -> float:
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


def pooled_intervals(costs: Mapping[str, Mapping[int, float]], reference: str) -> dict[str, Interval]:
    """Return, per arm, the interval of the additive model cost = arm + seed with one residual variance for all.

    Over the seeds that every arm has. With k arms and n seeds the residual has (k - 1)(n - 1) degrees of freedom, so
    few seeds of several arms give a far narrower interval than a pair alone; it is right only if arms vary alike.
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in costs.values()))) if costs else []
    arms, count = list(costs), len(seeds)
    if len(arms) < 2 or count < 2 or reference not in costs:
        return {}
    arm_means = {arm: statistics.fmean(costs[arm][seed] for seed in seeds) for arm in arms}
    seed_means = {seed: statistics.fmean(costs[arm][seed] for arm in arms) for seed in seeds}
    grand = statistics.fmean(arm_means.values())
    residuals = [costs[arm][seed] - arm_means[arm] - seed_means[seed] + grand for arm in arms for seed in seeds]
    freedom = (len(arms) - 1) * (count - 1)
    error = math.sqrt(2 * math.fsum(value**2 for value in residuals) / freedom / count)
    half = _quantile(freedom, 0.5 + CONFIDENCE / 2) * error
    return {
        arm: Interval(arm_means[arm] - arm_means[reference] - half, arm_means[arm] - arm_means[reference] + half)
        for arm in arms
        if arm != reference
    }


def percent(log_ratio: float) -> float:
    """Turn a difference of log perplexity into percent of perplexity."""
    return 100 * (perplexity(log_ratio) - 1)
