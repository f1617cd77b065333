"""What a split says of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oelm.spec.train import Precision
from oelm.train.precision import autocast


@dataclass(frozen=True)
class Measured:
    """The mean loss in nats (per token, or per labelled text), and for labels what they are judged by."""

    loss: float
    accuracy: float | None = None
    macro_f1: float | None = None

    def is_better_than(self, other: Measured) -> bool:
        """Tell whether accuracy is higher, or the loss lower where it is equal or there is none."""
        mine, its = (-math.inf if each.accuracy is None else each.accuracy for each in (self, other))
        return mine > its or (mine == its and self.loss < other.loss)


@torch.no_grad()
def mean_loss(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, precision: Precision = "fp32"
) -> float:
    """Return the mean loss per predicted token, in nats, over batches of inputs and targets."""
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    try:
        for ids_BT, targets_BT in batches:
            with autocast(device, precision):
                loss = model(ids_BT.to(device), targets_BT.to(device))
            total += loss.item() * ids_BT.numel()
            count += ids_BT.numel()
    finally:
        model.train(was_training)
    return total / count
