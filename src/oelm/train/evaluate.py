"""The loss of a model on a split."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from oelm.train.precision import autocast


@torch.no_grad()
def mean_loss(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, precision: str = "fp32"
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
