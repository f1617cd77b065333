"""Which documents are held out for validation and test.

Of every `period` consecutive documents, one goes to each split that is drawn; which one is a hash of the seed
and of the number of the stretch. So the share is exact, a document's place follows from its number alone
(reading may begin anywhere), and no part of an ordered corpus is left out. A sealed split takes
each of the remaining training documents with a given probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oelm.spec.data import Split, SplitFile

SPLITS: tuple[Split, ...] = ("train", "val", "test")
SPLIT_FILES: tuple[SplitFile, ...] = (*SPLITS, "sealed")

_SHORTEST_PERIOD = 20
_ENOUGH_BYTES = 16_000_000  # some four million tokens: more would cost time in every evaluation and say no more
_UNKNOWN_SIZE_PERIOD = 100
_SEAL = np.uint64(0x5EA1)  # sealed documents are drawn by a seed of their own
_FIRST_STRETCH = 3  # a corpus of three documents has one for every split


def period_for(num_bytes: int | None) -> int:
    """Return out of how many documents to hold one out: 5 % of a small corpus, less of a large one."""
    if num_bytes is None:
        return _UNKNOWN_SIZE_PERIOD
    return max(_SHORTEST_PERIOD, math.ceil(num_bytes / _ENOUGH_BYTES))


@dataclass(frozen=True, slots=True)
class Allocation:
    """The rule by which a source's documents are shared out: to `own`, except those drawn for others."""

    own: Split
    drawn: tuple[Split, ...] = ()
    period: int = _SHORTEST_PERIOD
    seed: int = 0
    seal: float | None = None
    """Share of the own documents that is sealed. Which ones the others are does not depend on it."""

    def places(self, first: int, count: int) -> NDArray[np.int64]:
        """Return, as indices of `SPLIT_FILES`, where `count` documents from number `first` on belong."""
        places = np.full(count, SPLITS.index(self.own))
        document = np.arange(first, first + count, dtype=np.uint64)
        if self.drawn:
            self._hold_out(places, document)
        if self.seal is not None:
            chance = _mixed(_mixed(np.full(count, self.seed, dtype=np.uint64) ^ _SEAL) + document)
            sealed = (places == SPLITS.index(self.own)) & (chance < np.uint64(int(self.seal * 2**64)))
            places[sealed] = SPLIT_FILES.index("sealed")
        return places

    def _hold_out(self, places: NDArray[np.int64], document: NDArray[np.uint64]) -> None:
        """Draw one document of each stretch for every split that is drawn."""
        count = len(places)
        stretch, number = np.divmod(document, np.uint64(self.period))
        # The first stretch decides among its first three, so that even the smallest corpus has all splits.
        length = np.where(stretch == 0, min(_FIRST_STRETCH, self.period), self.period).astype(np.uint64)
        chance = _mixed(_mixed(np.full(count, self.seed, dtype=np.uint64)) + stretch)
        one = chance % length
        other = (one + np.uint64(1) + (chance >> np.uint64(32)) % (length - np.uint64(1))) % length
        for split, position in zip(self.drawn, (one, other), strict=False):
            places[number == position] = SPLITS.index(split)


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter the bits of each number (SplitMix64), so that neighbours have nothing in common."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
