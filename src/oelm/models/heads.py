"""Describe attention heads: entropy, mean distance, and the variance of logits by content and by position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from oelm.models.gpt import GPT, Attention, Block


@dataclass(frozen=True)
class AttentionSummary:
    """Means over the tokens of some text, by layer and head."""

    entropy: list[list[float]]
    """In nats: 0 attends to one token, log(T) to all tokens equally."""
    distance: list[list[float]]
    """In tokens."""


@dataclass(frozen=True)
class LogitVariances:
    """Variance of the logits of a query over its visible keys, by source, by layer and head; means over queries."""

    content: list[list[float]]
    """Of the product of queries and keys; rotary and learned positions act within it."""
    position: list[list[float]]
    """Of position features and the position bias; zero without them."""


@torch.no_grad()
def attention_summary(model: GPT, ids_BT: Tensor) -> AttentionSummary:
    """Measure the attention of every head on some text."""
    entropies: list[list[float]] = []
    distances: list[list[float]] = []

    def look(attention: Attention, x_BTD: Tensor) -> None:
        weights_BHTT = _weights(attention, x_BTD)
        positions = torch.arange(weights_BHTT.shape[-1], device=weights_BHTT.device)
        back_TT = (positions[:, None] - positions[None, :]).clamp(min=0)
        logs = weights_BHTT.clamp(min=torch.finfo(weights_BHTT.dtype).tiny).log()
        entropies.append((-(weights_BHTT * logs).sum(-1)).mean((0, 2)).tolist())
        distances.append((weights_BHTT * back_TT).sum(-1).mean((0, 2)).tolist())

    _look_at_each_layer(model, ids_BT, look)
    return AttentionSummary(entropies, distances)


@torch.no_grad()
def logit_variances(model: GPT, ids_BT: Tensor) -> LogitVariances:
    """Measure on some text how much the logits of every head vary by content and by position.

    The weights of a query depend only on differences between its logits. So the variance is taken over the keys of each
    query, and averaged over the queries that see more than one key.
    """
    found: tuple[list[list[float]], list[list[float]]] = ([], [])

    def look(attention: Attention, x_BTD: Tensor) -> None:
        # One window at a time, so that this does not set the peak memory of a run.
        by_window = [
            map(_variance_over_keys, _logits_by_source(attention, x_BTD[n : n + 1])) for n in range(len(x_BTD))
        ]
        for kept, windows in zip(found, zip(*by_window, strict=True), strict=True):
            kept.append(torch.cat(windows).mean((0, 2)).tolist())

    _look_at_each_layer(model, ids_BT, look)
    return LogitVariances(*found)


def _look_at_each_layer(model: GPT, ids_BT: Tensor, look: Callable[[Attention, Tensor], None]) -> None:
    """Call `look` with each layer's attention and its input on some text."""
    was_training = model.training
    model.eval()

    def hook(module: Any, inputs: tuple[Any, ...], _output: Any) -> None:
        look(cast("Attention", module), inputs[0])

    hooks = [cast("Block", block).attention.register_forward_hook(hook) for block in model.blocks]
    try:
        model.hidden(ids_BT)
    finally:
        for each in hooks:
            each.remove()
        model.train(was_training)


def _logits_by_source(attention: Attention, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of content and of position for all pairs of tokens; softmax takes their sum."""
    spec, length, size = attention.spec, x_BTD.shape[1], attention.content_size if attention.q is not None else 0
    queries, keys = attention.queries_and_keys(x_BTD)
    keys = keys.repeat_interleave(spec.num_heads // spec.key_heads, dim=1)
    content_BHTT = queries[..., :size] @ keys[..., :size].mT * attention.logit_scale
    position_BHTT = queries[..., size:] @ keys[..., size:].mT * attention.logit_scale
    if attention.position_bias is not None:
        position_BHTT = position_BHTT + attention.position_bias(length, length)
    return content_BHTT, position_BHTT


def _variance_over_keys(scores_BHTT: Tensor) -> Tensor:
    """Return the variance of each query's logits over the keys up to it, (B, H, T - 1); the first has only one key."""
    length = scores_BHTT.shape[-1]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=scores_BHTT.device).tril()
    scores_BHTT = scores_BHTT.float().masked_fill(~causal_TT, 0.0)  # a position bias hides successors by -inf
    counts_T1 = torch.arange(1, length + 1, device=scores_BHTT.device)[:, None]
    means_BHT1 = scores_BHTT.sum(-1, keepdim=True) / counts_T1
    squares_BHTT = (scores_BHTT - means_BHT1).square_().masked_fill_(~causal_TT, 0.0)
    return (squares_BHTT.sum(-1, keepdim=True) / counts_T1)[:, :, 1:, 0]


def _weights(attention: Attention, x_BTD: Tensor) -> Tensor:
    spec, length = attention.spec, x_BTD.shape[1]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=x_BTD.device).tril()
    queries, keys = attention.queries_and_keys(x_BTD)
    keys = keys.repeat_interleave(spec.num_heads // spec.key_heads, dim=1)
    scores_BHTT: Tensor = queries @ keys.mT * attention.logit_scale
    if attention.position_bias is not None:
        scores_BHTT = scores_BHTT + attention.position_bias(length, length)
    return scores_BHTT.masked_fill(~causal_TT, float("-inf")).float().softmax(-1)
