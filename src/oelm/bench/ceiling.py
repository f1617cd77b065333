"""The most that a method can save: the reference's own step without the work that the method removes.

What an arm does not train, though the reference does, is a constant: no gradient product, no gradient tensor, no share
of clipping, no update. Where the arm needs no product either (slices), the output is a view of the input. Where it has
neither Q nor K (uniform), attention hands its values on. Everything else is the reference, its weights included, so
that an arm which is faster than this is faster for a reason that is not the method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from torch import Tensor, nn

from oelm.models.gpt import GPT, Attention, Block
from oelm.models.sliced import SlicedLinear


@dataclass(frozen=True)
class Removed:
    """What an arm leaves out of the reference's step, by dotted names."""

    constants: frozenset[str]
    """Parameters that no longer train."""
    products: frozenset[str]
    """Linear maps that need no product."""
    attentions: frozenset[str]
    """Attentions without Q and K."""

    def __bool__(self) -> bool:
        return bool(self.constants or self.products or self.attentions)


def removed_work(reference: GPT, arm: GPT) -> Removed:
    """Compare two models as their methods made them."""
    trained = {name for name, parameter in arm.named_parameters() if parameter.requires_grad}
    modules = dict(arm.named_modules())
    return Removed(
        frozenset(name for name, p in reference.named_parameters() if p.requires_grad and name not in trained),
        frozenset(name for name in _linears(reference) if _reads(modules.get(name))),
        frozenset(
            name
            for name, module in reference.named_modules()
            if isinstance(module, Attention) and module.q is not None and cast("Attention", modules[name]).q is None
        ),
    )


def take_away(reference: GPT, removed: Removed) -> None:
    """Replace the removed work by nothing, in place."""
    for name, parameter in reference.named_parameters():
        if name in removed.constants:
            parameter.requires_grad_(False)
    for name in removed.products:
        parent, _, child = name.rpartition(".")
        dense = cast("nn.Linear", reference.get_submodule(name))
        setattr(reference.get_submodule(parent), child, _View(dense.out_features))
    for block in cast("list[Block]", list(reference.blocks)):
        attention = block.attention
        if any(attention is reference.get_submodule(name) for name in removed.attentions):
            attention.q = attention.k = None
            groups = reference.spec.num_heads // reference.spec.key_heads
            cast("_Replaceable", attention)._average = partial(_hand_on, groups)  # noqa: SLF001  (our own attention)


class _Replaceable:
    _average: Callable[[Tensor, int], Tensor]


class _View(nn.Module):
    """A linear map's output for nothing: the first coordinates of its input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return a view."""
        return x if self.size == x.shape[-1] else x[..., : self.size]


def _hand_on(groups: int, values_BGTK: Tensor, new: int) -> Tensor:  # noqa: ARG001  (as attention calls it)
    return values_BGTK if groups == 1 else values_BGTK.repeat_interleave(groups, dim=1)


def _linears(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and not _reads(module)]


def _reads(module: nn.Module | None) -> bool:
    return isinstance(module, SlicedLinear) and not (module.has_trained or module.weight.requires_grad)
