"""A linear map of a GELU that keeps one wide tensor for the backward pass instead of two.

The feed-forward's hidden layer is the widest activation of a block, and autograd would keep it before and after the
GELU. The one after is cheap to compute again, so only the one before is kept.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oelm.models.half import computing_type


class _GeluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, before: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(before, weight)
        return F.linear(F.gelu(before), weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        before, weight = ctx.saved_tensors
        grad_out = grads[0].flatten(0, -2)
        grad_before = grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = grad_out.T @ F.gelu(before).flatten(0, -2)
        grad_bias = grad_out.sum(0) if ctx.needs_input_grad[2] else None
        if ctx.needs_input_grad[0]:
            grad_after = (grad_out @ weight).view_as(before)
            grad_before = torch.ops.aten.gelu_backward(grad_after, before)
        return grad_before, grad_weight, grad_bias


def gelu_linear(before: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the exact GELU of `before`, times `weight` transposed, plus `bias`."""
    if torch.compiler.is_compiling():  # the compiler chooses better what to keep than this function would
        return F.linear(F.gelu(before), weight, bias)
    kind = computing_type(before)
    result: Tensor = _GeluLinear.apply(before.to(kind), weight.to(kind), bias.to(kind))  # type: ignore[no-untyped-call]
    return result
