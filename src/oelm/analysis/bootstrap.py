"""How much of a difference is luck of the test split: a paired bootstrap over documents or examples.

Each draw takes as many documents as there are, with replacement, the same ones for both arms and every seed. With fewer
than ten shared seeds these are held fast, so the interval says what another test split of the same kind would change,
and nothing about training again: their bootstrap would be far too narrow (three seeds give ten different samples). From
ten on seeds are drawn as well, around the documents, and the interval holds both.

A bootstrap of n documents is too narrow by about what Student's quantile is wider than the normal one, times
sqrt(n / (n - 1)): with eleven documents it covers 88 % instead of 95. So it is widened about its centre by that factor
(Hesterberg, What teachers should know about the bootstrap, 2015), which is 1.19 for eleven and 1.00 for a thousand. It
goes by the seeds where these are drawn, too, and are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell
from oelm.analysis.rows import Row
from oelm.analysis.statistics import CONFIDENCE, Interval
from oelm.errors import BadRecord, UsageError
from oelm.record.losses import TestLossesRecord, read_test_losses

DRAWS = 2000
LEAST_SEEDS = 10
_CHUNK = 200


@dataclass(frozen=True)
class Resampled:
    """An interval of the difference, whether seeds were drawn as well or held fast, and how many texts were."""

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
    """Return the 95 % interval of the difference of cost under resampled documents (and seeds, if asked).

    Raise UsageError where no seed is shared, the runs have different test splits, or fewer than ten seeds are to be
    resampled.
    """
    seeds = sorted(set(arm) & set(reference))
    if over_seeds and len(seeds) < LEAST_SEEDS:
        raise UsageError(
            f"a bootstrap over {len(seeds)} seeds was asked for, and it needs {LEAST_SEEDS}: with fewer its interval "
            "is far too narrow. Use the interval of the paired seeds, or run more seeds."
        )
    losses = [side[seed] for seed in seeds for side in (arm, reference)]
    if len({(item.kind, item.size, item.tokens) for item in losses}) != 1:
        raise UsageError(
            "the noise of a test split is that of one split, seen by both arms with at least one shared seed; found "
            f"{sorted({item.size for item in losses})} documents or examples. Run them on the same data."
        )
    differences_SD = np.stack([_cost(arm[seed]) - _cost(reference[seed]) for seed in seeds])
    sizes_D = _sizes(losses[0])
    means = _resampled(differences_SD, sizes_D, draws, over_seeds=over_seeds)
    tails = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tails, 1 - tails])
    fewest = min(len(sizes_D), len(seeds)) if over_seeds else len(sizes_D)
    centre, wider = float(differences_SD.sum() / sizes_D.sum() / len(seeds)), _widening(fewest, tails)
    return Interval(centre + wider * float(low - centre), centre + wider * float(high - centre))


def _widening(count: int, tails: float) -> float:
    if count < 2:
        return 1.0
    from scipy.special import ndtri, stdtrit

    return float(math.sqrt(count / (count - 1)) * stdtrit(count - 1, tails) / ndtri(tails))


def _cost(losses: TestLossesRecord) -> NDArray[np.float64]:
    if losses.kind == "documents":
        return np.asarray(losses.nats, dtype=np.float64)
    return -100.0 * np.asarray(losses.correct, dtype=np.float64)


def _sizes(losses: TestLossesRecord) -> NDArray[np.float64]:
    return np.asarray(losses.tokens, dtype=np.float64) if losses.tokens else np.ones(losses.size)


def _resampled(
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
    """Return the noise of the test split, for every arm that left its losses; and what could not be read."""
    complaints: list[str] = []
    found: Noise = {}
    for cell in comparison.cells:
        reference = _losses(comparison.reference(cell), complaints)
        for row in comparison.rows:
            own = _losses(row, complaints) if row.cell == cell and row.difference else {}
            shared = set(own) & set(reference)
            if shared and next(iter(own.values())).size > 1:  # a single document has nothing to be drawn anew from
                nested = len(shared) >= LEAST_SEEDS
                try:
                    interval = evaluation_noise(own, reference, over_seeds=nested)
                    found[row.arm, cell] = Resampled(interval, nested, next(iter(own.values())).size)
                except UsageError as error:
                    complaints.append(str(error))
    return found, complaints


def _losses(row: Row, complaints: list[str]) -> dict[int, TestLossesRecord]:
    found = {}
    for item in row.evidence:
        try:
            losses = read_test_losses(item.directory)
        except BadRecord as error:
            complaints.append(str(error))
            continue
        if losses is not None:
            found[item.spec.seed] = losses
    return found
