"""From records to judged rows.

A record becomes `Evidence` for one arm at one place (`Cell`) on the study's axes. The `Measure` turns its result into a
cost. `judge` compares the costs of an arm with those of the reference. A `Row` is one arm at one place with its figures
and its verdict.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from oelm.analysis.statistics import (
    CONFIDENCE,
    MARGIN,
    Adjusted,
    Difference,
    PlannedLook,
    Prior,
    Verdict,
    estimate_priors,
    holm,
    looks_of,
    paired_difference,
    percent,
)
from oelm.errors import BadRecord
from oelm.record.record import DataRecord, ParametersRecord, ResultRecord, RunRecord, perplexity
from oelm.spec import NoEffect, Spec, remember
from oelm.spec.run import DataSpec, ExamplesSpec, HuggingFaceSpec, RunSpec, declared_fingerprint, undo_resolve
from oelm.spec.study import Study

MACHINE = ("device", "cores", "platform", "torch")
"""Fields of the environment that change speed and memory: these are compared only between runs that agree in all."""
BOUND_LATER, WEIGHTS = "data.checksum", "model.checksum"
"""None in a study's runs, filled in when a run is resolved."""

(_NO_EFFECT,) = get_args(NoEffect)[1:]
_T = TypeVar("_T")

Differences = dict[str, tuple[Any, Any]]
"""Dotted field -> both values; None for a field that one side lacks."""

Cell = tuple[tuple[str, str], ...]
"""Axis and value (as JSON): one combination of a study's axes. Empty if it has no axes."""


@dataclass(frozen=True)
class Evidence:
    """A record, its folder, and the arm of the study that it belongs to."""

    arm: str
    directory: Path
    record: RunRecord

    @property
    def spec(self) -> RunSpec:
        """The run's spec."""
        return self.record.spec


def cell_of(study: Study, run: RunSpec) -> Cell:
    """Return the place of a run on the study's axes."""
    return tuple((axis, format_value(value)) for axis, value in study.place(run).items())


def format_value(value: Any) -> str:
    """Write a field's value as in JSON, so that text and numbers cannot be confused."""
    return json.dumps(value, ensure_ascii=False)


@remember
def list_meaning(run: RunSpec) -> Mapping[str, Any]:
    """Return dotted field -> value for every field that can change a run's numbers, without checksums.

    Unlike `Spec.meaning`, which is made for hashing, it includes fields at their default, so that a message about a
    difference can show both values.
    """
    declared = undo_resolve(run)
    fields = dict(_list_fields(declared, declared.model_dump(mode="json")))
    return {sys.intern(field): value for field, value in fields.items() if field not in (BOUND_LATER, WEIGHTS)}


def bytes_of(run: RunSpec) -> dict[str, str | None]:
    """Return the checksums that resolving a run filled in: of its data, and of pretrained weights in a folder."""
    weights = {WEIGHTS: run.model.checksum} if isinstance(run.model, HuggingFaceSpec) else {}
    return {BOUND_LATER: run.data.checksum, **weights}


def _list_fields(spec: Spec, plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if _NO_EFFECT in field.metadata:
            continue
        if isinstance(value, Spec):
            yield from _list_fields(value, plain[name], f"{prefix}{name}.")
        elif isinstance(value, dict) and value:
            yield from ((f"{prefix}{name}.{key}", inner) for key, inner in plain[name].items())
        else:
            yield f"{prefix}{name}", plain[name]


def differing_fields(one: Mapping[str, Any], other: Mapping[str, Any]) -> Differences:
    """Return the fields in which two meanings differ."""
    if one == other:  # almost always, and quickly found
        return {}
    return {
        field: (one.get(field), other.get(field)) for field in {**one, **other} if one.get(field) != other.get(field)
    }


def find_departure(runs: Sequence[RunSpec]) -> Callable[[RunSpec], Differences]:
    """Return a function that lists where a run differs from the most similar of `runs` (empty: it is one of them)."""
    known = {declared_fingerprint(run) for run in runs}

    def departure(spec: RunSpec) -> Differences:
        if declared_fingerprint(spec) in known:  # almost every run; comparing each with all others takes minutes
            return {}
        own = list_meaning(spec)
        candidates = (differing_fields(own, list_meaning(run)) for run in runs)
        return min(candidates, key=len, default={"study": ("this run", "no run at all")})

    return departure


# Measures: perplexity for language, accuracy for labels and probes. As a cost, more is worse.

JudgedSplit = Literal["test", "val"]
MeasureName = Literal["perplexity", "accuracy"]
POINT_MARGIN = 1.0
"""Accuracy may fall by at most one point ..."""
RELATIVE_MARGIN = 0.05
"""... and by at most 5 % of the reference's accuracy."""
ABOVE_CHANCE = 0.1
"""An accuracy counts as better than guessing from this share of the way from chance to certainty on."""


@dataclass(frozen=True)
class Measure:
    """A quantity and its split. Costs are nats of log perplexity, or minus points of accuracy."""

    name: MeasureName
    judged: JudgedSplit

    def cost(self, result: ResultRecord | None) -> float | None:
        """Return the number that is averaged and compared; None if it was not measured."""
        if result is None:
            return None
        if self.name == "perplexity":
            return result.test_loss if self.judged == "test" else result.val_loss
        share = result.test_accuracy if self.judged == "test" else result.val_accuracy
        return None if share is None else -100 * share

    def figure(self, cost: float) -> float:
        """Turn a mean cost into the figure of a report: a perplexity, or accuracy in points."""
        return perplexity(cost) if self.name == "perplexity" else -cost

    def scaled(self, difference: float) -> float:
        """Turn a difference of costs into percent of perplexity, or points lost."""
        return percent(difference) if self.name == "perplexity" else difference

    def of_scores(self, difference: float) -> float:
        """Turn a difference of tuning scores (nats, or the share of errors) into a difference of costs."""
        return difference if self.name == "perplexity" else 100 * difference


def measure_of(data: DataSpec | ExamplesSpec, results: Sequence[ResultRecord | None]) -> Measure:
    """Return the measure of some runs of one study: on test, unless no run has a test result."""
    on_test = Measure("accuracy" if isinstance(data, ExamplesSpec) or data.probe else "perplexity", "test")
    measured = [result for result in results if result]
    without = bool(measured) and all(on_test.cost(result) is None for result in measured)
    return Measure(on_test.name, "val") if without else on_test


@dataclass(frozen=True)
class Judgement:
    """A difference to the reference, judged against every margin of the measure."""

    difference: Difference
    """Judged against the first margin: 5 % of perplexity, or one point."""
    relative: Difference | None
    """For accuracy: the cost beyond 5 % of the reference's accuracy, judged against zero."""

    @property
    def verdict(self) -> Verdict:
        """*Met* if within every margin, *not met* if beyond one of them, else *undecided*."""
        verdicts = {part.verdict for part in self._parts}
        if "not met" in verdicts:
            return "not met"
        return "undecided" if "undecided" in verdicts else "met"

    @property
    def p_margin(self) -> float | None:
        """The p-value of the verdict: the smallest of the margins that are crossed, else the largest of all."""
        known = [part.p_margin for part in self._deciding if part.p_margin is not None]
        if not known:
            return None
        return min(known) if self.verdict == "not met" else max(known)

    def more_seeds(self, confidence: float) -> int | None:
        """Return about how many more pairs would decide every open margin; None: beyond reach."""
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
    look: PlannedLook | None = None,
) -> Judgement | None:
    """Judge an arm's costs against the reference's over the seeds they share; None if they share none.

    `priors` has the prior of the variance of each contrast, by its share of the reference.
    """
    found = {share: list(contrast(own, other, share).values()) for share in shares_of_reference(measure)}
    if not found[1.0]:
        return None
    known = priors or {}
    points = paired_difference(found[1.0], margin=margin, prior=known.get(1.0), look=look)
    # Equal differences decide nothing. Relative to the reference they would vary as its seeds do, and seem to decide.
    if len(found) == 1 or not points.interval:
        return Judgement(points, None)
    share = 1 - RELATIVE_MARGIN
    return Judgement(points, paired_difference(found[share], margin=0.0, prior=known.get(share), look=look))


def shares_of_reference(measure: Measure) -> tuple[float, ...]:
    """Return the shares of the reference's cost that an arm's cost is compared with, one for each margin.

    The cost of accuracy is minus points, so beyond 5 % relative means accuracy < 0.95 of the reference's for each seed.
    """
    return (1.0,) if measure.name == "perplexity" else (1.0, 1 - RELATIVE_MARGIN)


def contrast(own: Mapping[int, float], other: Mapping[int, float], share: float = 1.0) -> dict[int, float]:
    """Return seed -> an arm's cost minus a share of the reference's, for the seeds that both have."""
    return {seed: own[seed] - share * other[seed] for seed in own if seed in other}


def is_above_chance(accuracy: float, data: DataRecord) -> bool:
    """Whether an accuracy is above chance by at least a tenth of the way to certainty."""
    chance = data.guess if data.guess is not None else 1 / len(data.labels) if data.labels else 0.0
    return accuracy >= chance + ABOVE_CHANCE * (1 - chance)


def margin_of(measure: Measure, declared: float | None = None) -> float:
    """Convert a declared margin (percent of perplexity, or points; None: the default) to the scale of costs."""
    if declared is None:
        return MARGIN if measure.name == "perplexity" else POINT_MARGIN
    return math.log1p(declared / 100) if measure.name == "perplexity" else declared


# Rows: one arm at one place on the axes.

RowPlace = tuple[str, Cell, int]
"""Arm, place on the axes and seed of a run."""
LOST = ("failed", "diverged")


@dataclass(frozen=True)
class Row:
    """One arm at one place on the axes. Figures are None where no run is complete."""

    arm: str
    cell: Cell
    measure: Measure
    evidence: tuple[Evidence, ...]
    """The complete runs behind the figures, by seed."""
    costs: tuple[float, ...]
    """Costs of these runs in the same order: losses, or minus points of accuracy."""
    judgement: Judgement | None
    """Comparison with the reference arm over shared seeds; None for the reference itself or without shared seeds."""
    verdict: Verdict | None
    """None for the reference itself."""
    floor: float | None
    """Perplexity that no model can beat, if the corpus is generated."""
    adjusted: float | None = None
    """The p-value of the verdict, corrected for the family of arms."""
    more_seeds: int | None = None
    """About how many more pairs would decide within the family, if undecided; None: decided, or beyond reach."""
    at_chance: bool = False
    """Whether neither the arm nor the reference is better than guessing. Equal results mean nothing then."""
    awaits: tuple[int, int] | None = None
    """Complete pairs and declared seeds while a run of the arm or of the reference is not complete. None: all are
    complete, or no study declares them."""
    lost: bool = False
    """Whether a run of the arm or the reference failed or diverged. The others are not a random sample: no pass."""

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
        """Training tokens per second, the mean over seeds."""
        speeds = [item.record.result.tokens_per_second for item in self.evidence if item.record.result]
        return statistics.fmean(speeds) if any(speeds) else None

    @property
    def parameters(self) -> ParametersRecord | None:
        """Parameter counts of the model, the same for every seed."""
        return next((item.record.parameters for item in self.evidence), None)

    @property
    def by_seed(self) -> dict[int, float]:
        """Seed -> cost."""
        return {item.spec.seed: cost for item, cost in zip(self.evidence, self.costs, strict=True)}

    def read(self, read: Callable[[Path], _T | None], complaints: list[str]) -> dict[int, _T]:
        """Return seed -> what `read` finds in the folder of its run. Unreadable files are added to `complaints`."""
        found = {}
        for item in self.evidence:
            try:
                content = read(item.directory)
            except BadRecord as error:
                complaints.append(str(error))
                continue
            if content is not None:
                found[item.spec.seed] = content
        return found


@dataclass(frozen=True)
class Matrix:
    """Everything that determines the rows of a comparison."""

    study: Study
    measure: Measure
    margin: float
    whole: Mapping[RowPlace, Evidence]
    lost: set[tuple[str, Cell]]
    """Arms and places where a run failed or diverged."""
    waiting: AbstractSet[RowPlace] = frozenset()
    """Declared runs that are not complete: missing, running, interrupted, or without a figure."""

    def rows(self, arms: Sequence[str], cell: Cell) -> Iterator[Row]:
        """Yield the rows of one place on the axes, with verdicts corrected for the number of arms."""
        judgements = self._judgements([arm for arm in arms if arm != self.study.reference], cell)
        rows = [self._row(arm, cell, judgements.get(arm)) for arm in arms]
        together = arms if self.study.family is None else self.study.family
        # An arm without an answer counts as well: a lost or missing run must not make the correction weaker.
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
            if row.judgement and among and asks and not hopeless:  # more seeds would not change a hopeless row
                more = row.judgement.more_seeds(1 - (1 - CONFIDENCE) / among.times)
            yield replace(row, adjusted=among.p if among else None, verdict=verdict, more_seeds=more)

    def _judgements(self, arms: Sequence[str], cell: Cell) -> dict[str, Judgement]:
        """Judge each arm at the declared look with the smallest p-value, or at the last look if none decides.

        An arm before its first look is judged by the pairs on record, at no look: it has figures but no verdict.
        """
        found: dict[str, list[Judgement]] = {}
        for look in looks_of(len(self.study.seeds), self.study.looks):
            there = [arm for arm in arms if self._has_reached(look, arm, cell)]
            for arm, judgement in self._judge(there, cell, look).items():
                found.setdefault(arm, []).append(judgement)
        early = self._judge([arm for arm in arms if arm not in found], cell, None)
        return {arm: _choose_look(judgements) for arm, judgements in found.items()} | early

    def _has_reached(self, look: PlannedLook, arm: str, cell: Cell) -> bool:
        seeds = self.study.seeds[: look.count]
        return not any((name, cell, seed) in self.waiting for name in (arm, self.study.reference) for seed in seeds)

    def _judge(self, arms: Sequence[str], cell: Cell, look: PlannedLook | None) -> dict[str, Judgement]:
        """Judge arms that have reached a look by its seeds; arms of one class share a prior of their variance."""
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
        """Return the prior of each arm's variance: as declared for its class, or estimated from the study's arms."""
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
        guesses = self.measure.name == "accuracy" and all(
            self._guesses(name, cell) for name in (arm, self.study.reference)
        )
        passes = judgement is not None and judgement.verdict == "met"
        first_look, *_ = looks_of(len(self.study.seeds), self.study.looks)
        decides = self._has_reached(first_look, arm, cell) and not (passes and (lost or guesses))
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
            at_chance=guesses,
            lost=lost,
            awaits=awaits,
            floor=None if floor is None else perplexity(floor),
        )

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

    def _guesses(self, arm: str, cell: Cell) -> bool:
        shares = [
            (-cost / 100, item.record.data)
            for place, item in self.whole.items()
            if place[:2] == (arm, cell) and item.record.data
            if (cost := self.measure.cost(item.record.result)) is not None
        ]
        return bool(shares) and not is_above_chance(statistics.fmean(share for share, _ in shares), shares[0][1])


def _decisive(row: Row) -> float | None:
    """Return the p-value of the verdict on the margin; None if there is none, or before the first look."""
    early = row.awaits is not None and (row.difference is None or row.difference.look is None)
    return None if early or row.judgement is None else row.judgement.p_margin


def _choose_look(judgements: Sequence[Judgement]) -> Judgement:
    decided = [item for item in judgements if item.verdict != "undecided" and item.p_margin is not None]
    return min(decided, key=lambda item: item.p_margin or 0.0, default=judgements[-1])
