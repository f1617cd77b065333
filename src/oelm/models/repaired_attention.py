"""Repairs of foreign models, through the attention interface of `transformers`.

The interface hands an attention function queries and keys with positions in, and keys of all tokens so far where
there is a cache: the place where the modules of `method/repair.py` act. The function that stood there before is
called with what they return.
"""

# ruff: noqa: SLF001  (names of transformers that its own documentation of attention functions uses)
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from oelm.errors import CheckpointError, NotCarriedOut
from oelm.method.projection import Projection
from oelm.method.repair import KeyShift, Temperature
from oelm.spec.repair import RepairSpec

_PREFIX = "oelm_"
SHIFT, TEMPERATURE = f"{_PREFIX}key_shift", f"{_PREFIX}temperature"


def install(model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection]) -> None:
    """Hang the repairs into each attention as its children and lead its logits through them."""
    for projection in queries_and_keys:
        attention = model.get_submodule(projection.module_name.rpartition(".")[0])
        if projection.role == "k" and repair.key_shift:
            attention.add_module(SHIFT, KeyShift(repair.key_shift, projection.num_heads))
        if projection.role == "q" and repair.temperature:
            fresh = Temperature(projection.num_heads).to(projection.weight.device)
            attention.add_module(TEMPERATURE, fresh)
    host = cast("Any", model)
    host.set_attn_implementation(_registered(host.config._attn_implementation))


def refuse_sliding_cache(config: Any) -> None:
    """Raise where a cache forgets the key before the oldest one it keeps, which a shifted head would read."""
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    if getattr(config, "use_cache", False) and (sliding or getattr(config, "sliding_window", None)):
        raise NotCarriedOut(
            "key shift was asked for, but this model attends through a sliding window, and its cache "
            "drops keys that shifted heads would read. Set config.sliding_window=None (and no "
            "sliding layer_types) before building the model, or leave the repair off."
        )


def load_repairs(model: nn.Module, directory: str, **where: Any) -> None:
    """Load the trained parts of repairs from the files of a checkpoint; `where` is for the hub (revision, ...).

    Raises:
        CheckpointError: a tensor is missing.

    """
    from safetensors import safe_open
    from transformers.core_model_loading import revert_weight_conversion

    here = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if f".{_PREFIX}" in name}
    # Some families save under older names than their modules have.
    wanted = {
        next(iter(revert_weight_conversion(cast("Any", model), {name: tensor}))): tensor
        for name, tensor in here.items()
    }
    if not wanted:
        return
    for file in sorted(_folder(directory, where).glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in wanted.keys() & set(opened.keys()):
                tensor = wanted.pop(name)
                tensor.data.copy_(opened.get_tensor(name))
    if wanted:
        raise CheckpointError(
            f"the checkpoint {directory} lacks {', '.join(sorted(wanted))}, which the repairs of its "
            "method need. It was saved without them; save the model again with save_pretrained."
        )


def _folder(name: str, where: dict[str, Any]) -> Path:
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns="*.safetensors", **where))


def _registered(implementation: str) -> str:
    """Register the repaired form of an attention implementation and return its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    if implementation.startswith(_PREFIX):
        return implementation
    name = f"{_PREFIX}{implementation}"
    AttentionInterface.register(name, _repaired(implementation))
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])
    return name


def _repaired(implementation: str) -> Callable[..., Any]:
    def attend(module: nn.Module, queries: Tensor, keys: Tensor, values: Tensor, *rest: Any, **options: Any) -> Any:
        shift, temperature = module._modules.get(SHIFT), module._modules.get(TEMPERATURE)
        if shift is not None:
            keys = _shifted(module, shift, keys, rest[0] if rest else options.get("attention_mask"))
        queries = temperature(queries) if temperature is not None else queries
        return _host_function(module, implementation)(module, queries, keys, values, *rest, **options)

    return attend


def _shifted(module: nn.Module, shift: nn.Module, keys: Tensor, mask: Any) -> Tensor:
    """Shift keys; the first token that can be seen, be it after padding, has none before it and keeps its own."""
    shifted: Tensor = shift(keys)
    if not isinstance(mask, Tensor) or getattr(module, "sliding_window", None):
        return shifted
    seen_BT = mask if mask.ndim == 2 else mask[:, 0, -1]  # what the last query sees: all but padding
    seen_BT = seen_BT if seen_BT.dtype == torch.bool else seen_BT > (0 if mask.ndim == 2 else -1)
    first_B1 = seen_BT.int().argmax(-1, keepdim=True)
    is_first_BT = torch.arange(seen_BT.shape[-1], device=keys.device) == first_B1
    return torch.where(is_first_BT[:, None, :, None], keys, shifted)


def _host_function(module: nn.Module, implementation: str) -> Callable[..., Any]:
    """Return the function that attends without repairs; the eager one is each model file's own."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
