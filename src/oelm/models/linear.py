"""Faster forms of three operations of our GPT, with the same results.

- `SlicedLinear`: a linear map whose rows are multiples of unit vectors needs no matrix product, forward or backward.
  Its output is some coordinates of the input, each times a factor. The dense weight stays as the (frozen) parameter, so
  counting, hashing, saving and exporting see an ordinary linear layer.
- `attend`: causal attention in half precision on a CPU.
- `gelu_linear`: a GELU and a linear map that keep one wide tensor for the backward pass instead of two.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MAX_RUNS = 4
"""Up to this many runs of consecutive coordinates are read as views; more are gathered one by one."""


class Coordinates(nn.Module):
    """The coordinate of the input that each row of a weight reads."""

    places: Tensor
    runs: list[tuple[int, int]]

    def __init__(self, weight_CI: Tensor) -> None:
        super().__init__()
        self.find(weight_CI)

    def find(self, weight_CI: Tensor) -> None:
        """Find the coordinate that each row reads.

        Raises:
            ValueError: a row is not a multiple of a unit vector.

        """
        weight_CI = weight_CI.detach()
        places = weight_CI.abs().argmax(dim=1)
        read = torch.zeros_like(weight_CI, dtype=torch.bool).scatter_(1, places[:, None], value=True)
        if bool(weight_CI[~read].any()) or not bool(weight_CI[read].all()):
            raise ValueError("the rows are not multiples of unit vectors")
        self.register_buffer("places", places, persistent=False)
        self.runs = _runs(places.tolist())

    def forward(self, weight_CI: Tensor, x: Tensor) -> Tensor:
        """Return the product with the weight."""
        # The factors are read each time, because weights may be loaded later.
        factors_C = weight_CI.gather(1, self.places[:, None])[:, 0].to(x.dtype)
        if len(self.runs) > MAX_RUNS or torch.compiler.is_compiling():
            return x[..., self.places] * factors_C
        read: Tensor = _ReadRuns.apply(x, factors_C, self.runs)  # type: ignore[no-untyped-call]
        return read


class _ReadRuns(torch.autograd.Function):
    """Read runs of coordinates times their factors in one pass; plain autograd would copy several times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors_C: Tensor, runs: list[tuple[int, int]]) -> Tensor:
        """Return the coordinates, run after run."""
        ctx.save_for_backward(factors_C)
        ctx.runs, ctx.size = runs, x.shape[-1]
        out = x.new_empty(*x.shape[:-1], factors_C.shape[0])
        start = 0
        for first, length in runs:
            part = out.narrow(-1, start, length)
            torch.mul(x.narrow(-1, first, length), factors_C[start : start + length], out=part)
            start += length
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the input; two runs may read the same coordinate."""
        (factors_C,), grad = ctx.saved_tensors, grads[0]
        grad_x = grad.new_zeros(*grad.shape[:-1], ctx.size)
        start = 0
        for first, length in ctx.runs:
            part = grad_x.narrow(-1, first, length)
            part.addcmul_(grad.narrow(-1, start, length), factors_C[start : start + length])
            start += length
        return grad_x, None, None


class SlicedLinear(Coordinates, nn.Linear):
    """An `nn.Linear` without bias in which each frozen row reads one coordinate."""

    def __init__(self, dense: nn.Linear) -> None:
        nn.Linear.__init__(self, dense.in_features, dense.out_features, bias=False, device="meta")
        self.weight = dense.weight
        self.find(self.weight)
        self.has_trained = False

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # a linear layer has its own weight
        """Read the coordinates. A weight that has been trained is multiplied, even if it is frozen again."""
        if self.weight.requires_grad:
            self.has_trained = True
        if self.has_trained:
            return nn.Linear.forward(self, x)
        return Coordinates.forward(self, self.weight, x)


def is_sliced(module: nn.Module | None) -> bool:
    """Return whether a module reads coordinates instead of multiplying."""
    return isinstance(module, SlicedLinear) and not (module.has_trained or module.weight.requires_grad)


def _runs(places: list[int]) -> list[tuple[int, int]]:
    """Return the first coordinate and the length of each run of consecutive coordinates."""
    starts = [at for at in range(len(places)) if at == 0 or places[at] != places[at - 1] + 1]
    return [(places[start], end - start) for start, end in zip(starts, [*starts[1:], len(places)], strict=True)]


# Half precision on a CPU.
#
# Under autocast, matrix products run in bf16, and everything that sums many terms stays in float32: the residual
# stream, norms, softmax, the loss, weights, their gradients and moments. Two things can be faster. Autocast casts the
# input of q, k and v three times and keeps three copies, so `cast_for_product` casts it once. And the fused attention
# kernel of PyTorch has the speed of float32, so `attend` computes causal attention by blocks of queries from plain bf16
# products.

HALF = (torch.bfloat16, torch.float16)
BLOCK = 128
"""Queries per block: the fastest of 64, 128, 256 and 512 at contexts of 512 and 1,024."""
KEPT_CONTEXT = 512
"""Up to this context attention keeps its weights for the backward pass: in half precision, without those of later
tokens, they take less memory than the hidden layer of the feed-forward map. Their size grows with the square of it."""


def computing_type(x: Tensor) -> torch.dtype:
    """Return the type of matrix products with `x`: that of autocast, or its own."""
    # Autocast does not support the meta device, on which costs are counted.
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def cast_for_product(x: Tensor) -> Tensor:
    """Cast to the type of matrix products, once for all readers of `x`."""
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
    """Compute `scaled_dot_product_attention`, by blocks of queries if that is faster."""
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
    """Causal attention in which a block of queries reads only the keys up to its end.

    Logits and softmax are in float32, as in the fused kernel; only the weights are rounded for the product with the
    values. At long contexts the backward pass computes them again: they would be the largest tensors of a layer.

        P = softmax(s Q K^T),  O = P V
        dV = P^T dO,  dS = P * (dO V^T - sum(dO * O)),  dQ = s dS K,  dK = s dS^T Q
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, block: int, scale: float) -> Tensor:
        batch, heads, length, _ = queries.shape
        # In the memory layout (B, T, H, K), so that the heads of a token are contiguous for the output projection.
        out_BHTK = values.new_empty(batch, length, heads, values.shape[-1]).transpose(1, 2)
        flat_values = values.flatten(0, 1)
        kept: list[Tensor] = []
        for first in range(0, length, block):
            last = min(first + block, length)
            weights = _weights(queries, keys, first, last, scale)
            out_BHTK[:, :, first:last] = torch.bmm(weights, flat_values[:, :last]).view(batch, heads, last - first, -1)
            kept += [weights] if length <= KEPT_CONTEXT else []
        ctx.save_for_backward(queries, keys, values, out_BHTK, *kept)
        ctx.block, ctx.scale = block, scale
        return out_BHTK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        queries, keys, values, out, *kept = ctx.saved_tensors
        needs_queries, needs_keys, needs_values, *_ = ctx.needs_input_grad
        flat_queries, flat_keys, flat_values, grad_out = (x.flatten(0, 1) for x in (queries, keys, values, grads[0]))
        # The sum over keys of each weight times its gradient equals the sum of the output times its gradient.
        shared = (_wide(grads[0]) * _wide(out)).sum(-1, keepdim=True)
        # Sums over blocks are in float32: half precision would round once per block. `a[i] += b` would copy a[i] again.
        kind = torch.promote_types(queries.dtype, torch.float32)
        grad_queries = torch.empty_like(flat_queries, dtype=kind)
        grad_keys, grad_values = (torch.zeros_like(each, dtype=kind) for each in (flat_keys, flat_values))
        for number, first in enumerate(range(0, queries.shape[2], ctx.block)):
            last = min(first + ctx.block, queries.shape[2])
            weights = kept[number] if kept else _weights(queries, keys, first, last, ctx.scale)
            grad_block = grad_out[:, first:last]
            if needs_values:
                grad_values[:, :last].add_(torch.bmm(weights.transpose(1, 2), grad_block))
            if not (needs_queries or needs_keys):
                continue
            # Cast before the arithmetic: operands of two types are several times as slow on a CPU.
            grad_weights = torch.bmm(grad_block, flat_values[:, :last].transpose(1, 2)).to(kind)
            grad_logits = grad_weights.sub_(shared[:, first:last]).mul_(weights.to(kind)).to(queries.dtype)
            if needs_queries:
                grad_queries[:, first:last] = torch.bmm(grad_logits, flat_keys[:, :last])
            if needs_keys:
                grad_keys[:, :last].add_(torch.bmm(grad_logits.transpose(1, 2), flat_queries[:, first:last]))
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


def _weights(queries: Tensor, keys: Tensor, first: int, last: int, scale: float) -> Tensor:
    """Return the attention weights of the queries from `first` to `last` over the keys up to `last`."""
    # Autocast would round the operands and the logits, and differently here than in a backward pass outside of it.
    with torch.autocast(queries.device.type, enabled=False):
        logits = torch.bmm(_wide(queries[:, :, first:last]) * scale, _wide(keys[:, :, :last]).transpose(1, 2))
    logits[:, :, first:].add_(logits.new_full((last - first, last - first), -math.inf).triu(1))
    return torch.softmax(logits, dim=-1).to(queries.dtype)


# The hidden layer of the feed-forward map is the widest activation of a block, and autograd would keep it before and
# after the GELU. The GELU is cheap to compute again, so only its input is kept.


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
    if torch.compiler.is_compiling():  # the compiler makes a better choice of what to keep
        return F.linear(F.gelu(before), weight, bias)
    kind = computing_type(before)
    result: Tensor = _GeluLinear.apply(before.to(kind), weight.to(kind), bias.to(kind))  # type: ignore[no-untyped-call]
    return result
