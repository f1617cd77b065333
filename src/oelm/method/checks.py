"""Refuse a method that cannot be applied to a model, before anything is changed."""

# ruff: noqa: SLF001  (wrappers forward attributes; only _modules tells which are their own)

from __future__ import annotations

import torch
from torch import nn

from oelm.errors import BadShape, MethodError, NotCarriedOut, UnusableWeight
from oelm.method.orthogonal import draw
from oelm.method.projection import Architecture, Projection
from oelm.method.schedule import Timeline, resolve_layers
from oelm.spec.method import InitSpec, MethodSpec
from oelm.spec.seeds import stream

ENDLESS = 1 << 62
"""Number of steps of a training whose length is not known yet."""


def wrapped_by(model: nn.Module) -> nn.Module | None:
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
    if wrapped_by(model) is not None and not is_peft:
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
