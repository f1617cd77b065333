"""The value of attention by content, the cost of freezing, and the share of content that frozen Q/K keep.

For arms with the same position scheme (oelm.spec.study), over paired seeds, with trained Q/K (T), frozen Q/K (F) and
attention by position only (P):

    C = log ppl(P) - log ppl(T)        value of content
    d = log ppl(F) - log ppl(T)        cost of freezing
    content kept = 1 - d / C

A ratio of two means has no Student interval. Fieller's set holds every ratio r that a t test of mean(d - r C) = 0 does
not reject. For normal noise it covers exactly 95 %. If C is not clearly positive the data cannot bound the ratio, and
the set is unbounded.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from oelm.analysis.statistics import CONFIDENCE, Difference, paired_difference, percent, t_quantile
from oelm.errors import UsageError
from oelm.record.record import RunRecord
from oelm.record.stages import CellChoice, index_by_declaration, stage_of
from oelm.spec.run import fingerprint
from oelm.spec.study import ContentArms, Setting, Study

Costs = Mapping[str, Mapping[int, float]]
"""Arm -> seed -> log perplexity."""


@dataclass(frozen=True)
class RatioSet:
    """A confidence set of a ratio: the values between two bounds, those outside of them, or all values."""

    kind: Literal["between", "outside", "everything"]
    low: float = -math.inf
    high: float = math.inf

    def __contains__(self, ratio: float) -> bool:
        if self.kind == "outside":
            return ratio <= self.low or ratio >= self.high
        return self.low <= ratio <= self.high

    def complement(self) -> RatioSet:
        """Return the set of 1 - r."""
        return RatioSet(self.kind, 1 - self.high, 1 - self.low)


def fieller(numerators: Sequence[float], denominators: Sequence[float], confidence: float = CONFIDENCE) -> RatioSet:
    """Return Fieller's confidence set of mean(numerators) / mean(denominators) over pairs; it needs two pairs.

    With means n, d and variances and covariance of these means V, the set is A r^2 - 2 B r + C <= 0 where
    A = d^2 - t^2 V(d), B = n d - t^2 V(n, d), C = n^2 - t^2 V(n).
    """
    count = len(numerators)
    n, d = statistics.fmean(numerators), statistics.fmean(denominators)
    square = t_quantile(count - 1, 0.5 + confidence / 2) ** 2 / count
    a = d * d - square * statistics.variance(denominators, d)
    b = n * d - square * statistics.covariance(numerators, denominators)
    c = n * n - square * statistics.variance(numerators, n)
    inner = b * b - a * c
    if a > 0:
        root = math.sqrt(max(inner, 0.0))
        return RatioSet("between", (b - root) / a, (b + root) / a)
    if a == 0 or inner <= 0:
        return RatioSet("everything")
    root = math.sqrt(inner)
    return RatioSet("outside", (b + root) / a, (b - root) / a)


@dataclass(frozen=True)
class Kept:
    """The cost of one frozen arm, and the share of content that it keeps."""

    arm: str
    cost: Difference
    """d, over the seeds shared with T."""
    share: float | None
    """1 - d / C over the seeds shared with T and P; None without such seeds, or if C is not positive."""
    interval: RatioSet | None
    """None with fewer than two such seeds."""


@dataclass(frozen=True)
class Worth:
    """The value of content for one position scheme at one place on the axes, and what each frozen arm keeps of it."""

    arms: ContentArms
    value: Difference
    """C, over the seeds that T and P share."""
    kept: tuple[Kept, ...]

    @property
    def lower(self) -> float | None:
        """The one-sided lower 95 % bound of C; None with one seed."""
        return self.value.bounds.low if self.value.bounds else None


def content_worth(arms: ContentArms, costs: Costs) -> Worth | None:
    """Compare P and every F with T over paired seeds; None if P and T share no seed."""
    trained, position = costs.get(arms.trained, {}), costs.get(arms.position, {})
    value = _difference(position, trained)
    if value is None:
        return None
    kept = (_measure_kept(name, costs.get(name, {}), trained, position) for name in arms.frozen)
    return Worth(arms, value, tuple(item for item in kept if item))


def _difference(own: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    shared = [own[seed] - other[seed] for seed in own if seed in other]
    return paired_difference(shared) if shared else None


def _measure_kept(
    arm: str, frozen: Mapping[int, float], trained: Mapping[int, float], position: Mapping[int, float]
) -> Kept | None:
    cost = _difference(frozen, trained)
    if cost is None:
        return None
    seeds = [seed for seed in frozen if seed in trained and seed in position]
    costs = [frozen[seed] - trained[seed] for seed in seeds]
    worths = [position[seed] - trained[seed] for seed in seeds]
    if seeds and statistics.fmean(worths) <= 0:  # nothing to keep: the ratio would be a number without a meaning
        return Kept(arm, cost, None, RatioSet("everything") if len(seeds) > 1 else None)
    share = 1 - statistics.fmean(costs) / statistics.fmean(worths) if seeds else None
    return Kept(arm, cost, share, fieller(costs, worths).complement() if len(seeds) > 1 else None)


def tuning_costs(
    study: Study, cell: Setting, choice: CellChoice, records: Mapping[str, RunRecord]
) -> dict[str, dict[int, float]]:
    """Return the validation losses of each arm's tuning runs at its chosen setting.

    `records` come from `index_by_declaration`.
    """
    found: dict[str, dict[int, float]] = {}
    for item in choice.arms:
        for run in study.tuning(cell, {field: (value,) for field, value in item.values.items()}):
            record = records.get(fingerprint(run)) if run.arm == item.arm else None
            if record and record.result and math.isfinite(record.result.val_loss):
                found.setdefault(item.arm, {})[run.seed] = record.result.val_loss
    return found


def content_margin(study: Study, tuning: Iterable[RunRecord]) -> float:
    """Return half the lower 95 % bound of C, in percent of perplexity as `Study.margin` is.

    It comes only from the tuning runs of T and P at their chosen settings, so it is fixed before any confirming run. Of
    several tuned places on the axes, or position schemes, the smallest value counts. If the bound is not positive,
    content has no proven value: the margin is 0, and no arm that loses anything can pass.

    Raise UsageError if tuning has not ended, or if T and P share fewer than two complete tuning seeds.
    """
    records = index_by_declaration(tuning)
    stage = stage_of(study, records)
    if stage.choice is None:
        raise UsageError(
            f"the margin of study {study.name!r} is fixed when tuning ends, and tuning is not complete. Run `oelm run` "
            "first."
        )
    bounds = []
    for cell, choice in zip(study.cells(), stage.choice.cells, strict=True):
        costs = tuning_costs(study, cell, choice, records)
        for arms in study.content_arms if costs else ():  # a size that copies its settings is not tuned
            found = content_worth(arms, costs)
            if found is None or found.value.pairs < 2:
                raise UsageError(
                    f"the margin of study {study.name!r} needs two complete tuning seeds of both {arms.trained!r} and "
                    f"{arms.position!r} at their chosen settings, and some diverged. Give a margin in percent instead."
                )
            # Equal differences have no spread: the bound is the difference itself.
            bounds.append(found.value.mean if found.lower is None else found.lower)
    return percent(max(0.0, min(bounds) / 2))
