"""Batches of a token file, each a pure function of (seed, step).

Training data are the non-overlapping windows of the file, shuffled anew each epoch. No state is kept, so a resumed
run, another arm with the same seed, and each of several processes all know what belongs to a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oelm.errors import BadData
from oelm.spec.seeds import derived_seed

Tokens = npt.NDArray[np.uint16]


def num_windows(tokens: int, context: int) -> int:
    """Return how many windows a training split is cut into; refuse none."""
    windows = (tokens - 1) // context
    if windows < 1:
        raise BadData(
            f"the training split has {tokens} tokens, too few for one window of {context} + 1. "
            "Prepare more text, or take a smaller model.context."
        )
    return windows


class TrainingBatches:
    """The batches of one training: `batch(step)` gives inputs and targets of shape (B, T)."""

    def __init__(self, tokens: Tokens, *, context: int, batch_size: int, seed: int) -> None:
        self.tokens, self.context, self.batch_size, self.seed = tokens, context, batch_size, seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    @cached_property
    def num_windows(self) -> int:
        """How many windows there are; asked for when training, so that text with less than one can be measured."""
        return num_windows(len(self.tokens), self.context)

    @property
    def steps_per_epoch(self) -> float:
        """How many steps see every window once."""
        return self.num_windows / self.batch_size

    def windows(self, step: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the windows that belong to a step."""
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, within = np.divmod(places, self.num_windows)
        return np.array([self._order(int(epoch))[place] for epoch, place in zip(epochs, within, strict=True)])

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, or of some rows of it."""
        starts = self.windows(step)[rows] * self.context
        return _cut(self.tokens, starts, self.context)

    def _shuffled(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng(derived_seed(self.seed, "batches", epoch)).permutation(self.num_windows)


def evaluation_batches(
    tokens: Tokens, *, context: int, batch_size: int, limit: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every token of a split, but the first, as a target once, in order; `limit`: about that many tokens.

    Windows do not overlap; the last one is as short as what is left.
    """
    if len(tokens) < 2:
        raise BadData(f"the split has {len(tokens)} tokens; a loss needs at least 2. Prepare more text.")
    predicted = len(tokens) - 1
    if limit is not None:
        predicted = min(predicted, max(context, limit // context * context))
    starts = np.arange(0, predicted // context * context, context)
    for first in range(0, len(starts), batch_size):
        yield _cut(tokens, starts[first : first + batch_size], context)
    rest = predicted % context
    if rest:
        yield _cut(tokens, np.array([predicted - rest]), rest)


def _cut(tokens: Tokens, starts: npt.NDArray[np.int64], length: int) -> tuple[Tensor, Tensor]:
    rows = np.stack([tokens[start : start + length + 1] for start in starts]).astype(np.int64)
    both = torch.from_numpy(rows)
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()
