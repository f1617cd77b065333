"""One row per family: a tiny model, what it eats, and what of it is fused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

VOCAB, LENGTH = 61, 9
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GPT2_DROPOUT = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}


class TorchModel(nn.Module):
    """A language model around torch's own encoder, as people write them."""

    def __init__(self, size: int = 32, heads: int = 4) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(size, heads, 48, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(VOCAB, size)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(size, VOCAB)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        return self.head(self.encoder(self.embed(input_ids)))


@dataclass(frozen=True)
class Row:
    name: str
    model_class: str
    config_class: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    inputs: str = "tokens"
    fused: str = ""
    """The name of its fused module."""
    wide: dict[str, Any] = field(default_factory=dict)
    """The fields that make it as wide as real models are."""
    repairs: bool = True
    """Whether its attention goes through the attention interface, where repairs act."""
    distances: bool = True
    """Whether it accepts repairs by distance; families with their own bias do not."""
    uniform: bool = True
    biased: str = ""
    """Which of q and k have biases."""
    key_heads: int = 4
    ffn: bool = True
    """Whether its feed-forward maps are a role."""
    normed: int = 0
    """How many weights of norms after Q and K two coordinates of each head are, in all layers."""
    rotary: bool = False
    eager_only: bool = False
    """Whether transformers has no sdpa attention for it."""
    quick: bool = True
    """False: its code is that of another row, so most tests of it are slow ones."""
    cached: bool = False
    """Whether it generates with a cache."""
    sites: tuple[str, ...] = ("self",)

    @property
    def from_transformers(self) -> bool:
        return bool(self.config_class)

    def build(self, *, wide: bool = False, **changes: Any) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            if not self.from_transformers:
                return TorchModel(768, 12) if wide else TorchModel()
            import transformers

            fields = {**self.config, **(self.wide if wide else {}), **changes}
            config = getattr(transformers, self.config_class)(**fields)
            model = getattr(transformers, self.model_class)(config)
            with torch.no_grad():  # biases of zero and norms of one would hide mistakes
                for parameter in model.parameters():
                    if parameter.ndim == 1:
                        parameter.add_(torch.randn_like(parameter) * 0.05)
            return model

    def feed(self, seed: int = 0) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, VOCAB, (2, LENGTH), generator=draw)
        if self.inputs == "sound":
            return {"input_values": torch.randn(2, 90, generator=draw)}
        if self.inputs == "mel":
            return {"input_features": torch.randn(2, 6, 24, generator=draw), "decoder_input_ids": ids}
        if self.inputs == "pixels":
            return {"pixel_values": torch.randn(2, 3, 16, 16, generator=draw)}
        if self.inputs == "pair":
            return {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
        return {"input_ids": ids}

    def logits(self, model: nn.Module, seed: int = 0) -> Tensor:
        output = model(**self.feed(seed))
        return output if isinstance(output, Tensor) else output.logits


def _encoder(name: str, stem: str, **extra: Any) -> Row:
    config = {**_SIZES, **_NO_DROPOUT, **extra.pop("config", {})}
    return Row(name, f"{stem}ForMaskedLM", f"{stem}Config", config, biased="qk", **extra)


def _decoder(name: str, stem: str, model_class: str = "", **given: Any) -> Row:
    facts = {"cached": True, "key_heads": 2, "rotary": True, **given}
    config = {**_GROUPED, **facts.pop("config", {})}
    return Row(name, model_class or f"{stem}ForCausalLM", f"{stem}Config", config, **facts)


def _outside(name: str, stem: str, config: dict[str, Any], **facts: Any) -> Row:
    """Describe a decoder whose attention does not use the attention interface."""
    return Row(name, f"{stem}ForCausalLM", f"{stem}Config", config, repairs=False, quick=False, **facts)


_GPT = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **_GPT2_DROPOUT}
_VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
}
_FALCON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_hidden_size": 48,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
}
_FALCON_WIDE = {"hidden_size": 768, "num_attention_heads": 12, "ffn_hidden_size": 3072}
_FULL = {"layer_types": ["full_attention", "full_attention"], "sliding_window": 64}


ROWS = [
    _encoder("bert", "Bert"),
    _encoder("roberta", "Roberta"),
    _encoder("electra", "Electra", config={"embedding_size": 32}),
    Row(
        "distilbert",
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {
            "vocab_size": VOCAB,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "max_position_embeddings": 64,
        },
        biased="qk",
    ),
    _encoder(
        "deberta-v2",
        "DebertaV2",
        repairs=False,
        uniform=False,
        config={
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "share_att_key": False,
            "position_biased_input": False,
        },
    ),
    Row(
        "modernbert",
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {
            **_SIZES,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "attention_bias": True,
            "reference_compile": False,
        },
        fused="Wqkv",
        rotary=True,
        biased="qk",
        wide={"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 1152},
    ),
    Row(
        "vit",
        "ViTForImageClassification",
        "ViTConfig",
        {**_VISION, **_NO_DROPOUT},
        inputs="pixels",
        biased="qk",
    ),
    Row(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        _GPT,
        fused="c_attn",
        biased="qk",
        cached=True,
        wide={"n_embd": 768, "n_head": 12},
    ),
    Row(
        "gpt-neox",
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        _SIZES,
        fused="query_key_value",
        rotary=True,
        biased="qk",
        cached=True,
        wide={"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    Row(
        "opt",
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
            "dropout": 0.0,
        },
        biased="qk",
        cached=True,
    ),
    _decoder("llama", "Llama"),
    _decoder("mistral", "Mistral", config={"sliding_window": None}),
    _decoder("qwen2", "Qwen2", biased="qk"),
    _decoder("qwen3", "Qwen3", config={"head_dim": 8}, normed=8),
    _decoder("gemma", "Gemma", config={"head_dim": 8}, quick=False),
    _decoder(
        "gemma2",
        "Gemma2",
        config={"head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": None, **_FULL},
        eager_only=True,
        quick=False,
    ),
    _decoder(
        "gemma3",
        "Gemma3Text",
        "Gemma3ForCausalLM",
        config={"head_dim": 8, "query_pre_attn_scalar": 8, **_FULL},
        normed=8,
        quick=False,
    ),
    _decoder("olmo2", "Olmo2", normed=24, quick=False),
    _decoder(
        "smollm3",
        "SmolLM3",
        config={"no_rope_layers": [1, 0], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        quick=False,
    ),
    _decoder("granite", "Granite", quick=False),
    _decoder(
        "mixtral",
        "Mixtral",
        config={"num_local_experts": 2, "sliding_window": None, "experts_implementation": "eager"},
        ffn=False,
        quick=False,
    ),
    _decoder("stablelm", "StableLm", config={"use_qkv_bias": True}, biased="qk", quick=False),
    _decoder("phi", "Phi", config={"resid_pdrop": 0.0, "embd_pdrop": 0.0}, biased="qk", quick=False),
    _decoder(
        "phi3",
        "Phi3",
        config={"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": None},
        fused="qkv_proj",
        wide={"hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 4},
        quick=False,
    ),
    _outside(
        "gpt-neo",
        "GPTNeo",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
    ),
    _outside("gpt-j", "GPTJ", {**_GPT, "rotary_dim": 4}),
    _outside(
        "bloom",
        "Bloom",
        {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        fused="query_key_value",
        wide={"hidden_size": 768, "n_head": 12},
        biased="qk",
        uniform=False,
    ),
    _outside(
        "mpt",
        "Mpt",
        {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
        fused="Wqkv",
        wide={"d_model": 768, "n_heads": 12},
        uniform=False,
    ),
    _outside(
        "falcon",
        "Falcon",
        {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
        fused="query_key_value",
        wide={**_FALCON_WIDE, "num_kv_heads": 4},
        biased="qk",
        key_heads=2,
    ),
    _outside(
        "falcon-7b",
        "Falcon",
        {**_FALCON, "multi_query": True},
        fused="query_key_value",
        wide=_FALCON_WIDE,
        key_heads=1,
    ),
    _outside(
        "falcon-rw",
        "Falcon",
        {**_FALCON, "multi_query": False, "alibi": True, "bias": True},
        fused="query_key_value",
        wide=_FALCON_WIDE,
        biased="qk",
        uniform=False,
    ),
    _encoder("albert", "Albert", quick=False, config={"embedding_size": 32, "num_hidden_groups": 2}),
    _encoder("mpnet", "MPNet", quick=False, repairs=False, uniform=False),
    Row(
        "deit",
        "DeiTForImageClassification",
        "DeiTConfig",
        {**_VISION, **_NO_DROPOUT},
        inputs="pixels",
        biased="qk",
        quick=False,
    ),
    Row(
        "clip",
        "CLIPForImageClassification",
        "CLIPConfig",
        {"vision_config": _VISION, "text_config": {"hidden_size": 32}},
        inputs="pixels",
        biased="qk",
        quick=False,
    ),
    Row(
        "siglip",
        "SiglipForImageClassification",
        "SiglipConfig",
        {"vision_config": _VISION, "text_config": {"hidden_size": 32}},
        inputs="pixels",
        biased="qk",
        quick=False,
    ),
    Row(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        {
            **{name: size for name, size in _SIZES.items() if name != "max_position_embeddings"},
            "conv_dim": (16, 16),
            "conv_kernel": (4, 3),
            "conv_stride": (4, 2),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "apply_spec_augment": False,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "feat_proj_dropout": 0.0,
            "final_dropout": 0.0,
            "layerdrop": 0.0,
        },
        inputs="sound",
        biased="qk",
        distances=False,
        quick=False,
    ),
    Row(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": VOCAB,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_mel_bins": 6,
            "max_source_positions": 12,
            "max_target_positions": 64,
            "dropout": 0.0,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        inputs="mel",
        biased="q",
        cached=True,
        sites=("encoder", "decoder", "cross"),
        quick=False,
    ),
    Row(
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": VOCAB,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
        inputs="pair",
        uniform=False,
        distances=False,
        cached=True,
        sites=("encoder", "decoder", "cross"),
    ),
    Row(
        "bart",
        "BartForConditionalGeneration",
        "BartConfig",
        {
            "vocab_size": VOCAB,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "dropout": 0.0,
            "max_position_embeddings": 64,
        },
        inputs="pair",
        biased="qk",
        cached=True,
        sites=("encoder", "decoder", "cross"),
    ),
    Row("torch", "TorchModel", fused="self_attn", biased="qk", repairs=False),
]
FUSED = [row for row in ROWS if row.fused]


def named(rows: list[Row], *, all_quick: bool = False) -> Callable[..., Any]:
    """Parametrise a test by rows. Those that repeat the code of another are slow, unless the test is cheap."""
    import pytest

    slow = [] if all_quick else [row for row in rows if not row.quick]
    parameters = [pytest.param(row, id=row.name, marks=[pytest.mark.slow] if row in slow else []) for row in rows]
    return pytest.mark.parametrize("row", parameters)
