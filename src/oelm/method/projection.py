"""One projection of attention, whatever tensor hides it, and the architectures that know where they are.

A `Projection` reads and writes its weight as H blocks of K x I, so that the mathematics never sees how a family
stores it: in a module of its own, transposed, or as rows of a tensor that other roles share. An `Architecture`
lists the projections of the models it knows and carries out what touches more than weights: repairs of the
logits, and leaving Q and K away altogether.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from oelm.errors import NotCarriedOut, UnusableWeight
from oelm.method.split import Fused, Part, Split, is_split, split
from oelm.spec.method import MethodSpec, Role, Site
from oelm.spec.repair import RepairSpec


@dataclass(frozen=True, eq=False)
class Projection:
    """The weights of one role at one attention site of one layer. Roles other than q, k, v have one 'head'."""

    role: Role
    layer: int
    name: str
    """The dotted name of the module in its model; in a fused module followed by the role, so that it is unique."""
    module: nn.Module
    num_heads: int = 1
    site: Site = "self"
    transposed: bool = False
    """Whether the weight is stored as (input, output)."""
    fused: Fused | None = None
    """How the module's tensors are shared with other roles; None: they are this role's alone."""

    @property
    def module_name(self) -> str:
        """The dotted name of the module."""
        return self.name if self.fused is None else self.name.rpartition(".")[0]

    @property
    def separate(self) -> bool:
        """Whether this role has parameters of its own, which can be frozen."""
        return self.fused is None or is_split(self.module)

    @property
    def part(self) -> Part | None:
        """The module that holds this role's own parameters in a split module, or None where it is not split."""
        return self.module.parts()[self.role] if isinstance(self.module, Split) else None

    def set_apart(self) -> Part:
        """Split the module, also one of this role alone, and return the part. Names and shapes outside stay plain."""
        rows = self.num_heads * self.shape[1]
        fused = self.fused or Fused(((self.role, rows),), transposed=self.transposed)
        split(self.module, fused, biases=True)
        return cast("Split", self.module).parts()[self.role]

    @property
    def weight(self) -> nn.Parameter:
        """The parameter that holds the weight: this role's own, or the whole fused one."""
        holder, name = self.module, "weight"
        if self.fused is not None and self.separate:
            holder = cast("Split", self.module).parts()[self.role]
        elif self.fused is not None:
            name = self.fused.weight
        weight = getattr(holder, name)
        if not isinstance(weight, nn.Parameter):
            raise UnusableWeight(
                f"{self.name}.weight is a {type(weight).__name__}, not a parameter: there is nothing "
                "to draw into. Apply the method before other tools wrap or quantise the model."
            )
        return weight

    @property
    def bias(self) -> nn.Parameter | None:
        """The parameter that holds the bias, likewise, or None."""
        holder, name = self.module, "bias"
        if self.fused is not None:
            name = self.fused.bias
            # The bias of a split module may have stayed whole.
            if isinstance(self.module, Split) and self.module.has_split(name):
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
        """Replace the weight, in place, in its own dtype on its own device."""
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
        """Set weight and bias to nought, of a role that has its own."""
        for _, parameter in self.parameters(biases=True):
            parameter.zero_()

    def parameters(self, *, biases: bool) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the named tensors that are this projection's alone."""
        if not self.separate:
            raise UnusableWeight(f"{self.name} shares its tensor with other roles: call split() before freezing it.")
        yield f"{self.name}.weight", self.weight
        if biases and self.bias is not None:
            yield f"{self.name}.bias", self.bias

    def split(self, *, biases: bool) -> None:
        """Give this role parameters of its own; nothing to do where it has."""
        if self.fused is not None:
            split(self.module, self.fused, biases=biases)

    def refuse_unusable(self) -> None:
        """Raise where the weight has no values to read or draw into."""
        weight = self.weight
        if weight.is_meta:
            raise UnusableWeight(
                f"{self.name}.weight is on the meta device: it has a shape and no values. "
                "Give the model memory first (model.to_empty(device=...), then load or initialise)."
            )
        if not weight.is_floating_point() or weight.dtype.itemsize < 2 or type(weight.data) is not Tensor:
            raise UnusableWeight(
                f"{self.name}.weight is quantised or sharded ({weight.dtype}, "
                f"{type(weight.data).__name__}): a draw cannot be written into it. "
                "Apply the method to the plain float model, then quantise or wrap it."
            )

    def _own(self, weight: nn.Parameter) -> Tensor:
        """Return this role's rows as (output, input), detached; a view unless rows are interleaved."""
        values = weight.detach()
        if self.fused is not None and not self.separate:
            values = self.fused.take_apart(values)[self.role]
        return values.T if self.transposed else values


class Architecture:
    """What the method must know of a family of models. The defaults refuse; a family overrides what it can do."""

    name: str
    repairs: frozenset[str] = frozenset()
    """The repairs (fields of RepairSpec) that this family can carry out."""
    can_remove_qk = False
    """Whether attention without Q and K is uniform: not where the logits have other terms."""

    def matches(self, model: nn.Module) -> bool:  # noqa: ARG002  (for the families that override it)
        """Tell whether `model` is of this family."""
        raise NotCarriedOut(f"{type(self).__name__} does not say which models it knows; override matches().")

    def projections(self, model: nn.Module) -> list[Projection]:  # noqa: ARG002  (likewise)
        """List every projection of every layer, in order."""
        raise NotCarriedOut(f"{type(self).__name__} does not list its projections; override projections().")

    def refuse(self, model: nn.Module, method: MethodSpec) -> None:
        """Raise for what this family cannot carry out on this model, before anything is touched."""

    def narrow(self, model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection]) -> None:
        """Take the coordinates that position features will fill away from Q and K, before anything is drawn."""

    def set_apart(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:
        """Prepare Q and K for what will act on their weights: repairs that are folded in, slices without products."""

    def install(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:
        """Add the active repairs, all of them in `self.repairs`, where these projections are."""

    def remove_qk(self, model: nn.Module, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002  (likewise)
        """Make attention uniform over what it may see. Where Q and K stay as modules, zero queries do it."""
        for projection in queries_and_keys:
            if projection.role == "q":
                projection.zero()

    def specialise(self, model: nn.Module, projection: Projection) -> None:
        """Use what is known of a frozen projection's structure, e.g. that it only reads coordinates."""
