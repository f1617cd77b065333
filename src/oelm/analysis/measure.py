"""What a run is judged by: perplexity for language, accuracy for labels and probes; as a cost: more is worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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


def judge(measure: Measure, own: Mapping[int, float], other: Mapping[int, float], margin: float) -> Judgement | None:
    """Judge an arm's costs against the reference's over the seeds they share; None where they share none."""
    seeds = [seed for seed in own if seed in other]
    if not seeds:
        return None
    if measure.name == "perplexity":
        return Judgement(paired_difference([own[seed] - other[seed] for seed in seeds], margin=margin), None)
    # Costs are minus points: beyond 5 % relative means accuracy < 0.95 of the reference's, seed by seed.
    beyond = [own[seed] - (1 - RELATIVE_MARGIN) * other[seed] for seed in seeds]
    points = paired_difference([own[seed] - other[seed] for seed in seeds], margin=margin)
    # Equal differences decide nothing; seen relative to the reference they would vary as its seeds do, and seem to.
    return Judgement(points, paired_difference(beyond, margin=0.0) if points.interval else None)


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
