"""Whether the plain interval is true as often as it claims, over simulated studies that tune.

The moderated one is simulated by scripts/coverage.py (test_moderation.py).

Every simulated study has a reference and four arms, a large effect of the seed that all share, arms of unequal
variance, and a tune stage: each arm's learning rate is chosen on a grid by its own tuning seeds, then confirmed with
fresh ones. Vectorised over studies; a sample is recomputed by the product's own functions.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import stdtrit

from oelm.analysis.statistics import MARGIN, paired_difference

STUDIES = 2000
EFFECTS = np.array([0.0, MARGIN, 0.10, 0.10, -0.02])
"""Of the reference and four arms, at the best learning rate of each; the first is on the margin."""
DEVIATIONS = np.array([0.010, 0.030, 0.010, 0.060, 0.005])
SEED_DEVIATION = 0.3
GRID = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
"""Of log2 learning rates."""
CURVATURE = 0.05
"""Nats lost one step of the grid away from the best rate."""


def simulated(seeds: int, tuning_seeds: int = 1) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return costs of (study, arm, seed), and what each arm truly costs at the rate chosen for it."""
    rng = np.random.default_rng(1000 + seeds)
    best = rng.choice(GRID[1:-1], size=(STUDIES, EFFECTS.size))
    bowl = CURVATURE * (GRID - best[..., None]) ** 2
    tuning = rng.normal(0, SEED_DEVIATION, (STUDIES, 1, 1, tuning_seeds)) + EFFECTS[:, None, None] + bowl[..., None]
    tuning = tuning + rng.normal(0, 1, tuning.shape) * DEVIATIONS[:, None, None]
    chosen = tuning.mean(-1).argmin(-1)
    truth = EFFECTS + np.take_along_axis(bowl, chosen[..., None], -1)[..., 0]
    shared = rng.normal(1.5, SEED_DEVIATION, (STUDIES, 1, seeds))
    return truth[..., None] + shared + rng.normal(0, 1, (STUDIES, EFFECTS.size, seeds)) * DEVIATIONS[:, None], truth


def paired(costs: NDArray[np.float64], confidence: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the two-sided bounds of every arm but the reference: (study, arm)."""
    differences = costs[:, 1:] - costs[:, :1]
    seeds = differences.shape[-1]
    half = stdtrit(seeds - 1, 0.5 + confidence / 2) * differences.std(-1, ddof=1) / np.sqrt(seeds)
    return differences.mean(-1) - half, differences.mean(-1) + half


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_95_percent_interval_covers_the_truth_in_93_to_97_of_100_for_every_arm(seeds: int) -> None:
    costs, truth = simulated(seeds)
    low, high = paired(costs, 0.95)
    effects = truth[:, 1:] - truth[:, :1]
    for arm in range(EFFECTS.size - 1):
        covered = ((low <= effects) & (effects <= high))[:, arm].mean()
        assert 0.93 <= covered <= 0.97, (arm, covered)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_met_on_the_margin_happens_in_at_most_5_of_100(seeds: int) -> None:
    costs, truth = simulated(seeds)
    costs = costs + (EFFECTS - truth)[..., None]  # every arm at its best rate, so that the first is on the margin
    _, high = paired(costs, 0.90)
    assert (high[:, 0] < MARGIN).mean() <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / STUDIES)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_where_tuning_can_see_its_grid_the_effect_at_the_best_rates_is_covered_as_well(seeds: int) -> None:
    """The interval is of the effect at the chosen rates. A rate chosen by luck costs the arm that was unlucky, so the
    effect at the best rates is covered only where a step of the grid is well above an arm's noise."""
    costs, _ = simulated(seeds)
    low, high = paired(costs, 0.95)
    effects = EFFECTS[1:] - EFFECTS[0]
    covered = ((low <= effects) & (effects <= high)).mean(0)
    seeing = CURVATURE / DEVIATIONS[1:] >= 5
    assert (covered[seeing] >= 0.93).all()
    assert (covered[seeing] <= 0.97).all()
    assert covered[~seeing].min() < covered[seeing].min()


def test_the_simulation_computes_what_the_product_computes() -> None:
    costs, _ = simulated(5)
    low, high = paired(costs, 0.95)
    for study in range(20):
        for arm in range(1, EFFECTS.size):
            found = paired_difference(list(costs[study, arm] - costs[study, 0])).interval
            assert found is not None
            assert (found.low, found.high) == pytest.approx((low[study, arm - 1], high[study, arm - 1]))
