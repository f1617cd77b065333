"""Models by name: sizes of our GPT, published architectures without their weights, packages, directories, hub names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oelm.errors import InvalidSpec, UnknownName
from oelm.models.packaged import PACKAGES
from oelm.spec.model import GPT2_VOCAB_SIZE, GPT_SIZES, ForeignSpec, ModelSpec


@dataclass(frozen=True)
class NamedConfig:
    """A published architecture without its weights: a configuration class of `transformers` and its fields."""

    config: str
    head: str
    """The Auto class of the model's own head."""
    hub: str | None
    """Where the pretrained weights are; None for sizes nobody trained."""
    fields: dict[str, Any] = field(default_factory=dict)
    labelled: str = "AutoModelForSequenceClassification"
    uncased: bool = False
    """Whether its vocabulary is that of BERT's uncased models."""


_MASKED, _CAUSAL, SEQ2SEQ = "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
IMAGE = "AutoModelForImageClassification"
_SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_T5 = {"decoder_start_token_id": 0}  # its padding, as published; the configuration by itself names none

CONFIGS: dict[str, NamedConfig] = {
    "bert-base": NamedConfig("BertConfig", _MASKED, "google-bert/bert-base-uncased", uncased=True),
    "bert-large": NamedConfig("BertConfig", _MASKED, "google-bert/bert-large-uncased", _LARGE, uncased=True),
    "bert-tiny": NamedConfig(
        "BertConfig",
        _MASKED,
        "google/bert_uncased_L-2_H-128_A-2",
        {**_SMALL, "num_attention_heads": 2, "intermediate_size": 512},
        uncased=True,
    ),
    "roberta-base": NamedConfig("RobertaConfig", _MASKED, "FacebookAI/roberta-base", _ROBERTA),
    "electra-small": NamedConfig("ElectraConfig", _MASKED, "google/electra-small-discriminator", uncased=True),
    "distilbert": NamedConfig("DistilBertConfig", _MASKED, "distilbert/distilbert-base-uncased", uncased=True),
    "deberta-v3-base": NamedConfig(
        "DebertaV2Config",
        _MASKED,
        "microsoft/deberta-v3-base",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "relative_attention": True,
            "position_buckets": 256,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "type_vocab_size": 0,
            "position_biased_input": False,
            "layer_norm_eps": 1e-7,
        },
    ),
    "modernbert-base": NamedConfig("ModernBertConfig", _MASKED, "answerdotai/ModernBERT-base"),
    "vit-base": NamedConfig("ViTConfig", IMAGE, "google/vit-base-patch16-224", labelled=IMAGE),
    "gpt2": NamedConfig("GPT2Config", _CAUSAL, "openai-community/gpt2"),
    "gpt2-medium": NamedConfig(
        "GPT2Config", _CAUSAL, "openai-community/gpt2-medium", {"n_embd": 1024, "n_layer": 24, "n_head": 16}
    ),
    "gpt2-tiny": NamedConfig("GPT2Config", _CAUSAL, None, {"n_embd": 128, "n_layer": 2, "n_head": 4}),
    "pythia-70m": NamedConfig(
        "GPTNeoXConfig",
        _CAUSAL,
        "EleutherAI/pythia-70m",
        {
            "vocab_size": 50304,
            "hidden_size": 512,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "intermediate_size": 2048,
        },
    ),
    "opt-125m": NamedConfig("OPTConfig", _CAUSAL, "facebook/opt-125m"),
    "llama-tiny": NamedConfig("LlamaConfig", _CAUSAL, None, {**_SMALL, "num_key_value_heads": 2, "vocab_size": 32000}),
    "mistral-tiny": NamedConfig(
        "MistralConfig", _CAUSAL, None, {**_SMALL, "num_key_value_heads": 2, "vocab_size": 32000}
    ),
    "qwen3-tiny": NamedConfig(
        "Qwen3Config", _CAUSAL, None, {**_SMALL, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 32000}
    ),
    "t5-tiny": NamedConfig(
        "T5Config",
        SEQ2SEQ,
        None,
        {**_T5, "d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
    ),
    "bart-tiny": NamedConfig(
        "BartConfig",
        SEQ2SEQ,
        None,
        {
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 256,
            "decoder_ffn_dim": 256,
        },
    ),
    "t5-small": NamedConfig("T5Config", SEQ2SEQ, "google-t5/t5-small", _T5),
    "bart-base": NamedConfig(
        "BartConfig",
        SEQ2SEQ,
        "facebook/bart-base",
        {
            "d_model": 768,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
        },
    ),
}


def spec_of(name: str, labels: int | None = None) -> ModelSpec:
    """Return the spec that a name on a command line stands for.

    Raises:
        InvalidSpec: a head of no labels.
        UnknownName: neither a size, nor a configuration, nor a package, nor a directory, nor the form of a hub name.

    """
    if labels is not None and labels < 1:
        raise InvalidSpec(
            f"a classification head of {labels} labels was asked for, and one has at least 1. Leave labels out for the "
            "model's own head."
        )
    if name in GPT_SIZES:
        size = GPT_SIZES[name].model_copy(update={"labels": labels})
        # Sizes that take their vocabulary from the data are shown with that of GPT-2.
        return size if size.vocab_size else size.model_copy(update={"vocab_size": GPT2_VOCAB_SIZE})
    if name in PACKAGES:
        return ForeignSpec(name=name, labels=labels)
    if name in CONFIGS:
        return ForeignSpec(name=name, labels=labels, pretrained=False)
    if Path(name).is_dir() or name.count("/") == 1:
        return ForeignSpec(name=name, labels=labels)
    raise UnknownName(
        "model", name, [*GPT_SIZES, *CONFIGS, *PACKAGES], "A local directory or a hub name (owner/model) will do too."
    )


def named_shape(spec: ForeignSpec) -> ForeignSpec:
    """Return the named configuration of the same shapes where a hub name has one: its costs need no download."""
    twin = next((name for name, named in CONFIGS.items() if spec.name in (name, named.hub)), None)
    return spec if twin is None else spec.model_copy(update={"name": twin, "pretrained": False})
