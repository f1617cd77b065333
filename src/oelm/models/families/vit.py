"""Where Q and K live in the Vision Transformer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import nn

from oelm.models.families.layered import Attention, LayeredFamily


class ViT(LayeredFamily):
    """An encoder over patches; the roles are modules of their own."""

    name = "vit"
    model_types = frozenset({"vit"})
    layer_classes = frozenset({"ViTLayer"})
    ffn = ("mlp.fc1", "mlp.fc2")

    def context(self, model: nn.Module) -> int:
        """Count the patches of an image and the class token."""
        config = cast("Any", model).config
        return int((config.image_size // config.patch_size) ** 2) + 1

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Self-attention."""
        yield Attention(
            "self",
            config.num_attention_heads,
            paths={"q": "attention.q_proj", "k": "attention.k_proj", "v": "attention.v_proj", "o": "attention.o_proj"},
        )
