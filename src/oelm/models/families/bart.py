"""Where Q and K live in BART."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from oelm.models.families.layered import Attention, LayeredFamily, has, reach
from oelm.spec.method import Site


class Bart(LayeredFamily):
    """Encoder-self, decoder-self and cross attention, with biases."""

    name = "bart"
    model_types = frozenset({"bart", "mbart"})
    layer_classes = frozenset({"BartEncoderLayer", "BartDecoderLayer", "MBartEncoderLayer", "MBartDecoderLayer"})
    ffn = ("fc1", "fc2")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """One in an encoder's layer, two in a decoder's."""
        is_decoder = has(layer, "encoder_attn")
        yield _attention(layer, "decoder" if is_decoder else "encoder", "self_attn")
        if is_decoder:
            yield _attention(layer, "cross", "encoder_attn")


def _attention(layer: nn.Module, site: Site, path: str) -> Attention:
    return Attention(
        site,
        reach(layer, f"{path}.num_heads"),
        paths={"q": f"{path}.q_proj", "k": f"{path}.k_proj", "v": f"{path}.v_proj", "o": f"{path}.out_proj"},
    )
