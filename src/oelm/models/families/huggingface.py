"""Where Q and K are in the families of `transformers`: a table for the regular ones, a class for each of the others.

To add a regular family, add a line to `REGULAR`. The tests in tests/invariants/ then require a row for it, and
`python scripts/family_table.py` writes it into docs/architectures.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import nn

from oelm.errors import NotCarriedOut
from oelm.method.split import Fused
from oelm.models.families.layered import AttentionLayout, LayeredFamily, follow_path, has_path
from oelm.spec.method import POSITION_REPAIRS, MethodSpec, Role, Site

_NOT_BY_DISTANCE = LayeredFamily.repairs - POSITION_REPAIRS
_OUTSIDE: dict[str, Any] = {"repairs": frozenset()}
"""Attention that does not use the attention interface of transformers, where repairs act."""
_OWN_BIAS: dict[str, Any] = {"can_remove_qk": False}
"""Logits with terms by position, which would stay without Q and K."""
_GATED = "mlp.gate_proj mlp.up_proj mlp.down_proj"
_FC = "mlp.fc1 mlp.fc2"


class Regular(LayeredFamily):
    """A family in one line: its name, its models, their types, the paths of its roles and feed-forward, and facts.

    `roles` are four paths in the order q, k, v, o, or one fused path and that of o. Facts are attributes of
    `LayeredFamily`.
    """

    def __init__(self, name: str, models: str, types: str, roles: str, ffn: str = "", **facts: Any) -> None:
        self.name, self.models, self.model_types = name, models, frozenset(types.split())
        prefix, _, paths = roles.rpartition(":")
        *mapped, output = (".".join(filter(None, (prefix, path))) for path in paths.split())
        if len(mapped) == 1:
            self.fused_path, self.roles = mapped[0], {"o": output}
        else:
            names: tuple[Role, ...] = ("q", "k", "v", "o")
            self.roles = dict(zip(names, (*mapped, output), strict=True))
        self.ffn = tuple(ffn.split())
        for fact, value in facts.items():
            setattr(self, fact, value)


# Qwen3, Gemma 3 and OLMo 2 normalise queries and keys after the projection; their norms train, as all norms do.
# DeBERTa has other maps for positions (`pos_key_proj`, `pos_query_proj`), which train unless the model shares them
# with the content (`share_att_key`): then they are the same tensors and frozen together.
# Gemma 2 may cap its logits; position features are capped with them and a bias is not.
# fmt: off
REGULAR: tuple[LayeredFamily, ...] = (
    Regular("distilbert", "DistilBERT", "distilbert", "attention:q_lin k_lin v_lin out_lin", "ffn.lin1 ffn.lin2"),
    Regular("deberta-v2", "DeBERTa-v2, v3 (content only)", "deberta-v2",
            "attention:self.query_proj self.key_proj self.value_proj output.dense", "intermediate.dense output.dense",
            **_OUTSIDE, **_OWN_BIAS),
    Regular("mpnet", "MPNet", "mpnet", "attention:attn.q attn.k attn.v attn.o", "intermediate.dense output.dense",
            **_OUTSIDE, **_OWN_BIAS),
    Regular("modernbert", "ModernBERT", "modernbert", "attn:Wqkv Wo", "mlp.Wi mlp.Wo", rotary=True),
    Regular("opt", "OPT", "opt", "self_attn:q_proj k_proj v_proj out_proj", "fc1 fc2"),
    Regular("llama", "Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2, SmolLM3, Granite, StableLM",
            "llama mistral qwen2 qwen3 gemma gemma2 smollm3 granite stablelm",
            "self_attn:q_proj k_proj v_proj o_proj", _GATED, rotary=True),
    Regular("gemma3", "Gemma 3 (text)", "gemma3_text", "self_attn:q_proj k_proj v_proj o_proj", _GATED, rotary=True,
            norm_axes="BHTK"),
    Regular("olmo2", "OLMo 2", "olmo2", "self_attn:q_proj k_proj v_proj o_proj", _GATED, rotary=True, norm_axes="BTC"),
    # The experts of Mixtral are tensors of three dimensions, which are not a role.
    Regular("mixtral", "Mixtral", "mixtral", "self_attn:q_proj k_proj v_proj o_proj", rotary=True),
    Regular("phi", "Phi", "phi", "self_attn:q_proj k_proj v_proj dense", _FC, rotary=True),
    Regular("phi3", "Phi-3, Phi-4", "phi3", "self_attn:qkv_proj o_proj", "mlp.gate_up_proj mlp.down_proj", rotary=True),
    Regular("gpt-neox", "GPT-NeoX, Pythia", "gpt_neox", "attention:query_key_value dense",
            "mlp.dense_h_to_4h mlp.dense_4h_to_h", rotary=True, interleaved=True),
    Regular("gpt-neo", "GPT-Neo", "gpt_neo", "attn.attention:q_proj k_proj v_proj out_proj", "mlp.c_fc mlp.c_proj",
            **_OUTSIDE),
    Regular("gpt-j", "GPT-J", "gptj", "attn:q_proj k_proj v_proj out_proj", "mlp.fc_in mlp.fc_out", **_OUTSIDE),
    Regular("bloom", "Bloom", "bloom", "self_attention:query_key_value dense", "mlp.dense_h_to_4h mlp.dense_4h_to_h",
            interleaved=True, **_OUTSIDE, **_OWN_BIAS),
    Regular("mpt", "MPT", "mpt", "attn:Wqkv out_proj", "ffn.up_proj ffn.down_proj", **_OUTSIDE, **_OWN_BIAS),
    Regular("vit", "ViT", "vit", "attention:q_proj k_proj v_proj o_proj", _FC),
    Regular("deit", "DeiT", "deit", "attention:q_proj k_proj v_proj o_proj", _FC, extra_tokens=2),
    Regular("clip", "CLIP (text and image)", "clip clip_text_model clip_vision_model",
            "self_attn:q_proj k_proj v_proj out_proj", _FC),
    Regular("siglip", "SigLIP (text and image)", "siglip siglip_text_model siglip_vision_model",
            "self_attn:q_proj k_proj v_proj out_proj", _FC, extra_tokens=0),
    # Sounds have no greatest length, which repairs by distance need.
    Regular("wav2vec2", "wav2vec 2.0, HuBERT", "wav2vec2 hubert", "attention:q_proj k_proj v_proj out_proj",
            "feed_forward.intermediate_dense feed_forward.output_dense", repairs=_NOT_BY_DISTANCE),
)
# fmt: on


class Albert(LayeredFamily):
    """ALBERT, whose layers share their weights: a layer here is a set of weights, however often it is used."""

    name = "albert"
    models = "ALBERT (shared layers count once)"
    model_types = frozenset({"albert"})
    roles = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "o": "attention.dense"}
    ffn = ("ffn", "ffn_output")

    def layer_number(self, name: str, config: Any) -> int:
        """Count the layers of the groups before, from a name like `albert_layer_groups.1.albert_layers.0`."""
        group, inner = (int(part) for part in name.split(".") if part.isdigit())
        return group * int(config.inner_group_num) + inner


class Falcon(LayeredFamily):
    """Falcon, with one map in three layouts: by group (40B), one key head for all (7B), or by head (RW)."""

    name = "falcon"
    models = "Falcon"
    storage = "fused; interleaved by head or group, or with one key head"
    model_types = frozenset({"falcon"})
    fused_path = "self_attention.query_key_value"
    roles = {"o": "self_attention.dense"}
    ffn = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    repairs = frozenset()

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:  # noqa: ARG002
        """Return the self-attention."""
        heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        is_one = config.multi_query and not config.new_decoder_architecture
        key_heads = 1 if is_one else config.num_kv_heads if config.new_decoder_architecture else heads
        fused = _fuse(heads * size, key_heads * size, groups=1 if is_one else key_heads)
        yield AttentionLayout("self", heads, key_heads, dict(self.roles), self.fused_path, fused)

    def refuse(self, model: nn.Module, method: MethodSpec) -> None:
        """Refuse attention without Q and K if the model adds ALiBi, a term by distance, to the logits."""
        super().refuse(model, method)
        if method.init.shape == "absent" and cast("Any", model).config.alibi:
            raise NotCarriedOut(
                "Without Q and K, attention in a Falcon with alibi=True is not uniform, because its logits have other "
                "terms. Use a Falcon with rotary positions, or another family for this control."
            )


class GPT2Family(LayeredFamily):
    """Linear maps are `Conv1D`, stored as (input, output); `c_attn` holds queries, keys and values."""

    name = "gpt2"
    models = "GPT-2"
    storage = "fused and transposed"
    sites = ("self", "cross")
    model_types = frozenset({"gpt2"})
    fused_path = "attn.c_attn"
    ffn = ("mlp.c_fc", "mlp.c_proj")
    ffn_transposed = True

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:
        """Return the self-attention, and a cross-attention, whose queries have their own module."""
        heads, size = config.num_attention_heads, config.hidden_size
        qkv, kv = _fuse(size, size, transposed=True), Fused((("k", size), ("v", size)), transposed=True)
        yield AttentionLayout(
            "self", heads, paths={"o": "attn.c_proj"}, fused_path="attn.c_attn", fused=qkv, transposed=True
        )
        if has_path(layer, "crossattention"):
            yield AttentionLayout(
                "cross",
                heads,
                paths={"q": "crossattention.q_attn", "o": "crossattention.c_proj"},
                fused_path="crossattention.c_attn",
                fused=kv,
                transposed=True,
            )


class Bert(LayeredFamily):
    """BERT, RoBERTa, ELECTRA and others with its layers: query, key and value are modules with biases."""

    name = "bert"
    models = "BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA"
    sites = ("self", "cross")
    model_types = frozenset({"bert", "roberta", "electra", "xlm-roberta", "camembert"})
    layer_classes = frozenset({"BertLayer", "RobertaLayer", "ElectraLayer", "XLMRobertaLayer", "CamembertLayer"})
    ffn = ("intermediate.dense", "output.dense")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:  # noqa: ARG002
        """Return the self-attention, and the cross-attention of a decoder."""
        sites: dict[Site, str] = {"self": "attention", "cross": "crossattention"}
        for site, path in sites.items():
            if has_path(layer, path):
                names = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
                yield _attention(layer, site, path, "self.num_attention_heads", names)


class Bart(LayeredFamily):
    """Encoder-self, decoder-self and cross attention, with biases."""

    name = "bart"
    models = "BART, mBART"
    sites = ("encoder", "decoder", "cross")
    model_types = frozenset({"bart", "mbart"})
    layer_classes = frozenset({"BartEncoderLayer", "BartDecoderLayer", "MBartEncoderLayer", "MBartDecoderLayer"})
    ffn = ("fc1", "fc2")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:  # noqa: ARG002
        """Return one attention of an encoder layer, two of a decoder layer."""
        names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
        is_decoder = has_path(layer, "encoder_attn")
        yield _attention(layer, "decoder" if is_decoder else "encoder", "self_attn", "num_heads", names)
        if is_decoder:
            yield _attention(layer, "cross", "encoder_attn", "num_heads", names)


class Whisper(Bart):
    """Whisper, with the layers of BART. Keys have no bias; sounds and texts have their own greatest length."""

    name = "whisper"
    models = "Whisper"
    model_types = frozenset({"whisper"})
    layer_classes = frozenset({"WhisperEncoderLayer", "WhisperDecoderLayer"})

    def context(self, model: nn.Module, attention: nn.Module) -> int:
        """Return the greatest length of the encoder or of the decoder."""
        config = cast("Any", model).config
        return int(config.max_target_positions if attention.is_decoder else config.max_source_positions)


class T5(LayeredFamily):
    """Encoder-self, decoder-self and cross attention, without biases and without the scale 1/sqrt(K).

    The logits have a trained term by distance, which is not a part of Q and K. It always trains, so attention is not
    uniform without Q and K. Without the scale, orthogonal heads start with logits that are sqrt(K) times larger.
    """

    name = "t5"
    models = "T5, mT5"
    sites = ("encoder", "decoder", "cross")
    model_types = frozenset({"t5", "mt5"})
    layer_classes = frozenset({"T5Block", "MT5Block"})
    ffn = tuple(f"layer.{place}.DenseReluDense.{name}" for place in (1, 2) for name in ("wi", "wi_0", "wi_1", "wo"))
    can_remove_qk = False
    repairs = _NOT_BY_DISTANCE  # it already has a trained bias by distance

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:  # noqa: ARG002
        """Return one attention of an encoder block, two of a decoder block."""
        names = {role: role for role in ("q", "k", "v", "o")}
        yield _attention(layer, "decoder" if layer.is_decoder else "encoder", "layer.0.SelfAttention", "n_heads", names)
        if layer.is_decoder:
            yield _attention(layer, "cross", "layer.1.EncDecAttention", "n_heads", names)


FAMILIES: tuple[LayeredFamily, ...] = (
    Bert(), *REGULAR[:2], Albert(), *REGULAR[2:], GPT2Family(), Falcon(), T5(), Bart(), Whisper(),
)  # fmt: skip

REFUSED = {
    "longformer": "Each layer has a second Q and K for tokens with global attention, and freezing one pair is not the "
    "method. Name the pair that you want: q='query', k='key' freezes the local one.",
    "led": "Each encoder layer has a second Q and K for tokens with global attention, and freezing one pair is not the "
    "method. Name the pair that you want: q='query', k='key' freezes the local one.",
    "deepseek_v2": "Keys and values come from one compressed map, so that K has no weights of its own.",
    "deepseek_v3": "Keys and values come from one compressed map, so that K has no weights of its own.",
    "fnet": "It mixes tokens by a Fourier transform and has no attention.",
    "mamba": "It is a state-space model and has no attention.",
    "mamba2": "It is a state-space model and has no attention.",
    "openai-gpt": "Q, K and V are one module without a row here. Write an oelm.Architecture with oelm.Fused.",
    "reformer": "Queries and keys are one map, so that neither can be drawn or frozen alone.",
    "rwkv": "It has no queries and keys.",
    "squeezebert": "Q and K are grouped convolutions, of which a head is not a block of rows.",
    "xlnet": "Q and K are tensors of three dimensions in the attention, not linear maps.",
}
"""Why a method cannot be applied to a type of model."""


def _attention(layer: nn.Module, site: Site, path: str, heads: str, names: dict[Any, str]) -> AttentionLayout:
    """Describe an attention whose roles have their own modules, with `names` below its `path`."""
    paths = {role: f"{path}.{name}" for role, name in names.items()}
    return AttentionLayout(site, follow_path(layer, f"{path}.{heads}"), paths=paths)


def _fuse(query_rows: int, key_rows: int, **layout: Any) -> Fused:
    """Describe one tensor with q, k and v."""
    return Fused((("q", query_rows), ("k", key_rows), ("v", key_rows)), **layout)
