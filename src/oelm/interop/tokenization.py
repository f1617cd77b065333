"""The tokenizer of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oelm.data.text_encoder import TextEncoder, from_backend, from_file, gpt2_encoder
from oelm.data.tokenizer import TOKENIZER
from oelm.errors import BadData
from oelm.models.configs import CONFIGS
from oelm.models.packaged import PACKAGES, UNCASED, package_directory, place_of
from oelm.spec.model import GPTSpec, ModelSpec


def encoder_of(spec: ModelSpec) -> TextEncoder:
    """Return the tokenizer that a model was trained with; our GPT has GPT-2's.

    Raises:
        BadData: the model brings none, or cannot be reached.

    """
    if isinstance(spec, GPTSpec):
        return gpt2_encoder()
    place = spec.name
    if spec.name in PACKAGES:
        place = place_of(spec.name)
    elif spec.name in CONFIGS:
        named = CONFIGS[spec.name]
        uncased = package_directory(UNCASED) if named.uncased else None
        found = uncased or named.hub
        if found is None:
            raise BadData(
                f"{spec.name} is a shape with no tokenizer of its own; set data.vocab_size (--vocab-size) to train one."
            )
        place = str(found)
    file = Path(place) / TOKENIZER
    return from_file(file) if file.is_file() else _through_transformers(place)


def _through_transformers(place: str) -> TextEncoder:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(place)
        backend = tokenizer.backend_tokenizer
    except (OSError, ValueError, AttributeError) as error:
        raise BadData(
            f"the tokenizer of {place!r} could not be read ({str(error).splitlines()[0]}). Give a model directory with "
            "a tokenizer.json, a hub name this machine can reach, or train a vocabulary with data.vocab_size."
        ) from error
    return from_backend(backend, place)
