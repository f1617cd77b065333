"""One fused tensor taken apart by role, in a module that stays what it was.

Freezing some rows of a tensor by masking does not hold: an optimiser decays whatever has a gradient. So the rows
of each role become a parameter of their own. From outside nothing else changes: the module keeps its name, its
identity and its type (a subclass of it), computes the same numbers, and saves and loads the one merged tensor.
"""

# ruff: noqa: SLF001  (torch offers no public way to the tensors of a module or past its subclass hooks)
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.errors import BadShape, UnusableWeight
from oelm.spec.method import Role


@dataclass(frozen=True)
class Fused:
    """How one tensor holds several roles: `groups` times a run of rows of each role, in order.

    One group is q, then k, then v; as many groups as heads is interleaving by head. Rows are output features; a
    transposed weight (Conv1D) has them as columns.
    """

    rows: tuple[tuple[Role, int], ...]
    groups: int = 1
    transposed: bool = False
    weight: str = "weight"
    bias: str = "bias"

    def take_apart(self, tensor: Tensor) -> dict[Role, Tensor]:
        """Return each role's rows; views where the layout allows it."""
        dim = self.dim(tensor)
        sizes = [size // self.groups for _, size in self.rows]
        if self.groups == 1:
            parts = torch.split(tensor, sizes, dim)
        else:
            grouped = torch.split(torch.unflatten(tensor, dim, (self.groups, -1)), sizes, dim + 1)
            parts = tuple(part.flatten(dim, dim + 1) for part in grouped)
        return {role: part for (role, _), part in zip(self.rows, parts, strict=True)}

    def put_together(self, parts: list[Tensor]) -> Tensor:
        """Return the fused tensor, its parts in the order of `rows`."""
        dim = self.dim(parts[0])
        if self.groups == 1:
            return torch.cat(parts, dim)
        grouped = [torch.unflatten(part, dim, (self.groups, -1)) for part in parts]
        return torch.cat(grouped, dim + 1).flatten(dim, dim + 1)

    def dim(self, tensor: Tensor) -> int:
        """Return the dimension along which `tensor` has the rows."""
        return tensor.ndim - 1 if self.transposed else 0


class Part(nn.Module):
    """The rows of one role. Saving and loading are the affair of the module they belong to."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Leave nothing."""

    def _load_from_state_dict(self, *_: Any) -> None:
        """Take nothing."""


class MergedTensor(Tensor):
    """What a split module shows outside as its weight: a copy, so that writing to it must not be lost.

    Torch's own attention reads `in_proj_weight` in its forward pass and is shown the bare copy (docs/architectures.md).
    Assigning to `.data`, as PEFT's merge does, reaches the parts; every other change in place is refused.
    """

    _write: Callable[[Tensor], None]

    @classmethod
    def of(cls, merged: Tensor, write: Callable[[Tensor], None]) -> MergedTensor:
        """Dress a merged tensor, which keeps its place in the graph of gradients."""
        dressed = merged.as_subclass(cls)
        dressed._write = write
        return dressed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = getattr(func, "__name__", ""), kwargs or {}
        target = next(iter((*args, *options.values())), None)
        if name.endswith("_") and not name.endswith("__") and isinstance(target, cls):
            raise UnusableWeight(
                f"{name} was called on the weight of a module that oelm split by role; what is shown there is a merged "
                "copy, and the change would be lost. Assign to .data, or use oelm.freeze and oelm.unfreeze."
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **options)

    @property
    def data(self) -> Tensor:
        """The values, without gradients; assign to it to write to the parts."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.detach().as_subclass(Tensor)

    @data.setter
    def data(self, value: Tensor) -> None:
        self._write(value)


class Split(nn.Module):
    """What is mixed into the class of a split module. Its parts are children named by role."""

    _oelm_base: type[nn.Module]
    _oelm_fused: Fused
    _oelm_names: tuple[str, ...]

    def parts(self) -> dict[Role, Part]:
        """Return the parts by role."""
        return {role: cast("Part", self._modules[role]) for role, _ in self._oelm_fused.rows}

    def has_split(self, name: str) -> bool:
        """Tell whether a tensor of this module is kept in parts."""
        return name in self._oelm_names

    def merged(self, name: str) -> Tensor:
        """Return the fused tensor of a name, as a function of the parts."""
        field = "weight" if name == self._oelm_fused.weight else "bias"
        return self._oelm_fused.put_together([getattr(part, field) for part in self.parts().values()])

    @torch.no_grad()
    def write(self, name: str, value: Tensor) -> None:
        """Replace the values of every part from a fused tensor."""
        expected = self.merged(name).shape
        if value.shape != expected:
            raise BadShape(
                f"a tensor of shape {tuple(value.shape)} was given for {name}, which has the shape "
                f"{tuple(expected)}. Give one of that shape."
            )
        field = "weight" if name == self._oelm_fused.weight else "bias"
        for role, rows in self._oelm_fused.take_apart(value).items():
            getattr(self.parts()[role], field).copy_(rows)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_oelm_names", ()):
            self.write(name, value)
        else:
            super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _revive, (self._oelm_base, self._oelm_names), self.__dict__

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._oelm_names:
            merged = self.merged(name)
            destination[prefix + name] = merged if keep_vars else merged.detach()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        rest = {key: value for key, value in state_dict.items() if key.removeprefix(prefix) not in self._oelm_names}
        super()._load_from_state_dict(rest, prefix, metadata, strict, missing_keys, unexpected_keys, error_msgs)
        for name in self._oelm_names:
            value = state_dict.get(prefix + name)
            if value is None:
                missing_keys.append(prefix + name)
                continue
            try:
                self.write(name, value)
            except BadShape as error:
                error_msgs.append(f"{prefix}{name}: {error}")


class _SplitLinear(Split):
    """A linear map (also a transposed one) whose forward reads the parts without the dress of MergedTensor."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply as the module did before it was split."""
        weight = self.merged("weight")
        bias = self.merged("bias") if "bias" in self._oelm_names else self.bias
        if not self._oelm_fused.transposed:
            return F.linear(x, weight, cast("Tensor | None", bias))
        flat = torch.addmm(cast("Tensor", bias), x.reshape(-1, x.shape[-1]), weight)
        return flat.view(*x.shape[:-1], -1)


def is_split(module: nn.Module) -> bool:
    """Tell whether a module has been split by role."""
    return isinstance(module, Split)


def split(module: nn.Module, fused: Fused, *, biases: bool) -> None:
    """Give each role in a fused module parameters of its own, in place. Each keeps its `requires_grad`."""
    if is_split(module):
        return
    has_bias = getattr(module, fused.bias, None) is not None
    names = (fused.weight, fused.bias) if biases and has_bias else (fused.weight,)
    parts = {role: Part() for role, _ in fused.rows}
    for name in names:
        whole = cast("nn.Parameter", module._parameters.pop(name))
        for role, rows in fused.take_apart(whole.detach()).items():
            field = "weight" if name == fused.weight else "bias"
            setattr(parts[role], field, nn.Parameter(rows.clone(), requires_grad=whole.requires_grad))
    module.__class__ = _split_class(cast("Any", type(module)), names)
    module.__dict__.update(_oelm_fused=fused, _oelm_names=names)
    for role, part in parts.items():
        module.add_module(role, part)


@cache  # one class per kind of module, so that copies have the type of what they copy
def _split_class(base: Any, names: tuple[str, ...]) -> type[nn.Module]:
    """Derive from a module's class one whose fused tensors are read from the parts."""
    # nn.Linear and transformers' Conv1D call the tensor 'weight'; torch's attention reads 'in_proj_weight' itself.
    linear = "weight" in names
    body = {name: _property(name, dressed=linear) for name in names} | {"__module__": __name__, "_oelm_base": base}
    return type(f"Split{base.__name__}", (_SplitLinear if linear else Split, base), body)


def _property(name: str, *, dressed: bool) -> property:
    def read(module: Split) -> Tensor:
        merged = module.merged(name)
        return MergedTensor.of(merged, lambda value: module.write(name, value)) if dressed else merged

    return property(read)


def _revive(base: Any, names: tuple[str, ...]) -> nn.Module:
    """Make an empty split module for copying and unpickling to fill."""
    cls: type[nn.Module] = _split_class(base, names)
    return cls.__new__(cls)
