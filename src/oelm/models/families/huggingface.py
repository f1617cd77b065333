"""Where Q and K are in the families of `transformers`: a table for the regular ones, a few lines for the others.

To add a regular family, add a class with its `model_types`, the classes of its layers and the paths of its roles, and
list it in `FAMILIES`. The invariants of tests/invariants/ then ask for a row of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import nn

from oelm.method.split import Fused
from oelm.models.families.layered import Attention, LayeredFamily, has, reach
from oelm.spec.method import Role, Site
from oelm.spec.repair import POSITION_REPAIRS


class DistilBert(LayeredFamily):
    """BERT's layer under shorter names."""

    name = "distilbert"
    model_types = frozenset({"distilbert"})
    layer_classes = frozenset({"TransformerBlock"})
    roles = {"q": "attention.q_lin", "k": "attention.k_lin", "v": "attention.v_lin", "o": "attention.out_lin"}
    ffn = ("ffn.lin1", "ffn.lin2")


class DebertaV2(LayeredFamily):
    """DeBERTa-v2 and v3, which compare content and position by different maps.

    Q and K here are those of the content. The maps of the positions (`pos_key_proj`, `pos_query_proj`) train; where
    the model shares them with the content (`share_att_key`) they are the same tensors, and frozen with them.
    """

    name = "deberta-v2"
    model_types = frozenset({"deberta-v2"})
    layer_classes = frozenset({"DebertaV2Layer"})
    roles = {
        "q": "attention.self.query_proj",
        "k": "attention.self.key_proj",
        "v": "attention.self.value_proj",
        "o": "attention.output.dense",
    }
    ffn = ("intermediate.dense", "output.dense")
    repairs = frozenset()  # its attention does not go through the attention interface
    can_remove_qk = False  # position terms stay in the logits


class OPT(LayeredFamily):
    """A decoder with biases."""

    name = "opt"
    model_types = frozenset({"opt"})
    layer_classes = frozenset({"OPTDecoderLayer"})
    roles = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.out_proj"}
    ffn = ("fc1", "fc2")


class Llama(LayeredFamily):
    """Llama, Mistral and Qwen: rotary positions and grouped keys, so that a key head serves several query heads.

    Qwen3 normalises queries and keys per head after the projection; its norms train, as all norms do.
    """

    name = "llama"
    model_types = frozenset({"llama", "mistral", "qwen2", "qwen3"})
    layer_classes = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"})
    roles = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
    ffn = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

    def num_rotated(self, attention: nn.Module) -> int:
        """Count all coordinates."""
        return int(cast("Any", attention).head_dim)

    def norms(self, attention: nn.Module, role: Role) -> Iterable[nn.Module]:
        """Return those of Qwen3."""
        norm = getattr(attention, f"{role}_norm", None)
        return () if norm is None else (norm,)


class ViT(LayeredFamily):
    """The Vision Transformer, an encoder over patches."""

    name = "vit"
    model_types = frozenset({"vit"})
    layer_classes = frozenset({"ViTLayer"})
    roles = {"q": "attention.q_proj", "k": "attention.k_proj", "v": "attention.v_proj", "o": "attention.o_proj"}
    ffn = ("mlp.fc1", "mlp.fc2")

    def context(self, model: nn.Module) -> int:
        """Count the patches of an image and the class token."""
        config = cast("Any", model).config
        return int((config.image_size // config.patch_size) ** 2) + 1


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
        """Return the self-attention."""
        fused = _fused(config, "q", "k", "v")
        yield Attention("self", config.num_attention_heads, paths={"o": "attn.Wo"}, fused_path="attn.Wqkv", fused=fused)


class GPTNeoX(LayeredFamily):
    """GPT-NeoX and Pythia: one map, interleaved by head (query, key and value of head 0, those of head 1, ...)."""

    name = "gpt-neox"
    model_types = frozenset({"gpt_neox"})
    layer_classes = frozenset({"GPTNeoXLayer"})
    ffn = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")

    def num_rotated(self, attention: nn.Module) -> int:
        """Count the first coordinates, by default a quarter of them."""
        return int(cast("Any", attention).rotary_ndims)

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Return the self-attention."""
        heads = config.num_attention_heads
        fused = _fused(config, "q", "k", "v", groups=heads)
        yield Attention(
            "self", heads, paths={"o": "attention.dense"}, fused_path="attention.query_key_value", fused=fused
        )


class GPT2(LayeredFamily):
    """Linear maps are `Conv1D`, stored as (input, output); `c_attn` holds queries, keys and values."""

    name = "gpt2"
    model_types = frozenset({"gpt2"})
    layer_classes = frozenset({"GPT2Block"})
    ffn = ("mlp.c_fc", "mlp.c_proj")
    ffn_transposed = True

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:
        """Return the self-attention, and a cross-attention, whose queries are a module of their own."""
        heads = config.num_attention_heads
        qkv, kv = (_fused(config, *roles, transposed=True) for roles in (("q", "k", "v"), ("k", "v")))
        yield Attention("self", heads, paths={"o": "attn.c_proj"}, fused_path="attn.c_attn", fused=qkv, transposed=True)
        if has(layer, "crossattention"):
            yield Attention(
                "cross",
                heads,
                paths={"q": "crossattention.q_attn", "o": "crossattention.c_proj"},
                fused_path="crossattention.c_attn",
                fused=kv,
                transposed=True,
            )


class Bert(LayeredFamily):
    """BERT, RoBERTa, ELECTRA and others that kept its layers: query, key and value are modules with biases."""

    name = "bert"
    model_types = frozenset({"bert", "roberta", "electra", "xlm-roberta", "camembert"})
    layer_classes = frozenset({"BertLayer", "RobertaLayer", "ElectraLayer", "XLMRobertaLayer", "CamembertLayer"})
    ffn = ("intermediate.dense", "output.dense")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Return the self-attention, and the cross-attention where the model is a decoder with one."""
        sites: dict[Site, str] = {"self": "attention", "cross": "crossattention"}
        for site, path in sites.items():
            if has(layer, path):
                names = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
                yield _attention(layer, site, path, "self.num_attention_heads", names)


class Bart(LayeredFamily):
    """Encoder-self, decoder-self and cross attention, with biases."""

    name = "bart"
    model_types = frozenset({"bart", "mbart"})
    layer_classes = frozenset({"BartEncoderLayer", "BartDecoderLayer", "MBartEncoderLayer", "MBartDecoderLayer"})
    ffn = ("fc1", "fc2")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002
        """Return one in an encoder's layer, two in a decoder's."""
        names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
        is_decoder = has(layer, "encoder_attn")
        yield _attention(layer, "decoder" if is_decoder else "encoder", "self_attn", "num_heads", names)
        if is_decoder:
            yield _attention(layer, "cross", "encoder_attn", "num_heads", names)


class T5(LayeredFamily):
    """Encoder-self, decoder-self and cross attention, without biases and without the scale 1/sqrt(K).

    The logits have a trained term by distance, which is not a part of Q and K: it trains, and keeps attention from
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
        """Return one in an encoder's block, two in a decoder's."""
        names = {role: role for role in ("q", "k", "v", "o")}
        yield _attention(layer, "decoder" if layer.is_decoder else "encoder", "layer.0.SelfAttention", "n_heads", names)
        if layer.is_decoder:
            yield _attention(layer, "cross", "layer.1.EncDecAttention", "n_heads", names)


FAMILIES: tuple[LayeredFamily, ...] = (
    Bert(), DistilBert(), DebertaV2(), ModernBert(), ViT(), GPT2(), GPTNeoX(), OPT(), Llama(), T5(), Bart(),
)  # fmt: skip


def _attention(layer: nn.Module, site: Site, path: str, heads: str, names: dict[Any, str]) -> Attention:
    """Describe an attention whose roles have modules of their own, with `names` below its `path`."""
    paths = {role: f"{path}.{name}" for role, name in names.items()}
    return Attention(site, reach(layer, f"{path}.{heads}"), paths=paths)


def _fused(config: Any, *roles: Role, **layout: Any) -> Fused:
    """Describe one tensor that holds several roles, each as wide as the model."""
    return Fused(tuple((role, config.hidden_size) for role in roles), **layout)
