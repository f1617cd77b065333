"""Everything that keeps a method from a model, found before anything is written."""

# ruff: noqa: SLF001  (wrappers forward attributes; only _modules tells what is their own)
from __future__ import annotations

import torch
from torch import nn

from oelm.errors import BadShape, MethodError, NotCarriedOut, UnusableWeight
from oelm.method.initialise import refuse_uncorrelatable
from oelm.method.orthogonal import draw, stream
from oelm.method.projection import Architecture, Projection
from oelm.method.schedule import Timeline, resolve_layers
from oelm.spec.method import MethodSpec

ENDLESS = 1 << 62
"""Steps of a training whose length is not known yet."""


def wrapped_by(model: nn.Module) -> nn.Module | None:
    """Return what a wrapper of a known kind (DDP, torch.compile, PEFT) has inside, or None where it is none."""
    children = model._modules
    if type(model).__module__.startswith("peft."):
        return children.get("base_model") or children.get("model")
    if "Parallel" in type(model).__name__:
        return children.get("module")
    return children.get("_orig_mod")


def refuse_wrapped(model: nn.Module) -> None:
    """Raise for a model that another tool has wrapped: what trains is settled before that."""
    name = type(model).__name__
    is_peft = type(model).__module__.startswith("peft.")
    if wrapped_by(model) is not None and not is_peft:
        raise MethodError(
            f"the model is wrapped in a {name}. Apply the method to the model inside before wrapping it, "
            "so that the wrapper sees what trains."
        )
    if is_peft or any("base_layer" in module._modules for module in model.modules()):
        raise MethodError(
            f"this {name} carries PEFT adapters. Apply the method to the plain model first; adapters can "
            "be put on top of it afterwards, also on frozen projections."
        )


def refuse_unfit(
    architecture: Architecture, model: nn.Module, projections: list[Projection], method: MethodSpec
) -> Timeline:
    """Refuse whatever cannot be carried out; return the schedule, which is checked as well."""
    missing = set(method.repair.active()) - architecture.repairs
    if missing:
        raise NotCarriedOut(
            f"the repairs {sorted(missing)} are not carried out for {architecture.name} models "
            f"(those that are: {sorted(architecture.repairs) or 'none'}). Leave them off."
        )
    if method.init.shape == "absent" and not architecture.can_remove_qk:
        raise NotCarriedOut(
            f"without Q and K, attention in {architecture.name} models is not uniform: their logits "
            "have other terms. Take another family for this control."
        )
    architecture.refuse(model, method)
    present = {projection.role for projection in projections}
    if lacking := set(method.freeze.roles) - present:
        raise BadShape(
            f"freezing {sorted(lacking)} was asked for, but this {architecture.name} model has only the "
            f"roles {sorted(present)}. Name some of these in freeze.roles."
        )
    for projection in projections:
        projection.refuse_unusable()
    _refuse_tied(projections)
    _refuse_draw(projections, method)
    depth = depth_of(projections)
    resolve_layers(tuple(method.rates.layers), depth)
    return Timeline(method, depth, steps=ENDLESS)


def refuse_features(method: MethodSpec, head_size: int) -> int:
    """Return how many content coordinates position features leave in a head; refuse features that do not fit.

    Raises:
        BadShape: the features need as many coordinates as the head has, or more.

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
    """Return the number of layers, of the deepest stack where there are several."""
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
                f"{owners[key]} and {projection.name} are tied: one tensor, which cannot be drawn or "
                "frozen as one and left as the other. Untie them (give one a copy) before applying."
            )
        owners[key] = projection.name


def _refuse_draw(projections: list[Projection], method: MethodSpec) -> None:
    init = method.init
    if init.shape in ("host", "absent"):
        return
    # A tiny draw tells whether this kind of draw is carried out at all.
    draw(init, (1, 1, 2), stream(0, "check"), current_HKI=torch.ones(1, 1, 2))
    if init.correlation:
        refuse_uncorrelatable(queries_and_keys(projections), init)
    if init.shape == "normal" and init.source == "fresh":
        return
    for projection in queries_and_keys(projections):
        num_heads, head_size, input_size = projection.shape
        rows = num_heads * head_size if init.scope == "global" else head_size
        if rows > input_size:
            raise BadShape(
                f"{projection.name} has {rows} rows to make orthonormal and an input of size {input_size}, "
                f"which holds at most {input_size}. Use smaller heads, init.scope='head' where it is "
                "'global', or init.shape='normal'."
            )
