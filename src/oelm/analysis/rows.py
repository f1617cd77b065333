"""The lines of a comparison: one arm at one place on the axes, its figures and what they decide."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from oelm.analysis.evidence import Cell, Evidence
from oelm.analysis.looks import Look, looks_of
from oelm.analysis.measure import Judgement, Measure, contrast, is_above_chance, judge, shares_of_reference
from oelm.analysis.moderation import Prior, estimate_priors
from oelm.analysis.statistics import CONFIDENCE, Adjusted, Difference, Verdict, holm
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
    adjusted: float | None = None
    """The probability that the verdict rests on, corrected for the family of arms."""
    more_seeds: int | None = None
    """About how many more pairs would decide among the family, where undecided; None: decided, or beyond reach."""
    at_chance: bool = False
    """Whether it does no better than guessing, and the reference neither: then keeping up with it means nothing."""

    awaits: tuple[int, int] | None = None
    """Pairs that are complete, and seeds that were declared, while some run of it or of the reference has not ended;
    None: all have, or no study declares them."""

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
    waiting: AbstractSet[Place] = frozenset()
    """Declared runs that have not ended: missing, running, interrupted, or without a figure."""

    def rows(self, arms: Sequence[str], cell: Cell) -> Iterator[Row]:
        """Return the lines of one place on the axes, corrected for being several."""
        judgements = self._judgements([arm for arm in arms if arm != self.study.reference], cell)
        rows = [self._row(arm, cell, judgements.get(arm)) for arm in arms]
        together = arms if self.study.family is None else self.study.family
        # An arm that has no answer yet, or lost its runs, is one of the family as well: it must not make it lighter.
        adjusted = holm({
            row.arm: 1.0 if (p := _decisive(row)) is None else p
            for row in rows if row.arm != self.study.reference and row.arm in together
        })  # fmt: skip
        for row in rows:
            alone = _decisive(row)
            among = adjusted.get(row.arm, Adjusted(alone, 1)) if alone is not None else None
            verdict = row.verdict
            if verdict and among and among.p > 1 - CONFIDENCE:
                verdict = "undecided"
            more = None
            hopeless = row.at_chance or (row.lost and row.difference and row.difference.mean < self.margin)
            asks = verdict == "undecided" and not row.awaits
            if row.judgement and among and asks and not hopeless:  # no seed would undo that
                more = row.judgement.more_seeds(1 - (1 - CONFIDENCE) / among.times)
            yield replace(row, adjusted=among.p if among else None, verdict=verdict, more_seeds=more)

    def _judgements(self, arms: Sequence[str], cell: Cell) -> dict[str, Judgement]:
        """Judge each arm at the declared look that says most, or at the last one where none decides.

        An arm that has not come to its first look is judged by the pairs there are, at no look: for readers alone.
        """
        found: dict[str, list[Judgement]] = {}
        for look in looks_of(len(self.study.seeds), self.study.looks):
            there = [arm for arm in arms if self._has_reached(look, arm, cell)]
            for arm, judgement in self._judge(there, cell, look).items():
                found.setdefault(arm, []).append(judgement)
        early = self._judge([arm for arm in arms if arm not in found], cell, None)
        return {arm: _telling_most(judgements) for arm, judgements in found.items()} | early

    def _has_reached(self, look: Look, arm: str, cell: Cell) -> bool:
        seeds = self.study.seeds[: look.count]
        return not any((name, cell, seed) in self.waiting for name in (arm, self.study.reference) for seed in seeds)

    def _judge(self, arms: Sequence[str], cell: Cell, look: Look | None) -> dict[str, Judgement]:
        """Judge arms that have reached a look, by its seeds; like arms share what they say about their variance."""
        later = () if look is None else self.study.seeds[look.count :]
        other = self._costs(self.study.reference, cell, later)
        own = {arm: self._costs(arm, cell, later) for arm in arms}
        shares = shares_of_reference(self.measure)
        priors = {share: self._priors(own, other, share) for share in shares} if look else {}
        found = {
            arm: judge(
                self.measure, costs, other, self.margin,
                priors={share: prior for share in priors if (prior := priors[share].get(arm))},
                look=look if look and len(look.seeds) > 1 else None,
            )
            for arm, costs in own.items()
        }  # fmt: skip
        return {arm: judgement for arm, judgement in found.items() if judgement}

    def _priors(
        self, own: Mapping[str, Mapping[int, float]], other: Mapping[int, float], share: float
    ) -> dict[str, Prior]:
        """Return what each arm's class says about its variance: as declared, or as the study's own arms say."""
        classes = {arm.name: arm.method.arm_class for arm in self.study.arms}
        found: dict[str, Prior] = {}
        for kind in set(classes.values()):
            like = {arm: contrast(own[arm], other, share) for arm in own if classes[arm] == kind}
            declared = self.study.prior.get(kind)
            found |= dict.fromkeys(like, Prior(*declared)) if declared else estimate_priors(like)
        return found

    def _row(self, arm: str, cell: Cell, judgement: Judgement | None) -> Row:
        evidence = tuple(item for place, item in self.whole.items() if place[:2] == (arm, cell))
        own = self._costs(arm, cell)
        is_reference = arm == self.study.reference
        awaits = None if is_reference else self._awaits(arm, cell)
        lost = any((name, cell) in self.lost for name in (arm, self.study.reference))
        at_chance = self._at_chance(arm, cell)
        passes = judgement is not None and judgement.verdict == "met"
        decides = self._may_decide(arm, cell) and not (passes and (lost or at_chance))
        verdict: Verdict = judgement.verdict if judgement and decides else "undecided"
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
            awaits=awaits,
            floor=None if floor is None else perplexity(floor),
        )

    def _may_decide(self, arm: str, cell: Cell) -> bool:
        first, *_ = looks_of(len(self.study.seeds), self.study.looks)
        return self._has_reached(first, arm, cell)

    def _awaits(self, arm: str, cell: Cell) -> tuple[int, int] | None:
        last = looks_of(len(self.study.seeds), self.study.looks)[-1]
        if self._has_reached(last, arm, cell):
            return None
        pairs = contrast(self._costs(arm, cell), self._costs(self.study.reference, cell))
        return len(pairs), len(self.study.seeds)

    def _costs(self, arm: str, cell: Cell, without: Sequence[int] = ()) -> dict[int, float]:
        return {
            place[2]: cost
            for place, item in self.whole.items()
            if place[:2] == (arm, cell) and place[2] not in without
            if (cost := self.measure.cost(item.record.result)) is not None
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


def _decisive(row: Row) -> float | None:
    """Return the probability of the verdict on the margin; None where there is none, or it is too early for one."""
    early = row.awaits is not None and (row.difference is None or row.difference.look is None)
    return None if early or row.judgement is None else row.judgement.p_margin


def _telling_most(judgements: Sequence[Judgement]) -> Judgement:
    decided = [item for item in judgements if item.verdict != "undecided" and item.p_margin is not None]
    return min(decided, key=lambda item: item.p_margin or 0.0, default=judgements[-1])
