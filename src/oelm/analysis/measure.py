"""What a run is judged by: perplexity for language, accuracy for labels and probes; as a cost: more is worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from oelm.analysis.looks import Look
from oelm.analysis.moderation import Prior
from oelm.analysis.statistics import MARGIN, Difference, Verdict, paired_difference, percent
from oelm.record.schema import DataRecord, ResultRecord, perplexity
from oelm.spec.data import DataSpec, ExamplesSpec

Judged = Literal["test", "val"]
MeasureName = Literal["perplexity", "accuracy"]
POINT_MARGIN = 1.0
"""Accuracy may fall by one point ..."""
RELATIVE_MARGIN = 0.05
"""... and by 5 % of the reference's own."""
ABOVE_CHANCE = 0.1
"""How far the reference must have come from chance to certainty before anything can be said to keep up with it."""


@dataclass(frozen=True)
class Measure:
    """A quantity, and the split it is taken from. Costs are nats of log perplexity, or points of accuracy lost."""

    name: MeasureName
    judged: Judged

    def cost(self, result: ResultRecord | None) -> float | None:
        """Return what is averaged and compared; None where it was not measured."""
        if result is None:
            return None
        if self.name == "perplexity":
            return result.test_loss if self.judged == "test" else result.val_loss
        share = result.test_accuracy if self.judged == "test" else result.val_accuracy
        return None if share is None else -100 * share

    def figure(self, cost: float) -> float:
        """Turn a mean cost into what people read: a perplexity, or accuracy in points."""
        return perplexity(cost) if self.name == "perplexity" else -cost

    def scaled(self, difference: float) -> float:
        """Turn a difference of costs into what is drawn: percent of perplexity, or points lost."""
        return percent(difference) if self.name == "perplexity" else difference

    def of_scores(self, difference: float) -> float:
        """Turn a difference of what tuning minimises, nats or the share of errors, into one of costs."""
        return difference if self.name == "perplexity" else 100 * difference


def measure_of(data: DataSpec | ExamplesSpec, results: Sequence[ResultRecord | None]) -> Measure:
    """Tell what some runs of one study are judged by: on test, unless no run has seen a test split."""
    on_test = Measure("accuracy" if isinstance(data, ExamplesSpec) or data.probe else "perplexity", "test")
    measured = [result for result in results if result]
    without = bool(measured) and all(on_test.cost(result) is None for result in measured)
    return Measure(on_test.name, "val") if without else on_test


@dataclass(frozen=True)
class Judgement:
    """A difference to the reference, judged against every margin that the measure has."""

    difference: Difference
    """Against the first margin: 5 % of perplexity, or one point."""
    relative: Difference | None
    """For accuracy: of the cost beyond 5 % of the reference's own, against zero."""

    @property
    def verdict(self) -> Verdict:
        """*Met* if within every margin, *not met* if beyond one of them."""
        verdicts = {part.verdict for part in self._parts}
        if "not met" in verdicts:
            return "not met"
        return "undecided" if "undecided" in verdicts else "met"

    @property
    def p_margin(self) -> float | None:
        """The probability that the verdict rests on: of the margin crossed most surely, else of the one least sure."""
        known = [part.p_margin for part in self._deciding if part.p_margin is not None]
        if not known:
            return None
        return min(known) if self.verdict == "not met" else max(known)

    def more_seeds(self, confidence: float) -> int | None:
        """Return about how many more pairs would decide about every margin that is open; None: beyond reach."""
        needed = [part.more_seeds(confidence) for part in self._deciding]
        return None if None in needed else max(filter(None, needed), default=None)

    @property
    def _parts(self) -> list[Difference]:
        return [part for part in (self.difference, self.relative) if part]

    @property
    def _deciding(self) -> list[Difference]:
        return [part for part in self._parts if part.verdict == self.verdict]


def judge(
    measure: Measure,
    own: Mapping[int, float],
    other: Mapping[int, float],
    margin: float,
    *,
    priors: Mapping[float, Prior] | None = None,
    look: Look | None = None,
) -> Judgement | None:
    """Judge an arm's costs against the reference's over the seeds they share; None where they share none.

    `priors` holds what like arms say about the variance of each of the `contrasts`, by its share of the reference.
    """
    found = {share: list(contrast(own, other, share).values()) for share in shares_of_reference(measure)}
    if not found[1.0]:
        return None
    known = priors or {}
    points = paired_difference(found[1.0], margin=margin, prior=known.get(1.0), look=look)
    # Equal differences decide nothing; seen relative to the reference they would vary as its seeds do, and seem to.
    if len(found) == 1 or not points.interval:
        return Judgement(points, None)
    share = 1 - RELATIVE_MARGIN
    return Judgement(points, paired_difference(found[share], margin=0.0, prior=known.get(share), look=look))


def shares_of_reference(measure: Measure) -> tuple[float, ...]:
    """Return which shares of the reference's cost an arm's is held against, one for each margin of the measure.

    Costs of accuracy are minus points: beyond 5 % relative means accuracy < 0.95 of the reference's, seed by seed.
    """
    return (1.0,) if measure.name == "perplexity" else (1.0, 1 - RELATIVE_MARGIN)


def contrast(own: Mapping[int, float], other: Mapping[int, float], share: float = 1.0) -> dict[int, float]:
    """Return an arm's cost minus a share of the reference's, by seed, over the seeds that both have."""
    return {seed: own[seed] - share * other[seed] for seed in own if seed in other}


def is_above_chance(accuracy: float, data: DataRecord) -> bool:
    """Whether a share of right answers is more than guessing gives, by a tenth of what is left."""
    chance = data.guess if data.guess is not None else 1 / len(data.labels) if data.labels else 0.0
    return accuracy >= chance + ABOVE_CHANCE * (1 - chance)


def margin_of(measure: Measure, declared: float | None = None) -> float:
    """Return a margin in percent of perplexity, or in points, on the scale of the measure's costs."""
    if declared is None:
        return MARGIN if measure.name == "perplexity" else POINT_MARGIN
    return math.log1p(declared / 100) if measure.name == "perplexity" else declared


def is_finite(cost: float | None) -> bool:
    """Whether there is a cost that can be averaged."""
    return cost is not None and math.isfinite(cost)
