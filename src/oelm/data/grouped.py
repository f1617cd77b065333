"""Batches of rows of about equal length, each a pure function of (seed, step).

An epoch's order is cut into pools, each pool sorted by length and cut into batches, and the batches shuffled. So a
batch is padded little, while which rows meet in it still changes from epoch to epoch. The last batch of an epoch is
filled up with rows from its beginning: no row is left out, a few are seen twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from oelm.data.encoded import Batch, EncodedSplit
from oelm.spec.seeds import derived_seed

POOL_BATCHES = 50
"""So many batches are sorted together: enough for little padding, few enough for batches that differ."""

Rows = npt.NDArray[np.int64]


class GroupedBatches:
    """The batches of one training. With `length`, everything is padded to it and nothing needs grouping."""

    def __init__(self, split: EncodedSplit, *, batch_size: int, seed: int, pad: int, length: int | None = None) -> None:
        self.split, self.batch_size, self.seed, self.pad, self.length = split, batch_size, seed, pad, length
        self.steps_per_epoch = -(-len(split) // batch_size)
        self._order = lru_cache(maxsize=2)(self._ordered)

    def rows(self, step: int) -> Rows:
        """Return the numbers of the rows that belong to a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._order(epoch)[place]

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """Return some rows of a step as the model reads them."""
        return self.split.batch(self.rows(step)[rows], self.length, self.pad)

    def _ordered(self, epoch: int) -> list[Rows]:
        random = np.random.default_rng(derived_seed(self.seed, "batches", epoch))
        order = np.resize(random.permutation(len(self.split)), self.steps_per_epoch * self.batch_size)
        if self.length is not None:
            return np.split(order, self.steps_per_epoch)
        lengths = self.split.lengths
        batches: list[Rows] = []
        for first in range(0, len(order), POOL_BATCHES * self.batch_size):
            pool = order[first : first + POOL_BATCHES * self.batch_size]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += np.split(pool, len(pool) // self.batch_size)
        return [batches[place] for place in random.permutation(len(batches))]


def in_order_of_length(
    split: EncodedSplit, *, batch_size: int, pad: int, limit: int | None = None
) -> Iterator[tuple[Rows, Batch]]:
    """Yield every row of a split once, or evenly spaced ones of about `limit` tokens, equal lengths together."""
    chosen = np.arange(len(split))
    if limit is not None and limit < len(split.ids):
        count = max(1, limit * len(split) // len(split.ids))
        chosen = np.arange(count) * len(split) // count  # rows may be sorted by label, so not the first ones
    order = chosen[np.argsort(split.lengths[chosen], kind="stable")]
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        yield rows, split.batch(rows, None, pad)
