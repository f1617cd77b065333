"""Where Q and K live in BERT and the models that kept its layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from oelm.models.families.layered import Attention, LayeredFamily, has, reach
from oelm.spec.method import Site


class Bert(LayeredFamily):
    """BERT, RoBERTa, ELECTRA and kin: query, key and value are modules of their own, with biases."""

    name = "bert"
    model_types = frozenset({"bert", "roberta", "electra", "xlm-roberta", "camembert"})
    layer_classes = frozenset({"BertLayer", "RobertaLayer", "ElectraLayer", "XLMRobertaLayer", "CamembertLayer"})
    ffn = ("intermediate.dense", "output.dense")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Self-attention, and cross-attention where the model is a decoder with one."""
        yield _attention(layer, "self", "attention")
        if has(layer, "crossattention"):
            yield _attention(layer, "cross", "crossattention")


def _attention(layer: nn.Module, site: Site, path: str) -> Attention:
    return Attention(
        site,
        reach(layer, f"{path}.self.num_attention_heads"),
        paths={
            "q": f"{path}.self.query",
            "k": f"{path}.self.key",
            "v": f"{path}.self.value",
            "o": f"{path}.output.dense",
        },
    )
