"""Load models that `save_pretrained` has written, with their method, and the tokenizers of models.

`model.save_pretrained(path)` writes the plain merged weights, and the method as the entry `oelm` of `config.json`.
Plain `transformers` loads this model and trains everything. `load` freezes the same tensors again and verifies them.
The parameters of repairs are extra tensors in the same file; plain `transformers` refuses such a model, because its
config.json names an attention implementation that only `oelm` has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError
from torch import nn

from oelm.data.tokenizer import (
    TOKENIZER,
    TextEncoder,
    Tokenizer,
    from_backend,
    from_file,
    gpt2_encoder,
    model_tokenizer,
)
from oelm.errors import BadData, CheckpointError, UsageError
from oelm.method.freeze import Applied
from oelm.models import apply as surgery
from oelm.models.build import CONFIGS, PACKAGES, UNCASED, package_directory, packaged_location, parse_model_name
from oelm.spec import explain_validation
from oelm.spec.method import MethodSpec, NamesSpec
from oelm.spec.run import GPTSpec, ModelSpec


def load_pretrained(path: str | Path, **options: Any) -> nn.Module:
    """Load a `transformers` model with the method that it was saved with, and freeze the same tensors.

    `options` are passed to `from_pretrained` (dtype, device_map, ...).

    Raises:
        BadData: the directory or hub name does not exist, or does not contain a model.
        CheckpointError: it has no method, or a frozen weight has changed.

    """
    import transformers

    from oelm.interop import hugging_face_gpt

    hugging_face_gpt.register_auto_model()
    name = str(path)
    if options.get("trust_remote_code"):
        raise UsageError("oelm.load does not run code that a model folder brings along. Leave trust_remote_code out.")
    options["trust_remote_code"] = False  # left open, transformers asks on the terminal
    where = {key: options[key] for key in ("revision", "cache_dir", "token", "trust_remote_code") if key in options}
    try:
        config = transformers.AutoConfig.from_pretrained(name, **where)
    except (OSError, ValueError) as error:
        raise BadData(
            f"No model could be read from {name!r} ({str(error).splitlines()[0]}). Give a directory that "
            "model.save_pretrained wrote, or a hub name."
        ) from error
    if isinstance(config, hugging_face_gpt.OelmGPTConfig):
        own: nn.Module = getattr(hugging_face_gpt, (config.architectures or [""])[0]).from_pretrained(name, **options)
        return own
    state = _state(config, name)
    cls = getattr(transformers, (config.architectures or [""])[0], None)
    if cls is None:
        raise BadData(
            f"{name!r} has a model of class {config.architectures}, which transformers does not have. "
            "Load it yourself and call oelm.models.apply.restore_method."
        )
    if state.method.repair.active():
        from oelm.models.repaired_attention import register_attention

        register_attention(config._attn_implementation)  # noqa: SLF001  (transformers has no public name for it)
    try:
        with _expect_repairs(cls):
            model: nn.Module = cls.from_pretrained(name, **options)
    except (OSError, RuntimeError, SafetensorError) as error:  # missing, of other shapes, damaged
        raise BadData(
            f"The weights of {name!r} could not be read ({str(error).splitlines()[0]}). Copy the whole directory that "
            "model.save_pretrained wrote again."
        ) from error
    surgery.restore_method(model, state)
    if state.method.repair.active():
        from oelm.models.repaired_attention import load_repairs

        load_repairs(model, name, **where)
    return model


@contextmanager
def _expect_repairs(cls: Any) -> Iterator[None]:
    """Keep transformers from reporting the tensors of repairs as unexpected: `load_repairs` reads them afterwards."""
    known = cls._keys_to_ignore_on_load_unexpected  # transformers has no argument for it
    cls._keys_to_ignore_on_load_unexpected = [*(known or ()), r"\.oelm_"]
    try:
        yield
    finally:
        cls._keys_to_ignore_on_load_unexpected = known


def _state(config: Any, name: str) -> Applied:
    note = getattr(config, "oelm", None)
    if note is None:
        raise CheckpointError(
            f"{name!r} has no method: its config.json has no 'oelm' entry. Load it with "
            "transformers and call oelm.apply(model, method)."
        )
    try:
        casts = {name: tuple(values) for name, values in note.get("casts", {}).items()}
        names = NamesSpec.model_validate(note["names"]) if note.get("names") else None
        method = MethodSpec.model_validate(note["method"])
        return Applied(method, int(note["seed"]), dict(note["hashes"]), casts, names)
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise CheckpointError(
            f"The 'oelm' entry in the config.json of {name!r} cannot be read ({explain_validation(error)}). It may "
            "come from a later version of oelm or from an edit by hand. Load the plain model and apply a method again."
        ) from error


def encoder_of(spec: ModelSpec) -> TextEncoder:
    """Return the tokenizer that a model was trained with; our GPT uses GPT-2's.

    Raises:
        BadData: the model has no tokenizer, or cannot be reached.

    """
    if isinstance(spec, GPTSpec):
        return gpt2_encoder()
    place = spec.name
    if spec.name in PACKAGES:
        place = packaged_location(spec.name)
    elif spec.name in CONFIGS:
        named = CONFIGS[spec.name]
        uncased = package_directory(UNCASED) if named.uncased else None
        found = uncased or named.hub
        if found is None:
            raise BadData(f"{spec.name} has no tokenizer. Set data.vocab_size (--vocab-size) to train one on the data.")
        place = str(found)
    file = Path(place) / TOKENIZER
    return from_file(file) if file.is_file() else _through_transformers(place)


def tokenizer_of(name: str) -> Tokenizer:
    """Return the vocabulary of a pretrained model, for token files.

    Raises:
        BadData: the model has no tokenizer, or cannot be reached; or token files cannot hold its ids.

    """
    return model_tokenizer(encoder_of(parse_model_name(name)).to_json(), name)


def _through_transformers(place: str) -> TextEncoder:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        backend = tokenizer.backend_tokenizer
    except (OSError, ValueError, AttributeError) as error:
        raise BadData(
            f"The tokenizer of {place!r} could not be read ({str(error).splitlines()[0]}). Give a model directory with "
            "a tokenizer.json, a hub name that this machine can reach, or train a vocabulary with data.vocab_size."
        ) from error
    return from_backend(backend, place)
