"""The losses of the test split by document, gathered while the split is measured."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from oelm.data.tokens import TokenData
from oelm.models.gpt import GPT
from oelm.models.loss import token_cross_entropy
from oelm.record.losses import TestLossesRecord
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

    def record(self, tokens: TokenData) -> TestLossesRecord:
        """Sum what was kept by document. The tokens are those of the whole test split, in order."""
        ends = GPT2_VOCAB_SIZE - 1 if tokens.meta is None else tokens.meta.tokenizer.end_of_text
        return by_document(torch.cat(self.kept).numpy(), np.asarray(tokens.split("test")), ends)


def by_document(losses: npt.NDArray[np.float32], tokens: npt.NDArray[np.uint16], end_of_text: int) -> TestLossesRecord:
    """Sum the losses of tokens 1, 2, ... by document. An end of text belongs to the document that it ends."""
    numbers = np.cumsum(tokens[:-1] == end_of_text)
    _, places = np.unique(numbers, return_inverse=True)
    nats = np.bincount(places, weights=losses.astype(np.float64))
    counts = np.bincount(places)
    return TestLossesRecord(kind="documents", nats=tuple(nats.tolist()), tokens=tuple(counts.tolist()))
