"""What paired seeds say about a difference in log perplexity.

Arms share seeds, hence data order and all initial weights that the method leaves alone. So the unit of
evidence is the difference d_s = log PPL(arm, s) - log PPL(reference, s) of one seed, and with n seeds

    mean(d) +- t(n - 1) sd(d) / sqrt(n).

Non-inferiority asks whether the arm loses less than a margin: *met* if the upper one-sided bound is below it,
*not met* if the lower one is above it, else *undecided*. One seed has no spread, so it decides nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from oelm.record.schema import perplexity

Verdict = Literal["met", "not met", "undecided"]
CONFIDENCE = 0.95
MARGIN = math.log(1.05)
"""The success rule of the published study: at most 5 % of perplexity."""


@dataclass(frozen=True)
class Interval:
    """Two bounds on a mean difference of log perplexity."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A mean difference of log perplexity over paired seeds, and what it decides about the margin.

    `interval` is two-sided; `bounds` are the two one-sided ones that the verdict rests on. Both are None with
    one pair of seeds.
    """

    pairs: int
    mean: float
    interval: Interval | None
    bounds: Interval | None
    margin: float
    verdict: Verdict


def paired_difference(
    differences: Sequence[float], *, margin: float = MARGIN, confidence: float = CONFIDENCE
) -> Difference:
    """Summarise the differences of log perplexity (arm minus reference), one per seed.

    Raise ValueError for an empty sequence or one that is not finite: a diverged run is no number to average,
    and what to make of it is the caller's to say.
    """
    if not differences or not all(map(math.isfinite, differences)):
        raise ValueError(f"a mean needs finite differences, at least one; found {list(differences)}")
    bounds = interval_of_mean(differences, 2 * confidence - 1)
    return Difference(
        pairs=len(differences),
        mean=statistics.fmean(differences),
        interval=interval_of_mean(differences, confidence),
        bounds=bounds,
        margin=margin,
        verdict=non_inferiority(bounds, margin),
    )


def interval_of_mean(values: Sequence[float], confidence: float) -> Interval | None:
    """Return Student's two-sided interval of a mean; None with fewer than two values."""
    count = len(values)
    if count < 2:
        return None
    from scipy.special import stdtrit  # the quantile alone: scipy.stats takes half a second to import

    mean = statistics.fmean(values)
    quantile = float(stdtrit(count - 1, 0.5 + confidence / 2))
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean - half, mean + half)


def non_inferiority(bounds: Interval | None, margin: float) -> Verdict:
    """Judge one-sided bounds against a margin."""
    if bounds is None:
        return "undecided"
    if bounds.high < margin:
        return "met"
    return "not met" if bounds.low > margin else "undecided"


def percent(log_ratio: float) -> float:
    """Turn a difference of log perplexity into percent of perplexity."""
    return 100 * (perplexity(log_ratio) - 1)
