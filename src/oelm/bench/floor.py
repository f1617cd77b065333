"""The matrix products of a training step and nothing else: the time below which no step of this model can go.

Every product of the forward pass, of the gradients of inputs and of the gradients of weights is done once, in the
shapes that our step does them in. Attention's are whole squares, although a causal kernel may leave out half of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from oelm.models.half import HALF
from oelm.models.loss import chunk_slices, product_slices
from oelm.spec.model import GPTSpec

Product = Callable[[], Tensor]


def bare_products(spec: GPTSpec, batch: int, length: int, dtype: torch.dtype) -> list[Product]:
    """Return the products of a step of a model that trains everything, each to be called once."""
    rows, width, attended = batch * length, spec.model_dim, spec.num_heads * spec.head_size
    layer = [
        *_linear(rows, width, spec.num_heads * spec.qk_size, dtype),
        *_linear(rows, width, spec.key_heads * spec.qk_size, dtype),
        *_linear(rows, width, spec.key_heads * spec.head_size, dtype),
        *_linear(rows, attended, width, dtype),
        *_linear(rows, width, spec.hidden_dim, dtype),
        *_linear(rows, spec.hidden_dim, width, dtype),
        *_attention(batch * spec.num_heads, length, spec.qk_size, spec.head_size, dtype),
    ]
    return [*layer * spec.num_layers, *_head(rows, width, spec.vocab_size or 0, dtype)]


def _linear(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> list[Product]:
    x, weight, grad = (_random(dtype, *shape) for shape in ((rows, inputs), (outputs, inputs), (rows, outputs)))
    return [lambda: x @ weight.T, lambda: grad @ weight, lambda: grad.T @ x]


def _attention(heads: int, length: int, size: int, value_size: int, dtype: torch.dtype) -> list[Product]:
    queries, keys = _random(dtype, heads, length, size), _random(dtype, heads, length, size)
    values, weights = _random(dtype, heads, length, value_size), _random(dtype, heads, length, length)
    return [
        lambda: torch.bmm(queries, keys.transpose(1, 2)),
        lambda: torch.bmm(weights, values),
        lambda: torch.bmm(weights.transpose(1, 2), values),
        lambda: torch.bmm(values, values.transpose(1, 2)),
        lambda: torch.bmm(weights, keys),
        lambda: torch.bmm(weights.transpose(1, 2), queries),
    ]


def _head(rows: int, width: int, vocabulary: int, dtype: torch.dtype) -> list[Product]:
    """Return the products of the vocabulary in chunks, each way round that `models/loss.py` does them."""
    weight, grad_weight = _random(dtype, vocabulary, width), _random(dtype, vocabulary, width)
    products: list[Product] = []
    for span in chunk_slices(rows, weight):
        x = _random(dtype, span.stop - span.start, width)
        if dtype in HALF:
            logits_VC = _random(dtype, len(x), vocabulary).T
            products.append(lambda x=x, out=logits_VC.T: torch.mm(x, weight.T, out=out))  # type: ignore[misc]
            cuts = [logits_VC[cut] for cut in product_slices(vocabulary, weight.device)]
            products += [lambda x=x, logits=logits: logits @ x for logits in cuts]  # type: ignore[misc]
        else:
            logits_VC = _random(dtype, vocabulary, len(x))
            products.append(lambda x=x, out=logits_VC: torch.mm(weight, x.T, out=out))  # type: ignore[misc]
            products.append(lambda x=x, logits=logits_VC: torch.addmm(grad_weight, logits, x, out=grad_weight))  # type: ignore[misc]
        products.append(lambda logits=logits_VC: logits.T @ weight)  # type: ignore[misc]
    return products


def _random(dtype: torch.dtype, *shape: int) -> Tensor:
    # Small: sums that are added up turn after turn must not overflow, which would slow them down.
    return torch.randn(shape).mul_(1e-3).to(dtype)
