"""Where Q and K live in DistilBERT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from oelm.models.families.layered import Attention, LayeredFamily


class DistilBert(LayeredFamily):
    """BERT's layer under shorter names."""

    name = "distilbert"
    model_types = frozenset({"distilbert"})
    layer_classes = frozenset({"TransformerBlock"})
    ffn = ("ffn.lin1", "ffn.lin2")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Self-attention."""
        yield Attention(
            "self",
            config.n_heads,
            paths={"q": "attention.q_lin", "k": "attention.k_lin", "v": "attention.v_lin", "o": "attention.out_lin"},
        )
