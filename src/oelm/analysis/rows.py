"""The lines of a comparison: one arm at one place on the axes, its figures and what they decide."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from oelm.analysis.evidence import Cell, Evidence
from oelm.analysis.measure import Judgement, Measure, is_above_chance, judge
from oelm.analysis.statistics import CONFIDENCE, Adjusted, Difference, Interval, Verdict, holm, pooled_intervals
from oelm.record.schema import ParametersRecord, perplexity
from oelm.study import Study

Place = tuple[str, Cell, int]
"""Arm, place on the axes, seed: a run as the study sees it."""
LOST = ("failed", "diverged")


@dataclass(frozen=True)
class Row:
    """One arm at one place on the axes. Figures are None where no run is complete."""

    arm: str
    cell: Cell
    measure: Measure
    evidence: tuple[Evidence, ...]
    """The complete runs that the figures come from, by seed."""
    costs: tuple[float, ...]
    """Theirs, in the same order: losses, or minus points of accuracy."""
    judgement: Judgement | None
    """Against the reference arm over shared seeds; None for the reference itself and where no seed is shared."""
    verdict: Verdict | None
    """None for the reference itself."""
    floor: float | None
    """Perplexity that no model can beat, where the corpus is generated."""
    pooled: Interval | None = None
    """The secondary interval, of the additive model of all arms."""
    adjusted: float | None = None
    """The probability that the verdict rests on, corrected for the family of arms."""
    more_seeds: int | None = None
    """About how many more pairs would decide among the family, where undecided; None: decided, or beyond reach."""
    at_chance: bool = False
    """Whether it does no better than guessing, and the reference neither: then keeping up with it means nothing."""

    lost: bool = False
    """Whether a run of it, or of the reference, failed or diverged: the rest is no random sample and cannot pass."""

    @property
    def difference(self) -> Difference | None:
        """The paired difference to the reference arm."""
        return self.judgement.difference if self.judgement else None

    @property
    def figure(self) -> float | None:
        """Perplexity (the geometric mean over seeds) or accuracy in points (the mean)."""
        return self.measure.figure(statistics.fmean(self.costs)) if self.costs else None

    @property
    def tokens_per_second(self) -> float | None:
        """Mean over seeds."""
        speeds = [item.record.result.tokens_per_second for item in self.evidence if item.record.result]
        return statistics.fmean(speeds) if any(speeds) else None

    @property
    def parameters(self) -> ParametersRecord | None:
        """Scalars of the model, the same for every seed."""
        return next((item.record.parameters for item in self.evidence), None)

    @property
    def by_seed(self) -> dict[int, float]:
        """Seed -> cost."""
        return {item.spec.seed: cost for item, cost in zip(self.evidence, self.costs, strict=True)}


@dataclass(frozen=True)
class Matrix:
    """Everything that rows are made from."""

    study: Study
    measure: Measure
    margin: float
    whole: Mapping[Place, Evidence]
    lost: set[tuple[str, Cell]]
    """Arms and places where a run failed or diverged."""

    def rows(self, arms: Sequence[str], cell: Cell) -> Iterator[Row]:
        """Return the lines of one place on the axes, corrected for being several."""
        rows = [self._row(arm, cell) for arm in arms]
        pooled = pooled_intervals({row.arm: row.by_seed for row in rows if row.costs}, self.study.reference)
        together = arms if self.study.family is None else self.study.family
        # An arm that has no answer yet, or lost its runs, is one of the family as well: it must not make it lighter.
        adjusted = holm({
            row.arm: 1.0 if row.judgement is None or row.judgement.p_margin is None else row.judgement.p_margin
            for row in rows if row.arm != self.study.reference and row.arm in together
        })  # fmt: skip
        for row in rows:
            alone = row.judgement.p_margin if row.judgement else None
            among = adjusted.get(row.arm, Adjusted(alone, 1)) if alone is not None else None
            verdict = row.verdict
            if verdict and among and among.p > 1 - CONFIDENCE:
                verdict = "undecided"
            more = None
            hopeless = row.at_chance or (row.lost and row.difference and row.difference.mean < self.margin)
            if row.judgement and among and verdict == "undecided" and not hopeless:  # no seed would undo that
                more = row.judgement.more_seeds(1 - (1 - CONFIDENCE) / among.times)
            yield replace(
                row, pooled=pooled.get(row.arm), adjusted=among.p if among else None, verdict=verdict, more_seeds=more
            )

    def _row(self, arm: str, cell: Cell) -> Row:
        evidence = tuple(item for place, item in self.whole.items() if place[:2] == (arm, cell))
        own, other = self._costs(arm, cell), self._costs(self.study.reference, cell)
        is_reference = arm == self.study.reference
        judgement = None if is_reference else judge(self.measure, own, other, self.margin)
        lost = any((name, cell) in self.lost for name in (arm, self.study.reference))
        at_chance = self._at_chance(arm, cell)
        passes = judgement is not None and judgement.verdict == "met"
        verdict: Verdict = "undecided" if judgement is None or (passes and (lost or at_chance)) else judgement.verdict
        data = next((item.record.data for item in evidence), None)
        floor = data.floor.get(self.measure.judged) if data else None
        return Row(
            arm=arm,
            cell=cell,
            measure=self.measure,
            evidence=evidence,
            costs=tuple(own.values()),
            judgement=judgement,
            verdict=None if is_reference else verdict,
            at_chance=at_chance,
            lost=lost,
            floor=None if floor is None else perplexity(floor),
        )

    def _costs(self, arm: str, cell: Cell) -> dict[int, float]:
        return {
            place[2]: cost
            for place, item in self.whole.items()
            if place[:2] == (arm, cell) and (cost := self.measure.cost(item.record.result)) is not None
        }

    def _at_chance(self, arm: str, cell: Cell) -> bool:
        if self.measure.name != "accuracy":
            return False
        return all(self._guesses(name, cell) for name in (arm, self.study.reference))

    def _guesses(self, arm: str, cell: Cell) -> bool:
        shares = [
            (-cost / 100, item.record.data)
            for place, item in self.whole.items()
            if place[:2] == (arm, cell) and item.record.data
            if (cost := self.measure.cost(item.record.result)) is not None
        ]
        return bool(shares) and not is_above_chance(statistics.fmean(share for share, _ in shares), shares[0][1])
