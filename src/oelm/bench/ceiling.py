"""The most that a method can save: the reference's own step without the work that the method removes.

A projection that an arm does not train, although the reference does, becomes a constant: no gradient product, no
gradient tensor, no share of clipping, no update. Where the arm needs no product either (slices, or no Q and K at all),
the output is a view of the input. Where our GPT has no logits (uniform), attention hands its values on. Everything else
is the reference, its weights included, so that an arm which is faster than this is faster for a reason that is not the
method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from torch import Tensor, nn

from oelm.method.projection import Projection
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT, Block
from oelm.models.sliced import is_sliced


@dataclass(frozen=True)
class Removed:
    """What an arm leaves out of the reference's step, by names of projections and numbers of layers."""

    constants: frozenset[str]
    """Projections that no longer train."""
    products: frozenset[str]
    """Projections that need no product."""
    attentions: frozenset[int]
    """Layers of our GPT whose attention has no logits."""

    def __bool__(self) -> bool:
        return bool(self.constants or self.products or self.attentions)


def removed_work(reference: nn.Module, arm: nn.Module) -> Removed:
    """Compare two models as their methods made them."""
    before, after = (_projections(model) for model in (reference, arm))
    trained = {name for name, each in before.items() if each.weight.requires_grad}
    return Removed(
        frozenset(name for name in trained if name not in after or not after[name].weight.requires_grad),
        frozenset(
            name for name, each in before.items() if not _is_free(each) and (name not in after or _is_free(after[name]))
        ),
        frozenset(_without_logits(arm) - _without_logits(reference)),
    )


def take_away(reference: nn.Module, removed: Removed) -> None:
    """Replace the removed work by nothing, in place."""
    for name, projection in _projections(reference).items():
        if name in removed.constants:
            _make_constant(projection)
        if name in removed.products:
            _make_free(reference, projection)
    if isinstance(reference, GPT):
        groups = reference.spec.num_heads // reference.spec.key_heads
        for layer in removed.attentions:
            attention = cast("Block", reference.blocks[layer]).attention
            attention.q = attention.k = None
            cast("_Replaceable", attention)._average = partial(_hand_on, groups)  # noqa: SLF001  (our own attention)


class _Replaceable:
    _average: Callable[[Tensor, int], Tensor]


class _View(nn.Module):
    """A linear map's output for nothing: the first coordinates of its input."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Return a view."""
        return x[..., : self.weight.shape[0]]


class _FreeReader:
    """The same for a part of a split tensor."""

    def find(self, weight_CI: Tensor) -> None:
        """Accept any weight."""

    def __call__(self, weight_CI: Tensor, x: Tensor) -> Tensor:
        return x[..., : weight_CI.shape[0]]


def _hand_on(groups: int, values_BGTK: Tensor, new: int) -> Tensor:  # noqa: ARG001  (as attention calls it)
    return values_BGTK if groups == 1 else values_BGTK.repeat_interleave(groups, dim=1)


def _projections(model: nn.Module) -> dict[str, Projection]:
    return {projection.name: projection for projection in architecture_of(model).projections(model)}


def _is_free(projection: Projection) -> bool:
    part = projection.part
    return is_sliced(projection.module) or (part is not None and (part.reader is not None or part.is_absent))


def _without_logits(model: nn.Module) -> set[int]:
    if not isinstance(model, GPT):
        return set()
    blocks = enumerate(cast("list[Block]", list(model.blocks)))
    return {layer for layer, block in blocks if not block.attention.has_logits}


def _make_constant(projection: Projection) -> None:
    projection.split(biases=True)
    for _, parameter in projection.parameters(biases=True):
        parameter.requires_grad_(False)


def _make_free(model: nn.Module, projection: Projection) -> None:
    if isinstance(model, GPT):
        parent, _, child = projection.name.rpartition(".")
        setattr(model.get_submodule(parent), child, _View(projection.weight))
    else:
        projection.set_apart().reader = _FreeReader()
