"""Where Q and K live in GPT-2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from oelm.method.split import Fused
from oelm.models.families.layered import Attention, LayeredFamily, has


class GPT2(LayeredFamily):
    """Linear maps are `Conv1D`, stored as (input, output); `c_attn` holds queries, keys and values."""

    name = "gpt2"
    model_types = frozenset({"gpt2"})
    layer_classes = frozenset({"GPT2Block"})
    ffn = ("mlp.c_fc", "mlp.c_proj")
    ffn_transposed = True

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:
        """Self-attention; with cross-attention, whose queries are a module of their own."""
        size, heads = config.hidden_size, config.num_attention_heads
        qkv = Fused((("q", size), ("k", size), ("v", size)), transposed=True)
        yield Attention("self", heads, paths={"o": "attn.c_proj"}, fused_path="attn.c_attn", fused=qkv, transposed=True)
        if has(layer, "crossattention"):
            kv = Fused((("k", size), ("v", size)), transposed=True)
            yield Attention(
                "cross",
                heads,
                paths={"q": "crossattention.q_attn", "o": "crossattention.c_proj"},
                fused_path="crossattention.c_attn",
                fused=kv,
                transposed=True,
            )
