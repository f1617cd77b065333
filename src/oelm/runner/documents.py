"""The losses of a split by document, by position and on repeats, gathered while the split is measured."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from oelm.data.tokens import TokenData
from oelm.models.gpt import GPT
from oelm.models.loss import token_cross_entropy
from oelm.record.losses import TestLossesRecord
from oelm.record.window_losses import TokenLosses, WindowLossesRecord
from oelm.spec.data import Split
from oelm.spec.model import GPT2_VOCAB_SIZE


class DocumentLosses(nn.Module):
    """A GPT that keeps the loss of every token it is measured on; called as the GPT is, it returns the same mean."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        self.kept: list[Tensor] = []
        self.train(model.training)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean loss, and keep its terms."""
        weight_VD = self.model.token_embedding.weight
        mean, losses_BT = token_cross_entropy(self.model.hidden(ids_BT), weight_VD, targets_BT)
        self.kept.append(losses_BT.flatten().cpu())
        return mean

    def records(self, tokens: TokenData, split: Split, context: int) -> tuple[TestLossesRecord, WindowLossesRecord]:
        """Sum what was kept: by document, and by position and repeats. It must be a whole split, in order."""
        ends = GPT2_VOCAB_SIZE - 1 if tokens.meta is None else tokens.meta.tokenizer.end_of_text
        losses, ids = torch.cat(self.kept).numpy(), np.asarray(tokens.split(split))
        return by_document(losses, ids, ends), by_window(losses, ids, context, split)


def by_document(losses: npt.NDArray[np.float32], tokens: npt.NDArray[np.uint16], end_of_text: int) -> TestLossesRecord:
    """Sum the losses of tokens 1, 2, ... by document. An end of text belongs to the document that it ends."""
    numbers = np.cumsum(tokens[:-1] == end_of_text)
    _, places = np.unique(numbers, return_inverse=True)
    nats = np.bincount(places, weights=losses.astype(np.float64))
    counts = np.bincount(places)
    return TestLossesRecord(kind="documents", nats=tuple(nats.tolist()), tokens=tuple(counts.tolist()))


def by_window(
    losses: npt.NDArray[np.float32], tokens: npt.NDArray[np.uint16], context: int, split: Split
) -> WindowLossesRecord:
    """Sum the losses of tokens 1, 2, ... by position in windows of `context`, repeats and others apart.

    Bins of positions double: 0, 1, 2-3, 4-7, ..., as what a longer past adds falls with its length.
    """
    repeats = is_repeat(tokens, context)
    starts = [0, *(1 << power for power in range((context - 1).bit_length()))]
    bins = np.searchsorted(starts, np.arange(len(losses)) % context, side="right") - 1

    def sums(chosen: npt.NDArray[np.bool_]) -> TokenLosses:
        nats = np.bincount(bins[chosen], weights=losses[chosen].astype(np.float64), minlength=len(starts))
        counts = np.bincount(bins[chosen], minlength=len(starts))
        return TokenLosses(nats=tuple(nats.tolist()), tokens=tuple(counts.tolist()))

    return WindowLossesRecord(
        split=split, starts=tuple(starts), context=context, repeats=sums(repeats), others=sums(~repeats)
    )


def is_repeat(tokens: npt.NDArray[np.uint16], context: int) -> npt.NDArray[np.bool_]:
    """Tell of tokens 1, 2, ... whether each completes a bigram that occurs earlier in its window."""
    pairs = tokens[:-1].astype(np.uint64) << np.uint64(16) | tokens[1:].astype(np.uint64)
    keys = (np.arange(len(pairs), dtype=np.uint64) // np.uint64(context)) << np.uint64(32) | pairs
    order = np.argsort(keys, kind="stable")  # equal bigrams of a window next to each other, the earliest first
    found = np.zeros(len(pairs), dtype=np.bool_)
    found[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return found
