"""Where Q and K live in DeBERTa-v2 and v3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from oelm.models.families.layered import Attention, LayeredFamily, reach


class DebertaV2(LayeredFamily):
    """Content and position are compared by different maps.

    Q and K here are those of the content. The maps of the positions (`pos_key_proj`, `pos_query_proj`) train; where
    the model shares them with the content (`share_att_key`) they are the same tensors, and frozen with them.
    """

    name = "deberta-v2"
    model_types = frozenset({"deberta-v2"})
    layer_classes = frozenset({"DebertaV2Layer"})
    ffn = ("intermediate.dense", "output.dense")
    repairs = frozenset()  # its attention does not go through the attention interface
    can_remove_qk = False  # position terms stay in the logits

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Self-attention."""
        yield Attention(
            "self",
            reach(layer, "attention.self.num_attention_heads"),
            paths={
                "q": "attention.self.query_proj",
                "k": "attention.self.key_proj",
                "v": "attention.self.value_proj",
                "o": "attention.output.dense",
            },
        )
