"""A model from its spec: our GPT, or a `transformers` model by named configuration, local directory or hub name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from torch import nn

from oelm.errors import BadData, InvalidSpec
from oelm.models.configs import CONFIGS, IMAGE, SEQ2SEQ
from oelm.models.gpt import GPT
from oelm.models.packaged import PACKAGES, place_of
from oelm.spec.base import in_words
from oelm.spec.model import ForeignSpec, GPTSpec, ModelSpec
from oelm.spec.repair import RepairSpec
from oelm.spec.seeds import derived_seed

_COUNTING_FROM_PADDING = {"roberta", "xlm-roberta", "camembert"}


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
        fields = _fields(spec, vocab_size, reads_ends=named.head == SEQ2SEQ)
        config = config_class(**{**named.fields, **fields})
        config.dtype = torch.float32
        return _auto(named.labelled if spec.labels else named.head).from_config(config)  # type: ignore[no-any-return]
    place = place_of(spec.name) if spec.name in PACKAGES else spec.name
    saved = _read(_transformers("AutoConfig"), place)
    if spec.pretrained:
        _refuse_lost_repairs(spec, saved)
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
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:  # absent, foreign, of other shapes, torn
        raise BadData(
            f"the model {name!r} could not be read ({str(error).splitlines()[0]}). Give a directory that "
            "save_pretrained wrote, a hub name this machine can reach, or a named configuration: "
            f"{', '.join((*PACKAGES, *CONFIGS))}."
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _refuse_lost_repairs(spec: ForeignSpec, saved: Any) -> None:
    """Refuse a model that oelm saved with repairs: transformers' own class would leave them out without a word."""
    try:
        method = (getattr(saved, "oelm", None) or {}).get("method", {})
        repairs = RepairSpec.model_validate(method.get("repair", {})).active()
    except (AttributeError, ValidationError) as error:
        raise BadData(
            f"the 'oelm' entry in the config.json of {spec.name!r} cannot be read ({in_words(error)}). It was written "
            "by a later version or edited by hand: whether the model would lose something is not known. Take the entry "
            "out."
        ) from error
    if repairs:
        raise InvalidSpec(
            f"{spec.name!r} was saved with repairs of its logits ({', '.join(repairs)}), which a run would lose. "
            "Load it with oelm.load, or start from a model without them."
        )


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
    return IMAGE if config.model_type == "vit" else "AutoModelForSequenceClassification"


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
