"""Cross-entropy of a large vocabulary that never holds all logits.

The logits of a whole batch are often the largest tensor of a training step (B T x V). Here a chunk of rows at a
time is projected, turned into its loss and, if a gradient is wanted, into the gradients of the hidden states and
of the vocabulary matrix, while the chunk is still at hand. The backward pass then only scales them: the work is
that of the plain computation, the memory that of one chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_BYTES = 64 * 2**20
"""About this much memory for a chunk of logits: large enough for full speed of the matrix product."""


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        rows = hidden_ND.shape[0]
        chunk = max(1, CHUNK_BYTES // (weight_VD.shape[0] * hidden_ND.element_size()))
        grad_hidden = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        for start in range(0, rows, chunk):
            part_CD, target_C = hidden_ND[start : start + chunk], targets_N[start : start + chunk, None]
            logits_CV = (part_CD @ weight_VD.T).float()
            norm_C = logits_CV.logsumexp(dim=-1, keepdim=True)
            total += (norm_C - logits_CV.gather(1, target_C)).sum()
            if grad_hidden is None and grad_weight is None:
                continue
            grad_CV = logits_CV.sub_(norm_C).exp_()
            grad_CV.scatter_add_(1, target_C, grad_CV.new_full((), -1.0).expand_as(target_C))
            grad_CV = grad_CV.div_(rows).to(hidden_ND.dtype)
            if grad_hidden is not None:
                torch.mm(grad_CV, weight_VD, out=grad_hidden[start : start + chunk])
            if grad_weight is not None:
                grad_weight.addmm_(grad_CV.T, part_CD)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total / rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        # In place: the saved tensors are ours alone, and a second backward is refused by autograd anyway.
        grad_hidden, grad_weight = (saved if saved is None else saved.mul_(grads[0]) for saved in ctx.saved_tensors)
        return grad_hidden, grad_weight, None


def chunked_cross_entropy(hidden_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy of `hidden @ weight.T` against `targets`, in nats."""
    hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
    if torch.is_autocast_enabled(hidden_ND.device.type):
        dtype = torch.get_autocast_dtype(hidden_ND.device.type)
        hidden_ND, weight_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
    loss: Tensor = _ChunkedCrossEntropy.apply(hidden_ND, weight_VD, targets_BT.reshape(-1))  # type: ignore[no-untyped-call]
    return loss


def plain_cross_entropy(hidden_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the same by holding all logits: the reference, and what torch.compile fuses better."""
    logits_BTV = hidden_BTD @ weight_VD.T
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())
