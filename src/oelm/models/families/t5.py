"""Where Q and K live in T5."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from oelm.models.families.layered import Attention, LayeredFamily, reach
from oelm.spec.method import Site
from oelm.spec.repair import POSITION_REPAIRS


class T5(LayeredFamily):
    """Encoder-self, decoder-self and cross attention, without biases and without the scale 1/sqrt(K).

    The logits have a trained term by distance, which is no part of Q and K: it trains, and keeps attention from
    being uniform without them. Without the scale, orthogonal heads start with logits sqrt(K) times those of a
    family that has it.
    """

    name = "t5"
    model_types = frozenset({"t5", "mt5"})
    layer_classes = frozenset({"T5Block", "MT5Block"})
    ffn = tuple(f"layer.{place}.DenseReluDense.{name}" for place in (1, 2) for name in ("wi", "wi_0", "wi_1", "wo"))
    can_remove_qk = False
    repairs = LayeredFamily.repairs - POSITION_REPAIRS  # it has a trained bias by distance of its own

    def context(self, model: nn.Module) -> int:  # noqa: ARG002
        """Return 0, which no repair of this family reads: positions are buckets of distances without an end."""
        return 0

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """One in an encoder's block, two in a decoder's."""
        yield _attention(layer, "decoder" if layer.is_decoder else "encoder", "layer.0.SelfAttention")
        if layer.is_decoder:
            yield _attention(layer, "cross", "layer.1.EncDecAttention")


def _attention(layer: nn.Module, site: Site, path: str) -> Attention:
    return Attention(
        site,
        reach(layer, f"{path}.n_heads"),
        paths={"q": f"{path}.q", "k": f"{path}.k", "v": f"{path}.v", "o": f"{path}.o"},
    )
