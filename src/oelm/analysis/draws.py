"""How much of an arm's spread comes from the frozen draw, where a study varies `draw_seed` as an axis.

Every draw is trained with the same seeds, so a cost is y_ds = mean + draw_d + seed_s + rest_ds with independent random
effects. The mean squares of a complete table of n_d draws and n_s seeds have the expectations

    draws: n_s var(draw) + var(rest)      seeds: n_d var(seed) + var(rest)      rest: var(rest)

which give the variances; a negative one is zero. The draws of one-way groups of unpaired seeds would hide behind the
seeds that they share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from oelm.analysis.compare import Comparison

DRAW = "draw_seed"


@dataclass(frozen=True)
class Spread:
    """Variances of one arm's cost by source."""

    arm: str
    draws: int
    seeds: int
    draw: float
    seed: float
    rest: float
    p: float
    """Of a mean square of draws at least as large if the draw made no difference."""

    @property
    def share(self) -> float:
        """The part of the variance of a single run that comes from the draw."""
        whole = self.draw + self.seed + self.rest
        return self.draw / whole if whole else 0.0


def spread_by_source(arm: str, costs: Mapping[int, Mapping[int, float]]) -> Spread | None:
    """Split the variance of draw -> seed -> cost; None with fewer than two draws or two seeds that all draws share."""
    from scipy.special import fdtrc  # the F distribution alone: scipy.stats takes half a second to import

    shared = sorted(set.intersection(*(set(by_seed) for by_seed in costs.values()))) if costs else []
    if min(len(costs), len(shared)) < 2:
        return None
    table = np.array([[by_seed[seed] for seed in shared] for by_seed in costs.values()])
    draws, seeds = table.shape
    of_draw, of_seed = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    square_draw = seeds * float(of_draw.var(ddof=1))
    square_seed = draws * float(of_seed.var(ddof=1))
    freedom = (draws - 1) * (seeds - 1)
    rest = float(((table - of_draw - of_seed + table.mean()) ** 2).sum()) / freedom
    ratio = square_draw / rest if rest else float("inf")
    return Spread(
        arm, draws, seeds,
        draw=max(0.0, (square_draw - rest) / seeds),
        seed=max(0.0, (square_seed - rest) / draws),
        rest=rest,
        p=float(fdtrc(draws - 1, freedom, ratio)),
    )  # fmt: skip


def spreads(comparison: Comparison) -> list[Spread]:
    """Split the variance of every arm of a study whose one axis is the seed of the draw."""
    if comparison.study.axis_names != (DRAW,):
        return []
    by_arm: dict[str, dict[int, Mapping[int, float]]] = {}
    for row in comparison.rows:
        if row.costs:
            by_arm.setdefault(row.arm, {})[int(row.cell[0][1])] = row.by_seed
    found = (spread_by_source(arm, costs) for arm, costs in by_arm.items())
    return [item for item in found if item]
