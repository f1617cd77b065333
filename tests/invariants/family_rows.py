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
    """Whether it takes repairs by distance: not where it has a bias of its own."""
    uniform: bool = True
    biased: bool = False
    """Whether Q and K have biases."""
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
            with torch.no_grad():  # biases and norms at their published nought and one would hide mistakes
                for parameter in model.parameters():
                    if parameter.ndim == 1:
                        parameter.add_(torch.randn_like(parameter) * 0.05)
            return model

    def feed(self, seed: int = 0) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, VOCAB, (2, LENGTH), generator=draw)
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
    return Row(name, f"{stem}ForMaskedLM", f"{stem}Config", config, biased=True, **extra)


def _decoder(name: str, stem: str, **config: Any) -> Row:
    return Row(name, f"{stem}ForCausalLM", f"{stem}Config", {**_GROUPED, **config}, cached=True, biased=stem == "Qwen2")


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
        biased=True,
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
        biased=True,
        wide={"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 1152},
    ),
    Row(
        "vit",
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 16,
            "patch_size": 4,
            **_NO_DROPOUT,
        },
        inputs="pixels",
        biased=True,
    ),
    Row(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **_GPT2_DROPOUT},
        fused="c_attn",
        biased=True,
        cached=True,
        wide={"n_embd": 768, "n_head": 12},
    ),
    Row(
        "gpt-neox",
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        _SIZES,
        fused="query_key_value",
        biased=True,
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
        biased=True,
        cached=True,
    ),
    _decoder("llama", "Llama"),
    _decoder("mistral", "Mistral", sliding_window=None),
    _decoder("qwen2", "Qwen2"),
    _decoder("qwen3", "Qwen3", head_dim=8),
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
        biased=True,
        cached=True,
        sites=("encoder", "decoder", "cross"),
    ),
    Row("torch", "TorchModel", fused="self_attn", biased=True, repairs=False),
]
FUSED = [row for row in ROWS if row.fused]


def named(rows: list[Row]) -> Callable[..., Any]:
    import pytest

    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)
