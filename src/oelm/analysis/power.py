"""What a study could have seen with its seeds, and how many seeds a margin needs.

With true difference delta, standard deviation sigma and n pairs, the t of the margin is noncentral: the verdict *met*
has the probability P(T(f, (margin - delta) sqrt(n) / sigma) > t(f, 0.95)), f being the degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from oelm.analysis.compare import Comparison, compare_folder
from oelm.analysis.measure import MeasureName, contrast, margin_of, measure_of
from oelm.analysis.moderation import fit_prior, has_spread, log_variances
from oelm.analysis.rows import Row
from oelm.analysis.statistics import CONFIDENCE, MOST_SEEDS, Difference
from oelm.errors import OelmError
from oelm.record.store import read_study, study_folders
from oelm.spec.method import ArmClass
from oelm.study import Study

POWER = 0.8
MARGINS = (1.0, 5.0)
"""Margins that are asked about next to the study's own: percent of perplexity, or points of accuracy."""


@dataclass(frozen=True)
class Reach:
    """What a comparison sees in four of five such studies, with its seeds and spread, each arm by itself."""

    met: float
    """*Met*, if the true difference is at most this."""
    not_met: float
    """*Not met*, if it is at least this."""
    nonzero: float
    """Some difference (two-sided, 5 %), if it is at least this on either side."""


@dataclass(frozen=True)
class Spread:
    """How much the paired differences of a class of arms vary over seeds, in the studies on record."""

    arm_class: ArmClass
    typical: float
    """The geometric mean of the arms' standard deviations, corrected for few seeds; nats, or points."""
    largest: float
    """Of the arm that varies most."""
    arms: int
    freedom: int
    """Degrees of freedom of all these arms together."""
    studies: tuple[str, ...]
    alike: bool
    """Whether all of these studies have the model, data and steps of the study that is planned."""
    prior: tuple[float, float] | None
    """d0 and s0 to declare as `Study(prior=...)`; None with one arm, or where arms differ no more than by chance."""


@dataclass(frozen=True)
class Need:
    """How many seeds a margin needs."""

    arm_class: ArmClass
    margin: float
    """Percent of perplexity, or points of accuracy."""
    truth: float
    """The true difference for which it is asked, in the same unit."""
    seeds: int | None
    """For an arm of the typical deviation; None: more than are worth asking for."""
    seeds_largest: int | None
    """For an arm of the largest deviation on record."""


def power_of(gap: float, deviation: float, pairs: int, freedom: float, level: float) -> float:
    """Return how often a one-sided test at a level sees a mean that is a gap away."""
    from scipy.special import nctdtr, stdtrit

    shift = gap * math.sqrt(pairs) / deviation
    # scipy's noncentral t fails far out, where the power is 1 to many digits.
    return 1.0 if shift > 35 else float(1 - nctdtr(freedom, shift, stdtrit(freedom, 1 - level)))


def detectable(deviation: float, pairs: int, freedom: float, level: float) -> float:
    """Return the smallest gap that is seen with 80 % power."""
    low, high = 0.0, deviation
    while power_of(high, deviation, pairs, freedom, level) < POWER:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(middle, deviation, pairs, freedom, level) >= POWER else (middle, high)
    return high


def reach_of(difference: Difference | None) -> Reach | None:
    """Return what a comparison could have seen; None where it has no spread."""
    if difference is None or difference.deviation is None or difference.freedom is None:
        return None
    level = difference.look.level if difference.look else 1 - CONFIDENCE
    gap = detectable(difference.deviation, difference.pairs, difference.freedom, level)
    either = detectable(difference.deviation, difference.pairs, difference.freedom, (1 - CONFIDENCE) / 2)
    return Reach(difference.margin - gap, difference.margin + gap, either)


def seeds_needed(gap: float, deviation: float, level: float = 1 - CONFIDENCE) -> int | None:
    """Return the least number of pairs with which Student's t sees a gap with 80 % power; None: beyond reach."""
    counts = range(2, MOST_SEEDS + 1)
    return next((n for n in counts if gap > 0 and power_of(gap, deviation, n, n - 1, level) >= POWER), None)


def needs(study: Study, spreads: Sequence[Spread]) -> list[Need]:
    """Return how many seeds each margin needs if the truth is no difference, or half of the margin."""
    measure = measure_of(study.base.data, [])
    own = study.margin if study.margin is not None else measure.scaled(margin_of(measure))
    return [
        Need(spread.arm_class, margin, truth, seeds_needed(gap, spread.typical), seeds_needed(gap, spread.largest))
        for spread in spreads
        for margin in dict.fromkeys((*MARGINS, float(f"{own:.6g}")))
        for truth in (0.0, margin / 2)
        if (gap := margin_of(measure, margin) - (margin_of(measure, truth) if truth else 0.0))
    ]


def spreads_on_record(study: Study, roots: Sequence[Path]) -> tuple[list[Spread], list[str]]:
    """Return the spread of each class of the study's arms in the studies below some folders, and what cannot be read.

    Studies with the model, data and steps of this one go first: others count only for a class that these do not have.
    """
    complaints: list[str] = []
    measure = measure_of(study.base.data, []).name
    found = list(_variances(roots, measure, complaints))
    classes = dict.fromkeys(arm.method.arm_class for arm in study.arms if arm.name != study.reference)
    spreads = []
    for kind in classes:
        of_class = [item for item in found if item.arm_class == kind]
        alike = [item for item in of_class if _regime(item.study) == _regime(study)]
        if chosen := alike or of_class:
            spreads.append(_spread(kind, chosen, alike=bool(alike)))
    return spreads, complaints


@dataclass(frozen=True)
class _Variance:
    arm_class: ArmClass
    study: Study
    variance: float
    freedom: int


def _variances(roots: Sequence[Path], measure: MeasureName, complaints: list[str]) -> Iterator[_Variance]:
    """Yield the variance of every arm on record, once: studies take one another's runs over."""
    seen: set[frozenset[str]] = set()
    for folder in dict.fromkeys(path.resolve() for root in roots for path in study_folders(root)):
        try:
            study = read_study(folder)
            comparison = compare_folder(study, folder) if isinstance(study, Study) and not study.is_screen else None
        except OelmError as error:
            complaints.append(str(error))
            continue
        if comparison is None or comparison.measure.name != measure:
            continue
        for row in comparison.rows:
            runs = frozenset(item.record.fingerprint for item in row.evidence)
            differences = list(contrast(row.by_seed, comparison.reference(row.cell).by_seed).values())
            if row.difference and has_spread(differences) and runs not in seen:
                seen.add(runs)
                yield _Variance(
                    _class_of(comparison, row), comparison.study, statistics.variance(differences), len(differences) - 1
                )


def _class_of(comparison: Comparison, row: Row) -> ArmClass:
    return next(arm.method.arm_class for arm in comparison.study.arms if arm.name == row.arm)


def _regime(study: Study) -> tuple[object, ...]:
    base = study.base
    return base.model.meaning(), base.data.corpus, base.data.meaning().get("vocab_size"), base.train.steps


def _spread(kind: ArmClass, found: Sequence[_Variance], *, alike: bool) -> Spread:
    variances, freedoms = [item.variance for item in found], [item.freedom for item in found]
    prior = None
    if len(found) > 1:
        freedom, variance = fit_prior(variances, freedoms)
        prior = (freedom, math.sqrt(variance)) if math.isfinite(freedom) else None
    return Spread(
        arm_class=kind,
        typical=math.exp(statistics.fmean(log_variances(variances, freedoms)) / 2),
        largest=math.sqrt(max(variances)),
        arms=len(found),
        freedom=sum(freedoms),
        studies=tuple(dict.fromkeys(item.study.name for item in found)),
        alike=alike,
        prior=prior,
    )
