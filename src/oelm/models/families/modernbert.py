"""Where Q and K live in ModernBERT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import nn

from oelm.method.split import Fused
from oelm.models.families.layered import Attention, LayeredFamily


class ModernBert(LayeredFamily):
    """One linear map, `Wqkv`: all queries, then all keys, then all values."""

    name = "modernbert"
    model_types = frozenset({"modernbert"})
    layer_classes = frozenset({"ModernBertEncoderLayer"})
    ffn = ("mlp.Wi", "mlp.Wo")

    def num_rotated(self, attention: nn.Module) -> int:
        """Count all coordinates."""
        return int(cast("Any", attention).head_dim)

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Self-attention."""
        size = config.hidden_size
        fused = Fused((("q", size), ("k", size), ("v", size)))
        yield Attention("self", config.num_attention_heads, paths={"o": "attn.Wo"}, fused_path="attn.Wqkv", fused=fused)
