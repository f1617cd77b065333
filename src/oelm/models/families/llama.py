"""Where Q and K live in Llama, Mistral and Qwen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import nn

from oelm.models.families.layered import Attention, LayeredFamily
from oelm.spec.method import Role


class Llama(LayeredFamily):
    """Decoders with rotary positions and grouped keys: each key head serves several query heads.

    Qwen3 normalises queries and keys per head after the projection; its norms train, as all norms do.
    """

    name = "llama"
    model_types = frozenset({"llama", "mistral", "qwen2", "qwen3"})
    layer_classes = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"})
    ffn = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

    def num_rotated(self, attention: nn.Module) -> int:
        """Count all coordinates."""
        return int(cast("Any", attention).head_dim)

    def norms(self, attention: nn.Module, role: Role) -> Iterable[nn.Module]:
        """Return those of Qwen3."""
        norm = getattr(attention, f"{role}_norm", None)
        return () if norm is None else (norm,)

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Self-attention."""
        yield Attention(
            "self",
            config.num_attention_heads,
            config.num_key_value_heads,
            paths={"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"},
        )
