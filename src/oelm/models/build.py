"""A model from its spec: our GPT, or a `transformers` model by named configuration, local directory or hub name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oelm.errors import BadData, InvalidSpec, UnknownName
from oelm.models.gpt import GPT
from oelm.models.packaged import PACKAGES, place_of
from oelm.spec.model import GPT_SIZES, ForeignSpec, GPTSpec, ModelSpec
from oelm.spec.seeds import derived_seed


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


_MASKED, _CAUSAL, _SEQ2SEQ = "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
_IMAGE = "AutoModelForImageClassification"
_SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_T5 = {"decoder_start_token_id": 0}  # its padding, as published; the configuration by itself names none
_COUNTING_FROM_PADDING = {"roberta", "xlm-roberta", "camembert"}

CONFIGS: dict[str, NamedConfig] = {
    "bert-base": NamedConfig("BertConfig", _MASKED, "google-bert/bert-base-uncased"),
    "bert-large": NamedConfig("BertConfig", _MASKED, "google-bert/bert-large-uncased", _LARGE),
    "bert-tiny": NamedConfig(
        "BertConfig",
        _MASKED,
        "google/bert_uncased_L-2_H-128_A-2",
        {**_SMALL, "num_attention_heads": 2, "intermediate_size": 512},
    ),
    "roberta-base": NamedConfig("RobertaConfig", _MASKED, "FacebookAI/roberta-base", _ROBERTA),
    "electra-small": NamedConfig("ElectraConfig", _MASKED, "google/electra-small-discriminator"),
    "distilbert": NamedConfig("DistilBertConfig", _MASKED, "distilbert/distilbert-base-uncased"),
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
    "vit-base": NamedConfig("ViTConfig", _IMAGE, "google/vit-base-patch16-224", labelled=_IMAGE),
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
        _SEQ2SEQ,
        None,
        {**_T5, "d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
    ),
    "bart-tiny": NamedConfig(
        "BartConfig",
        _SEQ2SEQ,
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
    "t5-small": NamedConfig("T5Config", _SEQ2SEQ, "google-t5/t5-small", _T5),
    "bart-base": NamedConfig(
        "BartConfig",
        _SEQ2SEQ,
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
        UnknownName: neither a size, nor a configuration, nor a package, nor a directory, nor the form of a hub name.

    """
    if name in GPT_SIZES:
        size = GPT_SIZES[name].model_copy(update={"labels": labels})
        # Sizes that take their vocabulary from the data are shown with that of GPT-2.
        return size if size.vocab_size else size.model_copy(update={"vocab_size": 50257})
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


def build(spec: ModelSpec, *, seed: int = 0, vocab_size: int | None = None) -> nn.Module:
    """Build a model; what is not loaded is drawn from `seed` and from nothing else.

    `vocab_size` is that of a foreign model from scratch, if it is not to be the published one.
    """
    if isinstance(spec, GPTSpec):
        return GPT(spec, seed)
    with _seeded(seed, spec.name):
        return build_foreign(spec, vocab_size)


def build_foreign(spec: ForeignSpec, vocab_size: int | None = None) -> nn.Module:
    """Build a `transformers` model with its own head, or with a classification head of `labels` classes.

    Raises:
        InvalidSpec: pretrained weights of a named configuration, which has none; another vocabulary or another
            number of labels than pretrained weights are of.
        BadData: the directory or hub name cannot be read.

    """
    if spec.name in CONFIGS:
        named = CONFIGS[spec.name]
        if spec.pretrained:
            raise InvalidSpec(
                f"{spec.name!r} is a named configuration without weights. Say pretrained=False for the "
                f"architecture from scratch, or give the name of weights ({named.hub or 'on the hub'}) or "
                "their directory."
            )
        config_class = _transformers(named.config)
        _refuse_other_vocabulary(spec, vocab_size, config_class.model_type)
        fields = _fields(spec, vocab_size, reads_ends=named.head == _SEQ2SEQ)
        config = config_class(**{**named.fields, **fields})
        config.dtype = torch.float32
        return _auto(named.labelled if spec.labels else named.head).from_config(config)  # type: ignore[no-any-return]
    place = place_of(spec.name) if spec.name in PACKAGES else spec.name
    saved = _read(_transformers("AutoConfig"), place)
    if spec.pretrained:
        _refuse_other_head(spec, vocab_size, saved)
    else:
        _refuse_other_vocabulary(spec, vocab_size, saved.model_type)
    fields = _fields(spec, vocab_size, reads_ends=saved.is_encoder_decoder)
    config = _read(_transformers("AutoConfig"), place, **fields)
    # Whatever the weights are stored in: train.precision says what is computed in, over weights in float32.
    config.dtype = torch.float32
    auto = _auto(_labelled_class(config) if spec.labels else _head_of(config))
    if spec.pretrained:
        return _read(auto, place, config=config, dtype=torch.float32)  # type: ignore[no-any-return]
    return auto.from_config(config)  # type: ignore[no-any-return]


def _read(cls: Any, name: str, **options: Any) -> Any:
    logging = _transformers("logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    # Which weights a new head lacks is what was asked for, and no news.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return cls.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise BadData(
            f"the model {name!r} could not be read ({str(error).splitlines()[0]}). Give a directory that "
            "save_pretrained wrote, a hub name this machine can reach, or a named configuration: "
            f"{', '.join((*PACKAGES, *CONFIGS))}."
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _refuse_other_head(spec: ForeignSpec, vocab_size: int | None, saved: Any) -> None:
    classifies = _head_of(saved).endswith(("ForSequenceClassification", "ForImageClassification"))
    if spec.labels and classifies and saved.num_labels != spec.labels:
        names = ", ".join(str(name) for name in saved.id2label.values())
        raise InvalidSpec(
            f"{spec.name!r} is a classifier of {saved.num_labels} labels ({names}), and {spec.labels} were asked for. "
            "Take the encoder without that head, another model, or data with its labels."
        )
    if vocab_size is not None and vocab_size != saved.vocab_size:
        raise InvalidSpec(
            f"{spec.name!r} was pretrained on its own vocabulary of {saved.vocab_size} entries; one of {vocab_size} "
            "is for models from scratch. Leave data.vocab_size out, or say model.pretrained=False."
        )


def _refuse_other_vocabulary(spec: ForeignSpec, vocab_size: int | None, model_type: str) -> None:
    if vocab_size and model_type in _COUNTING_FROM_PADDING:
        raise InvalidSpec(
            f"{spec.name!r} counts positions from the number of its padding token, so it cannot take a vocabulary "
            f"trained on the data, whose padding is its last entry ({vocab_size - 1}). Leave data.vocab_size out, or "
            "take another encoder (bert-tiny, bert-base, electra-small, ...)."
        )


def _fields(spec: ForeignSpec, vocab_size: int | None, *, reads_ends: bool) -> dict[str, int]:
    """Return what a configuration is to have otherwise: its labels, and a vocabulary trained on the data.

    The only special token of such a vocabulary is its last, the end of a text, which serves as padding, too. But
    classifiers with a decoder read their logits at the ends (`reads_ends`): they get one more entry to pad with.
    """
    fields = {"num_labels": spec.labels} if spec.labels else {}
    if vocab_size:
        ends = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
        fields |= {"vocab_size": vocab_size, **dict.fromkeys(ends, vocab_size - 1)}
        if spec.labels and reads_ends:
            fields |= {"vocab_size": vocab_size + 1, "pad_token_id": vocab_size}
    return fields


def _labelled_class(config: Any) -> str:
    return _IMAGE if config.model_type == "vit" else "AutoModelForSequenceClassification"


def _head_of(config: Any) -> str:
    """Return the class that a saved configuration names, or that of the bare model."""
    architectures = getattr(config, "architectures", None) or ["AutoModel"]
    return str(architectures[0])


def _auto(name: str) -> Any:
    cls = _transformers(name)
    # A concrete class builds from a configuration under another name than the Auto classes do.
    return cls if name.startswith("Auto") else _Concrete(cls)


class _Concrete:
    """A model class in the manner of an Auto class."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls

    def from_config(self, config: Any) -> Any:
        return self.cls(config)

    def from_pretrained(self, name: str, **options: Any) -> Any:
        return self.cls.from_pretrained(name, **options)


def _transformers(name: str) -> Any:
    import transformers

    try:
        return getattr(transformers, name)
    except AttributeError:
        raise BadData(
            f"the model is of class {name!r}, which transformers {transformers.__version__} does not have. "
            "Load it yourself and call oelm.apply on it."
        ) from None


@contextmanager
def _seeded(seed: int, name: str) -> Iterator[None]:
    """Let torch's global draws depend on the seed inside, and not at all outside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "model", name))
        yield
