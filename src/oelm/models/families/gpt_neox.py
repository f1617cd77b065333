"""Where Q and K live in GPT-NeoX and Pythia."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import nn

from oelm.method.split import Fused
from oelm.models.families.layered import Attention, LayeredFamily


class GPTNeoX(LayeredFamily):
    """One linear map, interleaved by head: the query, key and value of head 0, then those of head 1, and so on."""

    name = "gpt-neox"
    model_types = frozenset({"gpt_neox"})
    layer_classes = frozenset({"GPTNeoXLayer"})
    ffn = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")

    def num_rotated(self, attention: nn.Module) -> int:
        """Count the first coordinates, by default a quarter of them."""
        return int(cast("Any", attention).rotary_ndims)

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Self-attention."""
        size, heads = config.hidden_size, config.num_attention_heads
        fused = Fused((("q", size), ("k", size), ("v", size)), groups=heads)
        yield Attention(
            "self", heads, paths={"o": "attention.dense"}, fused_path="attention.query_key_value", fused=fused
        )
