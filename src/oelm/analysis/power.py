"""What a comparison can tell: which differences it detects with its seeds, and how noisy its test split is.

Power: with true difference delta, standard deviation sigma, n pairs and f degrees of freedom, the t statistic of the
margin is noncentral: the verdict *met* has the probability P(T(f, (margin - delta) sqrt(n) / sigma) > t(f, 0.95)).

Noise: an interval over seeds does not show what another test split of the same kind would change; a bootstrap does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.compare import Comparison, compare_folder
from oelm.analysis.evidence import Cell, MeasureName, contrast, margin_of, measure_of
from oelm.analysis.statistics import (
    CONFIDENCE,
    MOST_SEEDS,
    Difference,
    Interval,
    fit_prior,
    has_spread,
    log_variances,
    t_quantile,
)
from oelm.errors import OelmError, UsageError
from oelm.record.folder import TestLossesRecord, read_study, read_test_losses, study_folders
from oelm.spec.method import ArmClass
from oelm.spec.study import Study

# Power: the differences that seeds detect, and the seeds that a margin needs.

POWER = 0.8
PLANNED_MARGINS = (1.0, 5.0)
"""Margins that are planned for in addition to the study's own: percent of perplexity, or points of accuracy."""


@dataclass(frozen=True)
class Reach:
    """The true differences that a comparison detects with 80 % power, given its seeds and spread, for one arm alone."""

    met: float
    """The verdict is *met* if the true difference is at most this."""
    not_met: float
    """The verdict is *not met* if the true difference is at least this."""
    nonzero: float
    """A difference from zero is found (two-sided, 5 %) if it is at least this in size."""


@dataclass(frozen=True)
class SeedSpread:
    """How much the paired differences of a class of arms vary over seeds, according to the studies on record."""

    arm_class: ArmClass
    typical: float
    """The geometric mean of the arms' standard deviations, corrected for few seeds; nats, or points."""
    largest: float
    """The standard deviation of the arm that varies most."""
    arms: int
    freedom: int
    """Degrees of freedom of all these arms together."""
    studies: tuple[str, ...]
    alike: bool
    """Whether all of these studies have the model, data and steps of the planned study."""
    prior: tuple[float, float] | None
    """d0 and s0 to declare as `Study(prior=...)`; None with one arm, or if arms differ no more than by chance."""


@dataclass(frozen=True)
class Need:
    """How many seeds a margin needs."""

    arm_class: ArmClass
    margin: float
    """Percent of perplexity, or points of accuracy."""
    truth: float
    """The assumed true difference, in the same unit."""
    seeds: int | None
    """Seeds for an arm of the typical deviation; None: beyond reach."""
    seeds_largest: int | None
    """Seeds for an arm of the largest deviation on record."""


def power_of(gap: float, deviation: float, pairs: int, freedom: float, level: float) -> float:
    """Return how often a one-sided test at a level detects a mean at distance `gap`."""
    from scipy.special import nctdtr

    shift = gap * math.sqrt(pairs) / deviation
    # scipy's noncentral t fails for large shifts, where the power is 1 to many digits.
    return 1.0 if shift > 35 else float(1 - nctdtr(freedom, shift, t_quantile(freedom, 1 - level)))


def detectable(deviation: float, pairs: int, freedom: float, level: float) -> float:
    """Return the smallest gap that is detected with 80 % power."""
    low, high = 0.0, deviation
    while power_of(high, deviation, pairs, freedom, level) < POWER:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(middle, deviation, pairs, freedom, level) >= POWER else (middle, high)
    return high


def reach_of(difference: Difference | None) -> Reach | None:
    """Return what a comparison can detect; None if it has no spread."""
    if difference is None or difference.deviation is None or difference.freedom is None:
        return None
    level = difference.look.level if difference.look else 1 - CONFIDENCE
    gap = detectable(difference.deviation, difference.pairs, difference.freedom, level)
    either = detectable(difference.deviation, difference.pairs, difference.freedom, (1 - CONFIDENCE) / 2)
    return Reach(difference.margin - gap, difference.margin + gap, either)


def seeds_needed(gap: float, deviation: float, level: float = 1 - CONFIDENCE) -> int | None:
    """Return the least number of pairs with which Student's t detects a gap with 80 % power; None: beyond reach."""
    counts = range(2, MOST_SEEDS + 1)
    return next((n for n in counts if gap > 0 and power_of(gap, deviation, n, n - 1, level) >= POWER), None)


def needs(study: Study, spreads: Sequence[SeedSpread]) -> list[Need]:
    """Return how many seeds each margin needs if the true difference is zero, or half of the margin."""
    measure = measure_of(study.base.data, [])
    own = study.margin if study.margin is not None else measure.scaled(margin_of(measure))
    return [
        Need(spread.arm_class, margin, truth, seeds_needed(gap, spread.typical), seeds_needed(gap, spread.largest))
        for spread in spreads
        for margin in dict.fromkeys((*PLANNED_MARGINS, float(f"{own:.6g}")))
        for truth in (0.0, margin / 2)
        if (gap := margin_of(measure, margin) - (margin_of(measure, truth) if truth else 0.0))
    ]


def spreads_on_record(study: Study, roots: Sequence[Path]) -> tuple[list[SeedSpread], list[str]]:
    """Return the spread of each class of the study's arms in the studies below some folders, and read errors.

    Studies with the model, data and steps of this one are preferred; others are used only for classes without any.
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
    """Yield the variance of every arm on record once, although studies share runs."""
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
                kind = next(arm.method.arm_class for arm in comparison.study.arms if arm.name == row.arm)
                yield _Variance(kind, comparison.study, statistics.variance(differences), len(differences) - 1)


def _regime(study: Study) -> tuple[object, ...]:
    base = study.base
    return base.model.meaning(), base.data.corpus, base.data.meaning().get("vocab_size"), base.train.steps


def _spread(kind: ArmClass, found: Sequence[_Variance], *, alike: bool) -> SeedSpread:
    variances, freedoms = [item.variance for item in found], [item.freedom for item in found]
    prior = None
    if len(found) > 1:
        freedom, variance = fit_prior(variances, freedoms)
        prior = (freedom, math.sqrt(variance)) if math.isfinite(freedom) else None
    return SeedSpread(
        arm_class=kind,
        typical=math.exp(statistics.fmean(log_variances(variances, freedoms)) / 2),
        largest=math.sqrt(max(variances)),
        arms=len(found),
        freedom=sum(freedoms),
        studies=tuple(dict.fromkeys(item.study.name for item in found)),
        alike=alike,
        prior=prior,
    )


# The noise of the test split: a paired bootstrap over documents or examples.
#
# Each draw resamples the documents with replacement, the same ones for both arms and every seed. With fewer than ten
# shared seeds, the seeds are fixed: the interval shows what another test split of the same kind would change, but not
# what training again would change (a bootstrap over three seeds has only ten different samples and is far too narrow).
# From ten seeds on, seeds are resampled as well, and the interval covers both.
#
# A bootstrap of n documents is too narrow: with eleven documents it covers 88 % instead of 95 %. So it is widened about
# its centre by sqrt(n / (n - 1)) times the ratio of Student's to the normal quantile (Hesterberg, What teachers should
# know about the bootstrap, 2015): 1.19 for eleven documents, 1.00 for a thousand. If seeds are resampled too and are
# fewer, n is their number.

DRAWS = 2000
LEAST_SEEDS = 10
"""With fewer shared seeds, a bootstrap does not resample them."""
_CHUNK = 200


@dataclass(frozen=True)
class Resampled:
    """An interval of the difference, whether seeds were resampled too, and the number of documents or examples."""

    interval: Interval
    over_seeds: bool
    texts: int


Noise = dict[tuple[str, Cell], Resampled]


def evaluation_noise(
    arm: Mapping[int, TestLossesRecord],
    reference: Mapping[int, TestLossesRecord],
    *,
    over_seeds: bool = False,
    draws: int = DRAWS,
) -> Interval:
    """Return the 95 % interval of the difference of cost under resampled documents (and seeds, with `over_seeds`).

    Raise UsageError if no seed is shared, if the runs have different test splits, or if `over_seeds` is set for fewer
    than ten seeds.
    """
    seeds = sorted(set(arm) & set(reference))
    if over_seeds and len(seeds) < LEAST_SEEDS:
        raise UsageError(
            f"a bootstrap over {len(seeds)} seeds is far too narrow: it needs {LEAST_SEEDS}. Use the interval of the "
            "paired seeds, or run more seeds."
        )
    losses = [side[seed] for seed in seeds for side in (arm, reference)]
    if len({(item.kind, item.size, item.tokens) for item in losses}) != 1:
        raise UsageError(
            "the noise of a test split needs one split that both arms share, and at least one shared seed. Found "
            f"{sorted({item.size for item in losses})} documents or examples. Run both arms on the same data."
        )
    differences_SD = np.stack([_cost(arm[seed]) - _cost(reference[seed]) for seed in seeds])
    sizes_D = _sizes(losses[0])
    means = _resample(differences_SD, sizes_D, draws, over_seeds=over_seeds)
    tails = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tails, 1 - tails])
    fewest = min(len(sizes_D), len(seeds)) if over_seeds else len(sizes_D)
    centre, wider = float(differences_SD.sum() / sizes_D.sum() / len(seeds)), _widen(fewest, tails)
    return Interval(centre + wider * float(low - centre), centre + wider * float(high - centre))


def _widen(count: int, tails: float) -> float:
    from scipy.special import ndtri

    return math.sqrt(count / (count - 1)) * t_quantile(count - 1, tails) / float(ndtri(tails)) if count > 1 else 1.0


def _cost(losses: TestLossesRecord) -> NDArray[np.float64]:
    if losses.kind == "documents":
        return np.asarray(losses.nats, dtype=np.float64)
    return -100.0 * np.asarray(losses.correct, dtype=np.float64)


def _sizes(losses: TestLossesRecord) -> NDArray[np.float64]:
    return np.asarray(losses.tokens, dtype=np.float64) if losses.tokens else np.ones(losses.size)


def _resample(
    differences_SD: NDArray[np.float64], sizes_D: NDArray[np.float64], draws: int, *, over_seeds: bool
) -> NDArray[np.float64]:
    rng = np.random.default_rng(0)  # the same records give the same interval
    seeds, documents = differences_SD.shape
    found = []
    for first in range(0, draws, _CHUNK):
        count = min(_CHUNK, draws - first)
        weights_CD = rng.multinomial(documents, np.full(documents, 1 / documents), size=count)
        means_CS = (weights_CD @ differences_SD.T) / (weights_CD @ sizes_D)[:, None]
        shares_CS = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=count) / seeds if over_seeds else 1 / seeds
        found.append((means_CS * shares_CS).sum(1))
    return np.concatenate(found)


def noise_of(comparison: Comparison) -> tuple[Noise, list[str]]:
    """Return the noise of the test split for every arm whose runs kept their losses, and what could not be read."""
    complaints: list[str] = []
    found: Noise = {}
    for cell in comparison.cells:
        reference = comparison.reference(cell).read(read_test_losses, complaints)
        for row in comparison.rows:
            own = row.read(read_test_losses, complaints) if row.cell == cell and row.difference else {}
            shared = set(own) & set(reference)
            if shared and next(iter(own.values())).size > 1:  # one document cannot be resampled
                nested = len(shared) >= LEAST_SEEDS
                try:
                    interval = evaluation_noise(own, reference, over_seeds=nested)
                    found[row.arm, cell] = Resampled(interval, nested, next(iter(own.values())).size)
                except UsageError as error:
                    complaints.append(str(error))
    return found, complaints
