"""Carry out a method on the projections of a model: draw weights, freeze them, and prove that they did not change.

A zero gradient does not freeze a weight: an optimiser decays every parameter that has a gradient tensor, and a stale
gradient moves a parameter after `requires_grad=False`. Tensors frozen here have no gradient, and a hash of their bytes
shows whether they changed.

Which layers are frozen at a step, and the learning-rate multipliers of parameters, are pure functions, so that a
resumed run needs no saved state for them. A method that does not fit a model is refused before anything is changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

# ruff: noqa: SLF001  (wrappers forward attributes; only _modules tells which are their own)
from oelm.errors import BadShape, FrozenWeightsMoved, MethodError, NotCarriedOut, UnusableWeight
from oelm.method.orthogonal import draw
from oelm.method.projection import Architecture, Projection
from oelm.spec.method import Change, InitSpec, Layers, MethodSpec, Moment, NamesSpec, RatesSpec, Site, Sweep, heads_of
from oelm.spec.run import stream


def initialise(queries_and_keys: list[Projection], init: InitSpec, seed: int) -> None:
    """Draw each projection from a stream of its own; keys first, because queries may have to correlate with them.

    The distribution of K = bQ + sqrt(1 - b^2) Z does not change when queries and keys swap places. Drawing keys first
    also works for grouped heads: each query head of a group has the same correlation with the group's one key head.
    """
    keys: dict[tuple[Site, int], Tensor] = {}
    query_heads = {(p.site, p.layer): p.num_heads for p in queries_and_keys if p.role == "q"}
    for projection in sorted(queries_and_keys, key=lambda each: each.role):
        place, is_key = (projection.site, projection.layer), projection.role == "k"
        frame_HKI = None
        if not is_key and (init.correlation or init.same_heads):
            frame_HKI = keys[place].repeat_interleave(projection.num_heads // keys[place].shape[0], dim=0)
        weight_HKI = draw(
            init,
            projection.shape,
            stream(seed, "method", projection.name, projection.role),
            current_HKI=projection.read(),
            keys_HKI=frame_HKI if init.correlation else None,
            first=_first_coordinate(projection, query_heads.get(place, projection.num_heads)),
        )
        if is_key:
            keys[place] = weight_HKI
        elif frame_HKI is not None and init.same_heads:
            same = heads_of(init.same_heads, keys[place].shape[0]) * (projection.num_heads // keys[place].shape[0])
            weight_HKI[:same] = frame_HKI[:same]
        projection.write(weight_HKI)


def _first_coordinate(projection: Projection, query_heads: int) -> int:
    """Return the first coordinate of slices: 0 for queries, and for keys so that no head compares one with itself.

    If there is room, keys begin after all queries, so that each coordinate is read by one head only. Otherwise they
    begin one head later, if every query head has its own key head; else at the last place, which no query head of the
    first group reads if there are at least two groups.
    """
    num_heads, head_size, input_size = projection.shape
    if projection.role == "q":
        return 0
    if (query_heads + num_heads) * head_size <= input_size:
        return query_heads * head_size
    return head_size if num_heads == query_heads else input_size - head_size


Named = Iterable[tuple[str, nn.Parameter]]
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


APPLIED = "_oelm"
"""The attribute of a model that holds what has been applied to it."""


@dataclass
class Applied:
    """The method applied to a model, the seed of its draws, and the hash of each frozen tensor."""

    method: MethodSpec
    seed: int
    hashes: dict[str, str] = field(default_factory=dict)
    casts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Hashes of each frozen tensor's values, rounded to narrower types."""
    names: NamesSpec | None = None
    """Where the roles are, if the user named them."""


def sha256(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes."""
    data = tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().data).hexdigest()


def freeze_tensors(tensors: Named) -> dict[str, str]:
    """Freeze tensors and return their hashes. They lose their gradients and get no new ones."""
    hashes = {}
    for name, parameter in tensors:
        parameter.requires_grad_(False)
        parameter.grad = None
        hashes[name] = sha256(parameter)
    return hashes


def hash_rounded(tensors: Named) -> dict[str, tuple[str, ...]]:
    """Return the hashes of each tensor's values in the floating-point types that would round them.

    A frozen model that is cast (`.to(bfloat16)`) has other bytes but the same frozen values. These hashes distinguish
    such a cast from a change.
    """
    return {
        name: tuple(sha256(tensor.detach().to(dtype)) for dtype in _FLOATS if _rounds(tensor.dtype, dtype))
        for name, tensor in tensors
    }


def is_as_frozen(tensor: Tensor, frozen: str, casts: tuple[str, ...] = ()) -> bool:
    """Return whether a tensor holds the frozen values, possibly in another floating-point type.

    It does if, in some type that represents its values exactly, its bytes are the frozen ones or the rounded ones.
    """
    values = tensor.detach()
    if sha256(values) == frozen:
        return True
    others = (values.to(dtype) for dtype in _FLOATS)
    return any(torch.equal(other.to(values.dtype), values) and sha256(other) in (frozen, *casts) for other in others)


def unfreeze_tensors(tensors: Named) -> list[str]:
    """Let tensors train again and return their names."""
    names = []
    for name, parameter in tensors:
        parameter.requires_grad_(True)
        names.append(name)
    return names


def named_tensors(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return a model's parameters by name, with the names they had before PEFT wrapped modules."""
    return {name.replace(".base_layer", ""): parameter for name, parameter in model.named_parameters()}


def refuse_moved(
    tensors: dict[str, nn.Parameter], hashes: dict[str, str], casts: dict[str, tuple[str, ...]] | None = None
) -> None:
    """Raise if a frozen tensor is missing, trains, or has changed, and name each of them."""
    wrong = []
    for name, expected in hashes.items():
        tensor = tensors.get(name)
        if tensor is None:
            wrong.append(f"{name} (no longer in the model)")
        elif tensor.requires_grad:
            wrong.append(f"{name} (requires_grad is True again)")
        elif not is_as_frozen(tensor, expected, (casts or {}).get(name, ())):
            wrong.append(f"{name} (its bytes changed)")
    if wrong:
        raise FrozenWeightsMoved(
            f"{len(wrong)} of {len(hashes)} frozen tensors are not as they were frozen: {', '.join(wrong)}. Other code "
            "has written to them, loaded weights over them or made them train. Apply the method after loading weights, "
            "and use oelm.unfreeze(model) to train them again."
        )


def _rounds(source: torch.dtype, target: torch.dtype) -> bool:
    """Return whether values of type `source` may lose digits or range in `target`."""
    return torch.promote_types(source, target) != target


# The schedule: which layers are frozen at a step.

ENDLESS = 1 << 62
"""Number of steps of a training whose length is not known yet."""


@dataclass(frozen=True)
class Event:
    """One layer freezes or unfreezes at the beginning of a step."""

    step: int
    layer: int
    freezes: bool


def resolve_layers(layers: Layers | None, num_layers: int) -> list[int]:
    """Return layer numbers without negative ones, which count from the last layer; None means all."""
    if layers is None:
        return list(range(num_layers))
    for layer in layers:
        if not -num_layers <= layer < num_layers:
            raise BadShape(
                f"The method names layer {layer}, but the model has {num_layers} layers, numbered 0 to "
                f"{num_layers - 1} or -{num_layers} to -1. Name one of these."
            )
    return sorted({layer % num_layers for layer in layers})


class Timeline:
    """The schedule of one method on a model of `num_layers`, in a training of `steps`."""

    def __init__(self, method: MethodSpec, num_layers: int, steps: int) -> None:
        self.every = method.schedule.every
        self.steps = steps
        self.frozen_by_method = frozenset(
            resolve_layers(method.freeze.layers, num_layers) if method.freeze.roles else ()
        )
        self.events = sorted(
            (event for change in method.schedule.changes for event in self._expand(change, num_layers)),
            key=lambda event: event.step,
        )
        others = sorted({event.layer for event in self.events} - self.frozen_by_method)
        if others:
            raise BadShape(
                f"The schedule changes layers {others}, which the method does not freeze (it freezes "
                f"{sorted(self.frozen_by_method)}). Add them to freeze.layers or leave them out."
            )

    def frozen_layers(self, step: int) -> frozenset[int]:
        """Return the layers whose roles are frozen during a step (numbered from 0)."""
        if self.every and (step + 1) % self.every == 0:
            return frozenset()
        return frozenset(layer for layer in self.frozen_by_method if self._is_frozen(layer, step))

    def _is_frozen(self, layer: int, step: int) -> bool:
        mine = [event for event in self.events if event.layer == layer]
        # A layer whose first change freezes it has trained before; every other layer starts frozen.
        state = not (mine and mine[0].freezes)
        for event in mine:
            if event.step <= step:
                state = event.freezes
        return state

    def _expand(self, change: Change | Sweep, num_layers: int) -> list[Event]:
        freezes = change.action == "freeze"
        if isinstance(change, Change):
            layers = (
                sorted(self.frozen_by_method) if change.layers is None else resolve_layers(change.layers, num_layers)
            )
            return [Event(self._step(change.at), layer, freezes) for layer in layers]
        layers = sorted(self.frozen_by_method, reverse=change.order == "last-to-first")
        start, stop = self._step(change.start), self._step(change.stop)
        gaps = max(len(layers) - 1, 1)
        return [
            Event(start + round(place * (stop - start) / gaps), layer, freezes) for place, layer in enumerate(layers)
        ]

    def _step(self, moment: Moment) -> int:
        return round(moment * self.steps) if isinstance(moment, float) else moment


# Learning-rate multipliers by role, by layer, and geometric by depth.

_NUMBER = re.compile(r"(?<![^.])\d+(?=\.)")

_EMBEDDING = re.compile(r"embed|(^|\.)(wte|wpe|shared)\.")
"""Names of the embeddings in our GPT, the BERT families, GPT-2 and T5."""


def layer_prefixes(projections: Iterable[Projection]) -> dict[str, int]:
    """Return the dotted name of each layer ('blocks.3') with its number, found from the projections in it."""
    layers: dict[str, set[int]] = {}
    for projection in projections:
        for number in _NUMBER.finditer(projection.name):
            layers.setdefault(projection.name[: number.end()], set()).add(projection.layer)
    # The number of the layer need not be the first, as in '1.layers.0': the shortest name of exactly one layer counts.
    alone = {prefix: only.pop() for prefix, only in layers.items() if len(only) == 1}
    return {prefix: layer for prefix, layer in alone.items() if not any(prefix.startswith(f"{p}.") for p in alone)}


def multipliers(names: Iterable[str], projections: list[Projection], rates: RatesSpec) -> dict[str, float]:
    """Return the learning-rate multiplier of each parameter name.

    With depth decay r and L layers, layer l has r^(L-1-l), the embeddings before the layers have r^L, and parameters
    after the layers have 1. Tied tensors have one name, that of the embedding, and so the smallest rate.
    """
    prefixes = layer_prefixes(projections)
    depth = 1 + max(prefixes.values(), default=-1)
    by_layer = _by_layer(rates, depth)
    roles = {projection.name: projection.role for projection in projections}
    result = {}
    for name in names:
        layer = next((number for prefix, number in prefixes.items() if name.startswith(prefix + ".")), None)
        factor = 1.0
        if layer is not None:
            factor = by_layer.get(layer, 1.0) * rates.layer_decay ** (depth - 1 - layer)
        elif _EMBEDDING.search(name):
            factor = rates.layer_decay**depth
        role = roles.get(name.rpartition(".")[0])
        result[name] = factor * (rates.roles.get(role, 1.0) if role else 1.0)
    return result


def _by_layer(rates: RatesSpec, depth: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for layer, factor in rates.layers.items():
        number = resolve_layers((layer,), depth)[0]
        if number in found:
            raise BadShape(
                f"rates.layers names layer {number} twice: {number - depth} counts from the last layer. Name it once."
            )
        found[number] = factor
    return found


# Checks, before anything is changed.


def find_wrapped(model: nn.Module) -> nn.Module | None:
    """Return the model inside a wrapper (DDP, torch.compile, PEFT, an exported GPT), or None if it is not wrapped."""
    children = model._modules
    if (name := getattr(type(model), "_oelm_wraps", None)) is not None:
        return children.get(name)
    if type(model).__module__.startswith("peft."):
        return children.get("base_model") or children.get("model")
    if "Parallel" in type(model).__name__:
        return children.get("module")
    return children.get("_orig_mod")


def refuse_wrapped(model: nn.Module) -> None:
    """Raise for a model that another tool has wrapped: a wrapper must see which weights train."""
    name = type(model).__name__
    is_peft = type(model).__module__.startswith("peft.")
    if find_wrapped(model) is not None and not is_peft:
        raise MethodError(
            f"The model is wrapped in a {name}. Apply the method to the model inside before wrapping it, "
            "so that the wrapper sees which weights train."
        )
    if is_peft or any("base_layer" in module._modules for module in model.modules()):
        raise MethodError(
            f"This {name} has PEFT adapters. Apply the method to the plain model first; adapters can be added "
            "afterwards, also on frozen projections."
        )


def refuse_unfit(
    architecture: Architecture, model: nn.Module, projections: list[Projection], method: MethodSpec
) -> Timeline:
    """Raise if the method cannot be applied to the model; return its schedule, which is checked as well."""
    missing = set(method.repair.active()) - architecture.repairs
    if missing:
        raise NotCarriedOut(
            f"The repairs {sorted(missing)} are not implemented for {architecture.name} models "
            f"(implemented: {', '.join(sorted(architecture.repairs)) or 'none'}). Leave them off."
        )
    if method.init.shape == "absent" and not architecture.can_remove_qk:
        raise NotCarriedOut(
            f"Without Q and K, attention in {architecture.name} models is not uniform, because their logits have other "
            "terms. Use another family for this control."
        )
    architecture.refuse(model, method)
    present = {projection.role for projection in projections}
    if lacking := set(method.freeze.roles) - present:
        raise BadShape(
            f"freeze.roles names {sorted(lacking)}, but this {architecture.name} model has only the roles "
            f"{sorted(present)}. Name some of these."
        )
    for projection in projections:
        projection.refuse_unusable()
    _refuse_tied(projections)
    _refuse_draw(queries_and_keys(projections), method.init)
    depth = depth_of(projections)
    resolve_layers(tuple(method.rates.layers), depth)
    return Timeline(method, depth, steps=ENDLESS)


def refuse_features(method: MethodSpec, head_size: int) -> int:
    """Return the number of content coordinates that position features leave in a head.

    Raises:
        BadShape: the features do not fit into the head.

    """
    number = method.repair.num_frequencies(head_size)
    room = head_size if method.init.shape == "absent" else head_size - 1
    if method.repair.position_features and not 0 < 2 * number <= room:
        raise BadShape(
            f"position_features={method.repair.position_features} needs {2 * max(number, 1)} coordinates of each head, "
            f"but heads have {head_size} and at least one must be left for content. Choose a number from 1 to "
            f"{room // 2}, or the method 'position-only', which has no content."
        )
    return head_size - 2 * number


def depth_of(projections: list[Projection]) -> int:
    """Return the number of layers; if there are several stacks, that of the deepest."""
    return 1 + max((projection.layer for projection in projections), default=-1)


def queries_and_keys(projections: list[Projection]) -> list[Projection]:
    """Return the projections of the two roles that make the logits."""
    return [projection for projection in projections if projection.role in ("q", "k")]


def _refuse_tied(projections: list[Projection]) -> None:
    owners: dict[tuple[int, str], str] = {}
    for projection in projections:
        key = (id(projection.weight), projection.role if projection.fused is not None else "")
        if key in owners:
            raise UnusableWeight(
                f"{owners[key]} and {projection.name} are tied: they share one tensor, so one cannot be drawn or "
                "frozen without the other. Untie them (give one a copy) before applying the method."
            )
        owners[key] = projection.name


def _refuse_draw(projections: list[Projection], init: InitSpec) -> None:
    if init.shape in ("host", "absent"):
        return
    draw(init, (1, 1, 2), stream(0, "check"), current_HKI=torch.ones(1, 1, 2))  # raises if it is not implemented
    if init.correlation:
        _refuse_uncorrelated(projections, init)
    if init.shape == "normal" and init.source == "fresh":
        return
    for projection in projections:
        num_heads, head_size, input_size = projection.shape
        rows = num_heads * head_size if init.scope == "global" else head_size
        if rows > input_size:
            raise BadShape(
                f"{projection.name} needs {rows} orthonormal rows, but its input of size {input_size} holds at most "
                f"{input_size}. Use smaller heads, init.scope='head' instead of 'global', or init.shape='normal'."
            )


def _refuse_uncorrelated(projections: list[Projection], init: InitSpec) -> None:
    """Raise if queries cannot correlate with keys: keys of another shape, or heads too wide to differ from them."""
    keys = {(p.site, p.layer): p for p in projections if p.role == "k"}
    for query in projections:
        if query.role == "k":
            continue
        num_heads, head_size, input_size = query.shape
        key = keys.get((query.site, query.layer))
        if key is None or key.shape[1:] != (head_size, input_size) or num_heads % key.num_heads:
            raise BadShape(
                f"init.correlation={init.correlation} needs keys of matching shape, but {query.name} of shape "
                f"{query.shape} has {'no keys' if key is None else f'keys of shape {key.shape}'}. Use 0 on this model."
            )
        if init.shape == "orthogonal" and abs(init.correlation) < 1 and 2 * head_size > input_size:
            raise BadShape(
                f"init.correlation={init.correlation} needs {head_size} orthonormal rows in addition to those of the "
                f"keys, but {query.name} has an input of size {input_size}. Use heads of size {input_size // 2} or "
                "less, or init.shape='normal'."
            )
