"""Repairs of Hugging Face models, through the attention interface of `transformers`.

The interface calls an attention function with queries and keys that include positions, and with the keys of all
tokens so far if there is a cache. The modules of `method/repair.py` act there, and the original attention function is
called with their results.

Position features are added to coordinates of queries and keys that the narrowed projections leave at zero. So heads
keep their size, a cache has keys without features, and attention stays one call without a mask. Only distances matter,
so only the index of a query among the keys must be known. A static cache has more keys than tokens so far; there the
index is read from the cache before the call.

A model with repairs computes another function than its plain weights. Its config.json therefore names an attention
implementation that only `oelm` registers, so `transformers` alone refuses to build the model.
"""

# ruff: noqa: SLF001  (names of transformers that its own documentation of attention functions uses)
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from oelm.errors import CheckpointError, NotCarriedOut
from oelm.method.projection import Projection
from oelm.method.repair import (
    KeyMix,
    KeyShift,
    PositionBias,
    PositionFeatures,
    Repair,
    SignedPositionBias,
    Temperature,
)
from oelm.method.split import ComputedCoordinates, SplitModule
from oelm.spec.method import RepairSpec, heads_of

_PREFIX = "oelm_"
SHIFT, MIX, TEMPERATURE, FEATURES, BIAS = (
    f"{_PREFIX}{name}" for name in ("key_shift", "key_mix", "temperature", "position_features", "position_bias")
)
MARKER = f"{_PREFIX}needs_oelm_load"
"""A buffer that is saved with every repaired attention: plain `transformers` reports it as unexpected."""
_IS_REPAIRED, _CONTENT, _PAST = f"_{_PREFIX}is_repaired", f"_{_PREFIX}content", f"_{_PREFIX}past"
_TURN = f"_{_PREFIX}turn"
_MASKED = ("sdpa", "eager")
"""Implementations that accept an additive mask, and so a bias by distance."""


class RotaryTurn:
    """The rotary positions of an attention call, which are undone for some of its heads.

    A family rotates all heads, but heads that find a token by its content must not be rotated. So their queries and
    keys are rotated back before the family rotates them: R(p) R(-p) x = x. A cache then has keys without rotation.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        """Number of rotated coordinates of a head, in pairs (i, i + half of them)."""
        self.cos_BTK: Tensor | None = None
        self.sin_BTK: Tensor | None = None

    def note(self, options: dict[str, Any], args: tuple[Any, ...]) -> None:
        """Take the rotary positions from the arguments of an attention."""
        given = options.get("position_embeddings", args[1] if len(args) > 1 else None)
        if not isinstance(given, tuple) or len(given) != 2:
            raise NotCarriedOut(
                "Heads without rotary positions need the argument position_embeddings=(cos, sin) of their attention, "
                "but it was called without it. Call the whole model instead of its attention."
            )
        self.cos_BTK, self.sin_BTK = given

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "cos_BTK": None, "sin_BTK": None}  # they belong to one call

    def undo(self, x_BTHK: Tensor) -> Tensor:
        """Rotate queries or keys back, so that the rotation of the family cancels."""
        if self.cos_BTK is None or self.sin_BTK is None:
            raise NotCarriedOut("Queries and keys were computed outside of their attention. Call the whole model.")
        cos, sin = self.cos_BTK[:, :, None], self.sin_BTK[:, :, None]
        turned, rest = x_BTHK[..., : self.size].to(cos.dtype), x_BTHK[..., self.size :]
        first, second = turned.chunk(2, dim=-1)
        back = turned * cos + torch.cat((second, -first), dim=-1) * sin
        # cos^2 + sin^2 is 1, unless the family scales its positions (YaRN).
        return torch.cat(((back / (cos * cos + sin * sin)).to(x_BTHK.dtype), rest), dim=-1)


class TurnBack:
    """Undo a rotation for the first heads of a projection, or of the norm after it."""

    def __init__(self, turn: RotaryTurn, heads: int, of_heads: int, norm_axes: str) -> None:
        self.turn, self.heads, self.of_heads, self.norm_axes = turn, heads, of_heads, norm_axes

    def __call__(self, x_BTHK: Tensor) -> Tensor:
        """Rotate the first heads back."""
        plain, rest = x_BTHK[..., : self.heads, :], x_BTHK[..., self.heads :, :]
        return torch.cat((self.turn.undo(plain), rest), dim=-2)

    def after_norm(self, _module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        """Rotate the output of a norm back, as a forward hook."""
        if self.norm_axes == "BTC":
            return self(torch.unflatten(output, -1, (self.of_heads, -1))).flatten(-2)
        return self(output.transpose(1, 2)).transpose(1, 2) if self.norm_axes == "BHTK" else self(output)


def turn_back(
    attention: nn.Module, roles: dict[str, Projection], share: float, size: int, norms: dict[str, list[nn.Module]],
    norm_axes: str,
) -> None:  # fmt: skip
    """Undo rotary positions for a share of the key heads and for their query heads."""
    turn = attention.__dict__[_TURN] = RotaryTurn(size)
    key_heads = heads_of(share, roles["k"].num_heads)
    for role, projection in roles.items():
        heads = key_heads * projection.num_heads // roles["k"].num_heads
        back = TurnBack(turn, heads, projection.num_heads, norm_axes)
        if norms[role]:  # the family rotates after the norms
            norms[role][-1].register_forward_hook(back.after_norm)
        else:
            part = projection.set_apart()
            part.afterwards, part.num_heads = back, projection.num_heads


def install(
    model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection], *, context: Callable[[nn.Module], int],
    contents: dict[str, ComputedCoordinates], attentions: Iterable[str],
) -> None:  # fmt: skip
    """Add the repairs to each attention as child modules, and apply them to its logits.

    `context` returns the greatest number of tokens of an attention, for repairs by distance. `contents` has the
    coordinates of content by attention; `attentions` names all attentions of the model.
    """
    heads: dict[str, dict[str, Projection]] = {}
    for projection in queries_and_keys:
        heads.setdefault(attention_name(projection), {})[projection.role] = projection
    for name, roles in heads.items():
        attention = model.get_submodule(name)
        for child, module in _repairs(attention, repair, roles, context(attention)):
            attention.add_module(child, module.to(roles["q"].weight.device))
        if name in contents and repair.position_features:
            attention.__dict__[_CONTENT] = contents[name]
        attention.register_buffer(MARKER, torch.ones(1, dtype=torch.bool, device=roles["q"].weight.device))
        attention.register_forward_pre_hook(_look_ahead, with_kwargs=True)
    for name in attentions:
        model.get_submodule(name).__dict__[_IS_REPAIRED] = True
    host = cast("Any", model)
    name = register_attention(host.config._attn_implementation)
    host.set_attn_implementation(name)
    host.config.attn_implementation = name


def attention_name(projection: Projection) -> str:
    """Return the dotted name of the module that calls the attention function."""
    return projection.module_name.rpartition(".")[0]


def _repairs(
    attention: nn.Module, repair: RepairSpec, roles: dict[str, Projection], context: int
) -> Iterable[tuple[str, Repair]]:
    query_heads, key_heads = roles["q"].num_heads, roles["k"].num_heads
    if repair.key_shift:
        yield SHIFT, KeyShift(repair.key_shift, key_heads)
    if repair.key_mix:
        yield MIX, KeyMix(key_heads)
    if repair.temperature:
        yield TEMPERATURE, Temperature(query_heads)
    if roles["q"].site == "cross":  # queries and keys come from different texts, so there is no distance
        return
    if repair.position_features:
        number = repair.num_frequencies(roles["q"].whole_head_size)
        yield FEATURES, PositionFeatures(query_heads, key_heads, number, context)
    if repair.position_bias:
        causal = bool(getattr(attention, "is_causal", False))
        yield BIAS, (PositionBias if causal else SignedPositionBias)(query_heads, context)


def refuse_sliding_cache(config: Any) -> None:
    """Refuse a cache that drops the key before its oldest one, which a shifted head would read."""
    layers = getattr(config, "layer_types", None)
    sliding = "sliding_attention" in layers if layers else getattr(config, "sliding_window", None)
    if getattr(config, "use_cache", False) and sliding:
        raise NotCarriedOut(
            "A key shift or key mix was requested, but this model attends through a sliding window, and its cache "
            "drops keys that shifted heads would read. Set config.sliding_window=None (and no "
            "sliding layer_types) before building the model, or leave the repair off."
        )


def refuse_unmasked(config: Any) -> None:
    """Refuse an attention implementation without an additive mask, which a bias needs."""
    implementation = config._attn_implementation
    if implementation.removeprefix(_PREFIX) not in _MASKED:
        raise NotCarriedOut(
            f"position_bias is added to the attention mask, which {implementation!r} does not take. Use "
            "position_features, or load the model with attn_implementation='sdpa'."
        )


def load_repairs(model: nn.Module, directory: str, **where: Any) -> None:
    """Load the parameters of repairs from a checkpoint; `where` has options for the hub (revision, ...).

    Raises:
        CheckpointError: a tensor is missing.

    """
    from safetensors import safe_open
    from transformers.core_model_loading import revert_weight_conversion

    here = {
        name: tensor
        for name, tensor in model.state_dict(keep_vars=True).items()
        if f".{_PREFIX}" in name and not name.endswith(f".{MARKER}")
    }
    # Some families save tensors under older names.
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
            f"The checkpoint {directory} lacks {', '.join(sorted(wanted))}, which the repairs of its "
            "method need. It was saved without them; save the model again with save_pretrained."
        )


def _folder(name: str, where: dict[str, Any]) -> Path:
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns="*.safetensors", **where))


def register_attention(implementation: str | None = None) -> str:
    """Register repaired forms of this and the usual attention implementations; return the name of this one."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    implementation = (implementation or "sdpa").removeprefix(_PREFIX)
    for each in {*_MASKED, implementation}:
        name = f"{_PREFIX}{each}"
        if name not in ALL_ATTENTION_FUNCTIONS.valid_keys():
            AttentionInterface.register(name, _make_attention(each))
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[each])
    return f"{_PREFIX}{implementation}"


def plain_config(config: Any) -> Any:
    """Change a configuration, in place, so that it builds the model without repairs; return it."""
    if (config._attn_implementation or "").startswith(_PREFIX):
        config._attn_implementation = config._attn_implementation.removeprefix(_PREFIX)
        config.__dict__.pop("attn_implementation", None)
    return config


def _look_ahead(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Check before an attention runs that its repairs will run, and note the length of a static cache."""
    implementation = cast("Any", module).config._attn_implementation
    if not implementation.startswith(_PREFIX):
        raise NotCarriedOut(
            f"The attention implementation was changed to {implementation!r}, which leaves out the repairs of this "
            f"model. Call model.set_attn_implementation('{_PREFIX}{implementation}') instead."
        )
    if (turn := module.__dict__.get(_TURN)) is not None:
        turn.note(options, args)
        if any("base_layer" in child._modules for child in module.children() if _turns_back(child)):
            raise NotCarriedOut(
                "An adapter was added to the queries or keys of heads without rotary positions, and its output would "
                "be rotated. Leave Q and K out of the adapter's target_modules: this method freezes them."
            )
    module.__dict__[_PAST] = None
    if FEATURES not in module._modules and BIAS not in module._modules:
        return
    for cache in (*args, *options.values()):
        if getattr(cache, "is_compileable", False):
            if any(getattr(cache, "is_sliding", ())):
                raise NotCarriedOut(
                    "Position features and biases need the positions of keys, which a static cache of a sliding window "
                    "does not have. Generate with the default (dynamic) cache."
                )
            # The attention function runs after the cache has counted the new tokens.
            module.__dict__[_PAST] = torch.as_tensor(cache.get_seq_length(cast("Any", module).layer_idx)).clone()


def _turns_back(module: nn.Module) -> bool:
    splits = [inner for inner in module.modules() if isinstance(inner, SplitModule)]
    return any(part.afterwards for inner in splits for part in inner.parts().values())


def _make_attention(implementation: str) -> Callable[..., Any]:
    def attend(module: nn.Module, queries: Tensor, keys: Tensor, values: Tensor, *rest: Any, **options: Any) -> Any:
        if not module.__dict__.get(_IS_REPAIRED):
            raise CheckpointError(
                "This model was saved with repairs of its attention and loaded without them, so its results would be "
                "wrong. Load it with oelm.load(path)."
            )
        mask, rest = (rest[0], rest[1:]) if rest else (options.pop("attention_mask", None), ())
        repairs = module._modules
        for name in (SHIFT, MIX):
            if (repair := repairs.get(name)) is not None:
                keys = _with_predecessors(module, repair, keys, mask)
        if (temperature := repairs.get(TEMPERATURE)) is not None:
            queries = temperature(queries)
        if (features := repairs.get(FEATURES)) is not None:
            queries, keys, options["scaling"] = _with_features(module, features, queries, keys, options.get("scaling"))
        if (bias := repairs.get(BIAS)) is not None:
            mask = _with_bias(module, bias, queries, keys, mask)
        return _host_function(module, implementation)(module, queries, keys, values, mask, *rest, **options)

    return attend


def _with_features(
    module: nn.Module, features: nn.Module, queries: Tensor, keys: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor, float]:
    """Fill free coordinates with features. The scale of the logits is that of the content; features have none."""
    content: ComputedCoordinates = module.__dict__[_CONTENT]
    scaling = content.head_size**-0.5 if scaling is None else scaling
    if content.size:
        scaling *= (content.head_size / content.size) ** 0.5
    new, seen, past = queries.shape[2], keys.shape[2], module.__dict__[_PAST]
    queries_HTF, keys_GTF = features(new if past is None else seen, seen)
    if past is not None:
        queries_HTF = queries_HTF[:, past + torch.arange(new, device=past.device)]
    return content.append(queries, queries_HTF / scaling), content.append(keys, keys_GTF), scaling


def _with_bias(module: nn.Module, bias: nn.Module, queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Return an additive mask: masked pairs stay masked, all others get the bias of their distance."""
    new, seen, past = queries.shape[2], keys.shape[2], module.__dict__[_PAST]
    bias_HTT: Tensor = bias(new if past is None else seen, seen)
    if past is not None:
        bias_HTT = bias_HTT[:, past + torch.arange(new, device=past.device)]
    bias_BHTT = bias_HTT.to(queries.dtype)[None]
    if mask is None:
        return bias_BHTT
    if mask.dtype == torch.bool:
        return torch.where(mask, bias_BHTT, torch.finfo(queries.dtype).min)
    return bias_BHTT + mask


def _with_predecessors(module: nn.Module, repair: nn.Module, keys: Tensor, mask: Any) -> Tensor:
    """Shift or mix keys; the first token after padding has no predecessor and keeps its own key."""
    changed: Tensor = repair(keys)
    if not isinstance(mask, Tensor) or getattr(module, "sliding_window", None):
        return changed
    seen_BT = mask if mask.ndim == 2 else mask[:, 0, -1]  # the last query sees everything but padding
    seen_BT = seen_BT if seen_BT.dtype == torch.bool else seen_BT > (0 if mask.ndim == 2 else -1)
    first_B1 = seen_BT.int().argmax(-1, keepdim=True)
    is_first_BT = torch.arange(seen_BT.shape[-1], device=keys.device) == first_B1
    return torch.where(is_first_BT[:, None, :, None], keys, changed)


def _host_function(module: nn.Module, implementation: str) -> Callable[..., Any]:
    """Return the attention function without repairs; each model file has its own eager one."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
