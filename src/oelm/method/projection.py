"""One projection of attention, however it is stored, and the architectures that find the projections of a model.

A `Projection` reads and writes its weight as H blocks of K x I, so that the mathematics does not depend on how a family
stores it: in a module of its own, transposed, or as rows of a tensor shared with other roles. An `Architecture` lists
the projections of the models it knows, and implements what concerns more than weights: repairs of the logits, and
attention without Q and K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from oelm.errors import NotCarriedOut, UnusableWeight
from oelm.method.split import Fused, RolePart, SplitModule, is_split, split
from oelm.spec.method import MethodSpec, RepairSpec, Role, Site


@dataclass(frozen=True, eq=False)
class Projection:
    """The weights of one role at one attention site of one layer. Roles other than q, k, v count as one head."""

    role: Role
    layer: int
    name: str
    """Dotted name of the module in its model; in a fused module followed by the role, so that it is unique."""
    module: nn.Module
    num_heads: int = 1
    site: Site = "self"
    transposed: bool = False
    """Whether the weight is stored as (input, output)."""
    fused: Fused | None = None
    """How the module's tensors are shared with other roles; None: they belong to this role alone."""

    @property
    def module_name(self) -> str:
        """The dotted name of the module."""
        return self.name if self.fused is None else self.name.rpartition(".")[0]

    @property
    def separate(self) -> bool:
        """Whether this role has parameters of its own, which can be frozen."""
        return self.fused is None or is_split(self.module)

    @property
    def part(self) -> RolePart | None:
        """The module that holds this role's own parameters in a split module, or None where it is not split."""
        return self.module.parts()[self.role] if isinstance(self.module, SplitModule) else None

    def set_apart(self) -> RolePart:
        """Split the module, also one of a single role, and return the part. Outside, names and shapes do not change."""
        rows = self.num_heads * self.shape[1]
        fused = self.fused or Fused(((self.role, rows),), transposed=self.transposed)
        split(self.module, fused, biases=True)
        return cast("SplitModule", self.module).parts()[self.role]

    @property
    def weight(self) -> nn.Parameter:
        """The parameter that holds the weight: this role's own, or the whole fused one."""
        if self.fused is None:
            weight = self.module.weight
        else:
            weight = getattr(self.module, self.fused.weight) if self.part is None else self.part.weight
        if not isinstance(weight, nn.Parameter):
            raise UnusableWeight(
                f"{self.name}.weight is a {type(weight).__name__} and not a parameter, so it cannot be drawn. Apply "
                "the method before other tools wrap or quantise the model."
            )
        return weight

    @property
    def bias(self) -> nn.Parameter | None:
        """The parameter that holds the bias: this role's own or the whole fused one, or None."""
        holder, name = self.module, "bias"
        if self.fused is not None:
            name = self.fused.bias
            # The bias of a split module may still be whole.
            if isinstance(self.module, SplitModule) and self.module.has_split(name):
                holder, name = self.module.parts()[self.role], "bias"
        return cast("nn.Parameter | None", getattr(holder, name, None))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, K, I)."""
        rows, input_size = self._own(self.weight).shape
        return self.num_heads, rows // self.num_heads, input_size

    @property
    def whole_head_size(self) -> int:
        """The size of a head as attention sees it: K, or more where position features fill the rest."""
        content = None if self.part is None else self.part.content
        return self.shape[1] if content is None else content.head_size

    def read(self) -> Tensor:
        """Return the weight as (H, K, I), detached."""
        return self._own(self.weight).reshape(self.shape)

    @torch.no_grad()
    def write(self, weight_HKI: Tensor) -> None:
        """Replace the weight in place, in its own dtype and on its own device."""
        own = self._own(self.weight)
        if self.fused is None or own.untyped_storage().data_ptr() == self.weight.untyped_storage().data_ptr():
            own.copy_(weight_HKI.reshape(own.shape))
        else:  # interleaved rows: taking them apart made a copy
            parts = self.fused.take_apart(self.weight)
            rows = weight_HKI.flatten(0, 1).to(own)
            parts[self.role] = rows.T if self.transposed else rows
            self.weight.copy_(self.fused.put_together([parts[role] for role, _ in self.fused.rows]))

    @torch.no_grad()
    def zero(self) -> None:
        """Set the weight and bias of a role that has its own parameters to zero."""
        for _, parameter in self.parameters(biases=True):
            parameter.zero_()

    def parameters(self, *, biases: bool) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the named tensors that belong to this projection alone."""
        if not self.separate:
            raise UnusableWeight(f"{self.name} shares its tensor with other roles. Call split() before freezing it.")
        yield f"{self.name}.weight", self.weight
        if biases and self.bias is not None:
            yield f"{self.name}.bias", self.bias

    def split(self, *, biases: bool) -> None:
        """Give this role its own parameters, unless it has them already."""
        if self.fused is not None:
            split(self.module, self.fused, biases=biases)

    def refuse_unusable(self) -> None:
        """Raise if the weight has no values that can be read and replaced."""
        weight = self.weight
        if weight.is_meta:
            raise UnusableWeight(
                f"{self.name}.weight is on the meta device: it has a shape but no values. "
                "Allocate the model first (model.to_empty(device=...), then load or initialise)."
            )
        if not weight.is_floating_point() or weight.dtype.itemsize < 2 or type(weight.data) is not Tensor:
            raise UnusableWeight(
                f"{self.name}.weight is quantised or sharded ({weight.dtype}, {type(weight.data).__name__}), so new "
                "values cannot be written. Apply the method to the plain float model, then quantise or wrap it."
            )

    def _own(self, weight: nn.Parameter) -> Tensor:
        """Return this role's rows as (output, input), detached; a view, unless rows are interleaved."""
        values = weight.detach()
        if self.fused is not None and not self.separate:
            values = self.fused.take_apart(values)[self.role]
        return values.T if self.transposed else values


class Architecture:
    """What a method needs to know about a family of models. A family overrides what it supports."""

    name: str
    repairs: frozenset[str] = frozenset()
    """The repairs (fields of RepairSpec) that are implemented for this family."""
    can_remove_qk = False
    """Whether attention without Q and K is uniform; it is not if the logits have other terms."""

    def matches(self, model: nn.Module) -> bool:  # noqa: ARG002  (families override it)
        """Return whether the model belongs to this family."""
        raise NotCarriedOut(f"{type(self).__name__} does not implement matches(), which says which models it knows.")

    def projections(self, model: nn.Module) -> list[Projection]:  # noqa: ARG002  (families override it)
        """List every projection of every layer, in order."""
        raise NotCarriedOut(f"{type(self).__name__} does not implement projections().")

    def refuse(self, model: nn.Module, method: MethodSpec) -> None:
        """Raise if this family cannot apply the method to this model, before anything is changed."""

    def narrow(self, model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection]) -> None:
        """Remove the coordinates of Q and K that position features will fill, before anything is drawn."""

    def set_apart(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:
        """Prepare Q and K for what acts on their weights: repairs that are folded in, slices without products."""

    def install(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:
        """Add the active repairs, all of which are in `self.repairs`, at these projections."""

    def remove_qk(self, model: nn.Module, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002  (families override it)
        """Make attention uniform over all visible tokens. By default Q and K stay as modules, with zero queries."""
        for projection in queries_and_keys:
            if projection.role == "q":
                projection.zero()

    def specialise(self, model: nn.Module, projection: Projection) -> None:
        """Use the known structure of a frozen projection, for example that it only reads coordinates."""
