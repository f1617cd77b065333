"""The answers of a probe: which of them a model gets right, gathered while a split is measured."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from oelm.data.probes import LENGTH, answers
from oelm.models.gpt import GPT
from oelm.models.loss import token_cross_entropy
from oelm.record.losses import TestLossesRecord
from oelm.spec.data import ProbeSpec


class Answers(nn.Module):
    """A GPT that keeps whether the token it finds most likely is the right one; called as the GPT is."""

    def __init__(self, model: GPT, probe: ProbeSpec) -> None:
        super().__init__()
        self.model, self.probe = model, probe
        self.kept: list[Tensor] = []
        self.train(model.training)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean loss over all tokens, and keep what is right."""
        hidden_BTD, weight_VD = self.model.hidden(ids_BT), self.model.token_embedding.weight
        found_BT = (hidden_BTD @ weight_VD.mT).argmax(-1)
        self.kept.append((found_BT == targets_BT).flatten().cpu())
        return token_cross_entropy(hidden_BTD, weight_VD, targets_BT)[0]

    def record(self) -> TestLossesRecord:
        """Count the right answers by document. What was measured begins with a split's first token, in order."""
        right = torch.cat(self.kept).numpy()
        numbers, places = np.divmod(np.arange(1, len(right) + 1), LENGTH)  # the first token is never predicted
        asked = np.isin(places, answers(self.probe))
        counts = np.bincount(numbers[asked])
        correct = np.bincount(numbers[asked], weights=right[asked]).astype(int)
        return TestLossesRecord(kind="answers", correct=tuple(correct.tolist()), tokens=tuple(counts.tolist()))
