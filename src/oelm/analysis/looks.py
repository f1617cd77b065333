"""Declared looks: when a study may be judged before all its seeds are there, and by which stricter bounds.

A one-sided error of 5 % is spent over the looks as O'Brien and Fleming's bounds spend it (Lan and DeMets 1983). With
the share u of all seeds,

    spent(u) = 2 - 2 Phi(z(1 - alpha / 2) / sqrt(u)),

which is almost nothing early on. The nominal level of look k is such that sums of normal differences cross their bound
for the first time at look k with probability spent(u_k) - spent(u_(k-1)). The p-value of Student's t at that look is
held against this level (the significance-level approach of Pocock 1977). A simulation with few seeds checks the result
(tests/analysis/test_looks.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

ERROR = 0.05
"""One-sided probability of a wrong verdict on the margin."""
_NODES = 64
_FAR = 9.0
"""Standard deviations beyond which a normal density is taken for zero."""


@dataclass(frozen=True)
class Look:
    """One of the looks of a study."""

    number: int
    """From 1 on."""
    seeds: tuple[int, ...]
    """Numbers of seeds of every look."""

    @property
    def last(self) -> bool:
        """Whether all seeds are in it."""
        return self.number == len(self.seeds)

    @property
    def count(self) -> int:
        """The number of seeds in it."""
        return self.seeds[self.number - 1]

    @property
    def level(self) -> float:
        """The one-sided level that a p-value at this look is held against."""
        return self._level(ERROR)

    def overall(self, p: float) -> float:
        """Return the least overall error at which a p-value of this look would decide: p itself if it is the only look.

        Such p-values of different looks and arms can be compared with one another and with 5 %, and corrected by Holm.
        """
        if len(self.seeds) == 1:
            return p
        low, high = 0.0, 1.0
        for _ in range(36):
            middle = (low + high) / 2
            low, high = (low, middle) if self._level(middle) >= p else (middle, high)
        return high

    def _level(self, error: float) -> float:
        return nominal_levels(tuple(count / self.seeds[-1] for count in self.seeds), error)[self.number - 1]


def looks_of(seeds: int, declared: Sequence[int]) -> list[Look]:
    """Return the looks of a study: those it declares, or a single one at all its seeds."""
    counts = tuple(declared) or (seeds,)
    return [Look(number, counts) for number in range(1, len(counts) + 1)]


def spent(share: float, error: float) -> float:
    """Return the part of the error that may be spent when a share of the seeds is there."""
    from scipy.special import ndtr, ndtri

    return float(2 * ndtr(ndtri(error / 2) / math.sqrt(share)))


@cache
def nominal_levels(shares: tuple[float, ...], error: float = ERROR) -> tuple[float, ...]:
    """Return the one-sided level of each look, for looks at increasing shares of the seeds, the last of which is 1.

    S(u) is a Brownian motion. Its density on the paths that crossed no bound so far is carried from look to look on the
    nodes of Gauss and Legendre (Armitage, McPherson and Rowe 1969).
    """
    import numpy as np
    from scipy.special import ndtr

    levels: list[float] = []
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    points, mass = np.zeros(1), np.ones(1)  # S(0) = 0
    before = 0.0
    for share in shares:
        step = math.sqrt(share - before)
        goal = spent(share, error) - (spent(before, error) if before else 0.0)
        low, high = -_FAR, _FAR  # of the bound on S / sqrt(share)
        for _ in range(44):
            bound = (low + high) / 2
            crossing = float(mass @ ndtr((points - bound * math.sqrt(share)) / step))
            low, high = (bound, high) if crossing > goal else (low, bound)
        levels.append(float(ndtr(-high)))
        start, end = -_FAR * math.sqrt(share), high * math.sqrt(share)
        reached = start + (nodes + 1) / 2 * (end - start)
        density = np.exp(-(((reached[:, None] - points) / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        points, mass = reached, density @ mass * weights * (end - start) / 2
        before = share
    return tuple(levels)
