"""Cross-entropy of a large vocabulary that never holds all logits.

The logits of a whole batch are often the largest tensor of a training step (B T x V). Here a chunk of rows at a
time is projected, turned into its loss and, if a gradient is wanted, into the gradients of the hidden states and
of the vocabulary matrix, while the chunk is still at hand. The backward pass then only scales them: the work is
that of the plain computation, the memory that of one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 2**20
"""About this much memory for a chunk of logits: large enough for full speed of the matrix product."""


_Chunk = tuple[int, Tensor, Tensor, Tensor, Tensor]
"""Some rows: their first, their targets (1, C), exponentials (V, C), the sums of those and the losses, both (1, C)."""


def _chunks(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Iterator[_Chunk]:
    rows, vocabulary = hidden_ND.shape[0], weight_VD.shape[0]
    most = max(1, CHUNK_BYTES // (vocabulary * hidden_ND.element_size()))
    chunk = math.ceil(rows / math.ceil(rows / most))
    # One block for the logits of every chunk: a fresh one each time would cost more than it saves.
    block = hidden_ND.new_empty(vocabulary * chunk)
    for start in range(0, rows, chunk):
        part_CD, target_1C = hidden_ND[start : start + chunk], targets_N[None, start : start + chunk]
        # The vocabulary first: as (V, C) the products run up to twice as fast on a CPU as the other way round.
        logits_VC = block[: vocabulary * part_CD.shape[0]].view(vocabulary, -1)
        logits_VC = torch.mm(weight_VD, part_CD.T, out=logits_VC).float()
        largest_1C, wanted_1C = logits_VC.amax(0, keepdim=True), logits_VC.gather(0, target_1C)
        # In place and once: exponentials of this many logits are a good part of a step.
        exps_VC = logits_VC.sub_(largest_1C).exp_()
        mass_1C = exps_VC.sum(0, keepdim=True)
        yield start, target_1C, exps_VC, mass_1C, mass_1C.log() + largest_1C - wanted_1C


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        rows, is_half = hidden_ND.shape[0], hidden_ND.dtype in (torch.float16, torch.bfloat16)
        # A gradient scaler reaches us only in the backward pass. Until then fp16, which knows nothing below 6e-8, holds
        # the gradients of the sum. What the chunks add up to, half precision would round once for each of them.
        divisor = 1 if hidden_ND.dtype == torch.float16 else rows
        ctx.divisor_left = rows // divisor
        grad_hidden = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(weight_VD, dtype=torch.float32 if is_half else None)
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        for start, target_1C, exps_VC, mass_1C, losses_1C in _chunks(hidden_ND, weight_VD, targets_N):
            total += losses_1C.sum()
            if grad_hidden is None and grad_weight is None:
                continue
            grad_VC = exps_VC.mul_(1 / (mass_1C * divisor))
            grad_VC.scatter_add_(0, target_1C, grad_VC.new_full((), -1.0 / divisor).expand_as(target_1C))
            grad_VC = grad_VC.to(hidden_ND.dtype)
            span = slice(start, start + target_1C.shape[1])
            if grad_hidden is not None:
                torch.mm(grad_VC.T, weight_VD, out=grad_hidden[span])
            if grad_weight is not None and is_half:
                grad_weight += grad_VC @ hidden_ND[span]
            elif grad_weight is not None:
                grad_weight.addmm_(grad_VC, hidden_ND[span])
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total / rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        # In place: the saved tensors are ours alone, and a second backward is refused by autograd anyway.
        factor = grads[0] / ctx.divisor_left
        grad_hidden, grad_weight = (saved if saved is None else saved.mul_(factor) for saved in ctx.saved_tensors)
        return grad_hidden, grad_weight, None


def chunked_cross_entropy(hidden_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy of `hidden @ weight.T` against `targets`, in nats."""
    hidden_ND, weight_VD = _as_computed(hidden_BTD, weight_VD)
    loss: Tensor = _ChunkedCrossEntropy.apply(hidden_ND, weight_VD, targets_BT.reshape(-1))  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def token_cross_entropy(hidden_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same mean, to the bit, and its terms: the cross-entropy of every token by itself, (B, T)."""
    hidden_ND, weight_VD = _as_computed(hidden_BTD, weight_VD)
    chunks = [losses_1C for *_, losses_1C in _chunks(hidden_ND, weight_VD, targets_BT.reshape(-1))]
    total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
    for losses_1C in chunks:  # one after another, as above: another order of summing ends in other bits
        total += losses_1C.sum()
    return total / hidden_ND.shape[0], torch.cat(chunks, dim=1).view_as(targets_BT)


def _as_computed(hidden_BTD: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten to rows, in the precision that is asked for."""
    hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
    if torch.is_autocast_enabled(hidden_ND.device.type):
        dtype = torch.get_autocast_dtype(hidden_ND.device.type)
        return hidden_ND.to(dtype), weight_VD.to(dtype)
    return hidden_ND, weight_VD
