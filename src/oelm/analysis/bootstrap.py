"""The noise of the test split: a paired bootstrap over documents or examples.

Each draw resamples the documents with replacement, the same ones for both arms and every seed. With fewer than ten
shared seeds, the seeds are fixed: the interval shows what another test split of the same kind would change, but not
what training again would change (a bootstrap over three seeds has only ten different samples and is far too narrow).
From ten seeds on, seeds are resampled as well, and the interval covers both.

A bootstrap of n documents is too narrow: with eleven documents it covers 88 % instead of 95 %. So it is widened about
its centre by sqrt(n / (n - 1)) times the ratio of Student's to the normal quantile (Hesterberg, What teachers should
know about the bootstrap, 2015): 1.19 for eleven documents, 1.00 for a thousand. If seeds are resampled too and are
fewer, n is their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell
from oelm.analysis.statistics import CONFIDENCE, Interval, t_quantile
from oelm.errors import UsageError
from oelm.record.folder import TestLossesRecord, read_test_losses

DRAWS = 2000
LEAST_SEEDS = 10
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
