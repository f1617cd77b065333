"""Half precision on a CPU: where autocast alone leaves time on the table.

Under autocast matrix products run in bf16 and everything that adds up many terms stays in float32: the residual
stream, the norms, softmax, the loss, the gradients of weights, the weights themselves and their moments. Two things
are not as fast as they could be. Autocast casts the input of q, k and v three times and keeps three copies of it, so
`as_computed` casts it once. And the fused attention kernel of PyTorch computes at the speed of float32, so `attend`
computes causal attention by blocks of queries from plain bf16 products.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

HALF = (torch.bfloat16, torch.float16)
BLOCK = 128
"""Queries in a block: the fastest of 64, 128, 256 and 512 at contexts of 512 and 1,024."""


def computing_type(x: Tensor) -> torch.dtype:
    """Return the type that matrix products of `x` run in here: that of autocast, or its own."""
    # Autocast does not know the meta device, on which costs are counted.
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def as_computed(x: Tensor) -> Tensor:
    """Cast to the type that matrix products run in, once for everything that reads `x`."""
    return x.to(computing_type(x))


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Do what `scaled_dot_product_attention` does, by blocks of queries where that is faster."""
    is_plain = is_causal and attn_mask is None and not dropout_p and not enable_gqa
    is_half = queries.dtype in HALF and queries.device.type == "cpu"
    if is_plain and is_half and queries.shape[2] >= BLOCK and not torch.compiler.is_compiling():
        factor = queries.shape[-1] ** -0.5 if scale is None else scale
        mixed: Tensor = _BlockwiseAttention.apply(queries, keys, values, BLOCK, factor)  # type: ignore[no-untyped-call]
        return mixed
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


class _BlockwiseAttention(torch.autograd.Function):
    """Causal attention in which a block of queries meets only the keys up to its end.

    The logits and the softmax are in float32, as in the fused kernel; only the weights that meet the values are
    rounded. They are computed again in the backward pass: kept, they would be the largest tensors of a layer.

        P = softmax(s Q K^T),  O = P V
        dV = P^T dO,  dS = P * (dO V^T - sum(dO * O)),  dQ = s dS K,  dK = s dS^T Q
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, block: int, scale: float) -> Tensor:
        batch, heads, length, _ = queries.shape
        # In the memory layout (B, T, H, K), so that the heads of a token lie side by side for the output projection.
        out_BHTK = values.new_empty(batch, length, heads, values.shape[-1]).transpose(1, 2)
        wide_queries, wide_keys, flat_values = _wide(queries) * scale, _wide(keys), values.flatten(0, 1)
        triangle = _triangle(block, wide_keys)
        for first in range(0, length, block):
            last = min(first + block, length)
            weights = _weights(wide_queries, wide_keys, triangle, first, last).to(values.dtype)
            out_BHTK[:, :, first:last] = torch.bmm(weights, flat_values[:, :last]).view(batch, heads, last - first, -1)
        ctx.save_for_backward(queries, keys, values, out_BHTK)
        ctx.block, ctx.scale = block, scale
        return out_BHTK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        queries, keys, values, out = ctx.saved_tensors
        needs_queries, needs_keys, needs_values, *_ = ctx.needs_input_grad
        wide_queries, wide_keys = _wide(queries) * ctx.scale, _wide(keys)
        flat_queries, flat_keys, flat_values, grad_out = (x.flatten(0, 1) for x in (queries, keys, values, grads[0]))
        # The sum over keys of each weight times its gradient, which is that of the output times its own.
        shared = (_wide(grads[0]) * _wide(out)).sum(-1, keepdim=True)
        triangle = _triangle(ctx.block, wide_keys)
        # What blocks add up to, half precision would round once for each of them.
        grad_queries, grad_keys = torch.empty_like(wide_queries), torch.zeros_like(wide_keys)
        grad_values = torch.zeros_like(flat_values, dtype=wide_keys.dtype)
        for first in range(0, queries.shape[2], ctx.block):
            last = min(first + ctx.block, queries.shape[2])
            weights = _weights(wide_queries, wide_keys, triangle, first, last)
            grad_block = grad_out[:, first:last]
            if needs_values:
                grad_values[:, :last] += torch.bmm(weights.to(values.dtype).transpose(1, 2), grad_block)
            if not (needs_queries or needs_keys):
                continue
            grad_weights = torch.bmm(grad_block, flat_values[:, :last].transpose(1, 2))
            grad_logits = weights.mul_(grad_weights - shared[:, first:last]).to(queries.dtype)
            if needs_queries:
                grad_queries[:, first:last] = torch.bmm(grad_logits, flat_keys[:, :last])
            if needs_keys:
                grad_keys[:, :last] += torch.bmm(grad_logits.transpose(1, 2), flat_queries[:, first:last])
        return (
            grad_queries.mul_(ctx.scale).view_as(queries).to(queries.dtype) if needs_queries else None,
            grad_keys.mul_(ctx.scale).view_as(keys).to(keys.dtype) if needs_keys else None,
            grad_values.view_as(values).to(values.dtype) if needs_values else None,
            None,
            None,
        )


def _wide(x_BHTK: Tensor) -> Tensor:
    """Flatten batch and heads, in float32 at least."""
    flat = x_BHTK.flatten(0, 1)
    return flat.float() if flat.dtype in HALF else flat


def _triangle(block: int, like: Tensor) -> Tensor:
    """Return what hides successors within a block: minus infinity above the diagonal."""
    return like.new_full((block, block), -math.inf).triu(1)


def _weights(queries: Tensor, keys: Tensor, triangle: Tensor, first: int, last: int) -> Tensor:
    """Return the attention weights of the queries from `first` to `last` over the keys up to `last`."""
    logits = torch.bmm(queries[:, first:last], keys[:, :last].transpose(1, 2))
    logits[:, :, first:] += triangle[: last - first, : last - first]
    return torch.softmax(logits, dim=-1)
