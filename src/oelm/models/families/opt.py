"""Where Q and K live in OPT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from oelm.models.families.layered import Attention, LayeredFamily


class OPT(LayeredFamily):
    """A decoder with biases; the roles are modules of their own."""

    name = "opt"
    model_types = frozenset({"opt"})
    layer_classes = frozenset({"OPTDecoderLayer"})
    ffn = ("fc1", "fc2")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Self-attention."""
        yield Attention(
            "self",
            config.num_attention_heads,
            paths={
                "q": "self_attn.q_proj",
                "k": "self_attn.k_proj",
                "v": "self_attn.v_proj",
                "o": "self_attn.out_proj",
            },
        )
