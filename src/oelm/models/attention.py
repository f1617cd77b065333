"""What heads look at: entropy and mean distance of attention, by layer and head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from oelm.models.gpt import GPT, Attention, Block


@dataclass(frozen=True)
class AttentionSummary:
    """Means over the tokens of some text, as [layer][head]."""

    entropy: list[list[float]]
    """In nats: 0 looks at one token, log(T) at all alike."""
    distance: list[list[float]]
    """In tokens back."""


@torch.no_grad()
def attention_summary(model: GPT, ids_BT: Tensor) -> AttentionSummary:
    """Measure every head on some text."""
    was_training = model.training
    model.eval()
    entropies: list[list[float]] = []
    distances: list[list[float]] = []

    def look(module: Any, inputs: tuple[Any, ...], _output: Any) -> None:
        weights_BHTT = _weights(cast("Attention", module), inputs[0])
        positions = torch.arange(weights_BHTT.shape[-1], device=weights_BHTT.device)
        back_TT = (positions[:, None] - positions[None, :]).clamp(min=0)
        logs = weights_BHTT.clamp(min=torch.finfo(weights_BHTT.dtype).tiny).log()
        entropies.append((-(weights_BHTT * logs).sum(-1)).mean((0, 2)).tolist())
        distances.append((weights_BHTT * back_TT).sum(-1).mean((0, 2)).tolist())

    hooks = [cast("Block", block).attention.register_forward_hook(look) for block in model.blocks]
    try:
        model.hidden(ids_BT)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return AttentionSummary(entropies, distances)


def _weights(attention: Attention, x_BTD: Tensor) -> Tensor:
    spec, length = attention.spec, x_BTD.shape[1]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=x_BTD.device).tril()
    queries, keys = attention.queries_and_keys(x_BTD)
    keys = keys.repeat_interleave(spec.num_heads // spec.key_heads, dim=1)
    scores_BHTT: Tensor = queries @ keys.mT * attention.logit_scale
    if attention.position_bias is not None:
        scores_BHTT = scores_BHTT + attention.position_bias(length, length)
    return scores_BHTT.masked_fill(~causal_TT, float("-inf")).float().softmax(-1)
