"""Models that went out through `save_pretrained`, brought back with their method.

`model.save_pretrained(path)` needs nothing from here: it writes the plain merged weights, and the method stands in
`config.json` under `oelm`. Plain `transformers` loads that and trains everything; `load` freezes again what was
frozen, and proves it. Trained parts of repairs are extra tensors in the same file, which plain `transformers` drops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError
from torch import nn

from oelm import surgery
from oelm.errors import BadData, CheckpointError
from oelm.method.freeze import Applied
from oelm.spec.base import in_words
from oelm.spec.method import MethodSpec


def load(path: str | Path, **options: Any) -> nn.Module:
    """Load a `transformers` model with the method that stood on it when it was saved, frozen as it was then.

    `options` go to `from_pretrained` (dtype, device_map, ...).

    Raises:
        BadData: there is no such directory or hub name, or it holds no model.
        CheckpointError: it carries no method, or a weight is not what was frozen.

    """
    import transformers

    name = str(path)
    where = {key: options[key] for key in ("revision", "cache_dir", "token") if key in options}
    try:
        config = transformers.AutoConfig.from_pretrained(name, **where)
    except (OSError, ValueError) as error:
        raise BadData(
            f"no model could be read from {name!r} ({str(error).splitlines()[0]}). Give the directory that "
            "model.save_pretrained wrote, or a hub name."
        ) from error
    state = _state(config, name)
    cls = getattr(transformers, (config.architectures or [""])[0], None)
    if cls is None:
        raise BadData(
            f"{name!r} holds a model of class {config.architectures}, which transformers does not have. "
            "Load it yourself and call oelm.surgery.restore."
        )
    if state.method.repair.active():
        from oelm.models.repaired_attention import register

        register(config._attn_implementation)  # noqa: SLF001  (transformers has no public name for it)
    try:
        model: nn.Module = cls.from_pretrained(name, **options)
    except (OSError, RuntimeError, SafetensorError) as error:  # absent, of other shapes, torn
        raise BadData(
            f"the weights of {name!r} could not be read ({str(error).splitlines()[0]}). Copy the whole directory that "
            "model.save_pretrained wrote again."
        ) from error
    surgery.restore(model, state)
    if state.method.repair.active():
        from oelm.models.repaired_attention import load_repairs

        load_repairs(model, name, **where)
    return model


def _state(config: Any, name: str) -> Applied:
    note = getattr(config, "oelm", None)
    if note is None:
        raise CheckpointError(
            f"{name!r} carries no method: its config.json has no 'oelm' entry. Load it with "
            "transformers and call oelm.apply(model, method)."
        )
    try:
        casts = {name: tuple(values) for name, values in note.get("casts", {}).items()}
        return Applied(MethodSpec.model_validate(note["method"]), int(note["seed"]), dict(note["hashes"]), casts)
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise CheckpointError(
            f"the 'oelm' entry in the config.json of {name!r} cannot be read ({in_words(error)}). It was "
            "written by a later version or edited by hand; apply a method anew."
        ) from error
