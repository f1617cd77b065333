"""One fused tensor taken apart by role, in a module that stays what it was.

Freezing some rows of a tensor by masking does not hold: an optimiser decays whatever has a gradient. So the rows
of each role become a parameter of their own. From outside nothing else changes: the module keeps its name, its
identity and its type (a subclass of it), computes the same numbers, and saves and loads the one merged tensor.

Each role is multiplied by itself, so that frozen rows have no weight gradient. A role may also be narrower than its
place in the merged tensor (position features fill the rest), have a repair folded into its weight, or only read
coordinates of the input. A module of one role alone is split in the same way when one of these is asked for.
"""

# ruff: noqa: SLF001  (torch offers no public way to the tensors of a module or past its subclass hooks)
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.errors import BadShape, UnusableWeight
from oelm.method.repair import Fold, QueryBias
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

    def put_together(self, parts: list[Tensor], dim: int | None = None) -> Tensor:
        """Return the fused tensor, its parts in the order of `rows`; outputs have the rows along their last `dim`."""
        dim = self.dim(parts[0]) if dim is None else dim
        if len(parts) == 1:
            return parts[0]
        if self.groups == 1:
            return torch.cat(parts, dim)
        grouped = [torch.unflatten(part, dim, (self.groups, -1)) for part in parts]
        return torch.cat(grouped, dim + 1).flatten(dim, dim + 1)

    def dim(self, tensor: Tensor) -> int:
        """Return the dimension along which `tensor` has the rows."""
        return tensor.ndim - 1 if self.transposed else 0


@dataclass(frozen=True)
class Content:
    """Which coordinates of each head a narrowed projection computes; the others are zero, and features fill them.

    The K coordinates of a head are `runs` runs of equal length, and the first `size` / `runs` of each run are content.
    One run keeps the first coordinates. Rotary positions turn the pairs (i, i + K/2), which must stay whole: an even
    number of runs does that. As many runs as divide K and `size` spread the pairs that are left evenly over the
    frequencies, which are then those of a head of this size.
    """

    head_size: int
    size: int
    runs: int = 1

    @property
    def kept(self) -> int:
        """Coordinates of a run that are content."""
        return self.size // self.runs

    @property
    def free(self) -> int:
        """Coordinates of a run that are free for features."""
        return (self.head_size - self.size) // self.runs

    def take(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the content of a tensor that has all coordinates of all heads along `dim`."""
        runs = torch.unflatten(tensor, dim, (-1, self.kept + self.free))
        return runs.narrow(dim + 1, 0, self.kept).flatten(dim, dim + 1)

    def spread(self, tensor: Tensor, dim: int, num_heads: int) -> Tensor:
        """Put content back in its place along `dim`, among zeros."""
        if not self.size:
            shape = [*tensor.shape[:dim], num_heads * self.head_size, *tensor.shape[dim + 1 :]]
            return tensor.new_zeros(shape)
        runs = torch.unflatten(tensor, dim, (-1, self.kept))
        after = 2 * (tensor.ndim - 1 - dim)  # F.pad counts from the last dimension
        return F.pad(runs, (*(0,) * after, 0, self.free)).flatten(dim, dim + 1)

    def append(self, x_BHTK: Tensor, features_HTF: Tensor) -> Tensor:
        """Return the content of queries or keys with features in the free coordinates.

        These are zero already, unless an adapter on top of the projection writes there: what it writes is dropped, as
        it is when the adapter is merged into the narrower weight.
        """
        runs = torch.unflatten(features_HTF, -1, (self.runs, -1))
        placed_HTK = F.pad(runs, (self.kept, self.free - runs.shape[-1])).flatten(-2)
        is_content_K = self.spread(x_BHTK.new_ones(self.size), 0, 1)
        return torch.addcmul(placed_HTK.to(x_BHTK.dtype), x_BHTK, is_content_K)


class Part(nn.Module):
    """The rows of one role. Saving and loading are the affair of the module they belong to."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, *, transposed: bool = False) -> None:
        super().__init__()
        self.transposed, self.num_heads = transposed, 1
        self.bias = None
        self.content: Content | None = None
        self.oelm_fold: Fold | None = None
        self.oelm_query_bias: QueryBias | None = None
        self.reader: Reader | None = None
        self.afterwards: Callable[[Tensor], Tensor] | None = None
        """Acts on the output, (..., H, K), before anything else sees it."""

    @property
    def is_absent(self) -> bool:
        """Whether no coordinate is content."""
        return self.content is not None and not self.content.size

    @property
    def matrix(self) -> Tensor:
        """The weight as (output, input)."""
        return self.weight.T if self.transposed else self.weight

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return this role's output, zeros where features belong; `bias` is for a module whose bias stayed whole."""
        y = self._multiply(x, self.bias if bias is None else bias)
        if self.content is not None:
            y = self.content.spread(y, y.ndim - 1, self.num_heads)
        if self.afterwards is not None:
            y = self.afterwards(torch.unflatten(y, -1, (self.num_heads, -1))).flatten(-2)
        return y

    def _multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.weight.requires_grad:
            self.reader = None  # rows that train do not stay multiples of unit vectors
        if self.is_absent:
            return x.new_zeros(*x.shape[:-1], 0)
        if self.oelm_query_bias is not None:
            trained = self.oelm_query_bias.bias_HK.flatten().to(self.weight.dtype)
            bias = trained if bias is None else bias + trained
        if self.reader is not None:
            read = partial(self.reader, self.matrix)
            y = read(x) if self.oelm_fold is None else self.oelm_fold.around(x, read)
            return y if bias is None else y + bias.to(y.dtype)
        weight_CI = self.matrix if self.oelm_fold is None else self.oelm_fold(self.matrix)
        return F.linear(x, weight_CI, bias)

    def narrow(self, content: Content, num_heads: int) -> None:
        """Keep the content coordinates of each head only."""
        self.content, self.num_heads = content, num_heads
        for name, dim in (("weight", 1 if self.transposed else 0), ("bias", 0)):
            whole = getattr(self, name)
            if whole is not None:
                rows = content.take(whole.detach(), dim).clone()
                setattr(self, name, nn.Parameter(rows, requires_grad=whole.requires_grad))

    def whole(self, name: str) -> Tensor:
        """Return the rows of a tensor as the merged one has them."""
        rows: Tensor = getattr(self, name)
        if self.content is None:
            return rows
        return self.content.spread(rows, 1 if self.transposed and name == "weight" else 0, self.num_heads)

    @torch.no_grad()
    def write(self, name: str, rows: Tensor) -> None:
        """Replace a tensor from rows as the merged one has them."""
        own: Tensor = getattr(self, name)
        dim = 1 if self.transposed and name == "weight" else 0
        own.copy_(rows if self.content is None else self.content.take(rows, dim))
        if self.reader is not None and name == "weight":
            try:
                self.reader.find(self.matrix)
            except ValueError:  # other weights, which have to be multiplied with
                self.reader = None

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

    @property
    def fused(self) -> Fused:
        """How the merged tensors hold the roles."""
        return self._oelm_fused

    def parts(self) -> dict[Role, Part]:
        """Return the parts by role."""
        return {role: cast("Part", self._modules[role]) for role, _ in self._oelm_fused.rows}

    def has_split(self, name: str) -> bool:
        """Tell whether a tensor of this module is kept in parts."""
        return name in self._oelm_names

    def merged(self, name: str) -> Tensor:
        """Return the fused tensor of a name, as a function of the parts."""
        field = "weight" if name == self._oelm_fused.weight else "bias"
        return self._oelm_fused.put_together([part.whole(field) for part in self.parts().values()])

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
            self.parts()[role].write(field, rows)

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
    """A linear map (also a transposed one) that multiplies each role by itself: frozen ones get no weight gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what the module returned before it was split."""
        whole = cast("Tensor | None", None if "bias" in self._oelm_names else self.bias)
        biases = {} if whole is None else self._oelm_fused.take_apart(whole)
        outputs = [part(x, biases.get(role)) for role, part in self.parts().items()]
        return self._oelm_fused.put_together(outputs, outputs[0].ndim - 1)


class Reader(Protocol):
    """A module that reads coordinates of the input, times the factors in a weight (models/sliced.py)."""

    def find(self, weight_CI: Tensor) -> None:
        """Note which coordinate each row reads; raise ValueError where a row is not a multiple of a unit vector."""

    def __call__(self, weight_CI: Tensor, x: Tensor) -> Tensor:
        """Return what the product with the weight would."""


def is_split(module: nn.Module) -> bool:
    """Tell whether a module has been split by role."""
    return isinstance(module, Split)


def split(module: nn.Module, fused: Fused, *, biases: bool) -> None:
    """Give each role in a fused module parameters of its own, in place. Each keeps its `requires_grad`."""
    if is_split(module):
        return
    has_bias = getattr(module, fused.bias, None) is not None
    names = (fused.weight, fused.bias) if biases and has_bias else (fused.weight,)
    parts = {role: Part(transposed=fused.transposed) for role, _ in fused.rows}
    for name in names:
        whole = cast("nn.Parameter", module._parameters.pop(name))
        for role, rows in fused.take_apart(whole.detach()).items():
            field = "weight" if name == fused.weight else "bias"
            setattr(parts[role], field, nn.Parameter(rows.clone(), requires_grad=whole.requires_grad))
    module.__class__ = _split_class(cast("Any", type(module)), names)
    module.__dict__.update(_oelm_fused=fused, _oelm_names=names)
    for role, part in parts.items():
        module.add_module(role, part)


class _NarrowNorm(nn.Module):
    """What is mixed into the class of a norm over the coordinates of a head, of which only some are content."""

    weight: nn.Parameter
    _oelm_base: type[nn.Module]
    _oelm_content: Content

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the content."""
        content = self._oelm_content
        y = super().forward(content.take(x, x.ndim - 1)) if content.size else x[..., :0]
        return content.spread(y, y.ndim - 1, 1)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _revive_norm, (self._oelm_base,), self.__dict__

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        whole = self._oelm_content.spread(self.weight, 0, 1)
        destination[prefix + "weight"] = whole if keep_vars else whole.detach()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        whole = state_dict.get(prefix + "weight")
        own = {} if whole is None else {prefix + "weight": self._oelm_content.take(whole, 0)}
        super()._load_from_state_dict({**state_dict, **own}, prefix, *rest)


def narrow_norm(norm: nn.Module, content: Content) -> None:
    """Let a norm over the coordinates of a head see the content only, in place; it saves and loads its whole weight."""
    whole = cast("nn.Parameter", norm.weight)
    norm.weight = nn.Parameter(content.take(whole.detach(), 0).clone(), requires_grad=whole.requires_grad)
    norm.__class__ = _norm_class(cast("Any", type(norm)))
    norm.__dict__["_oelm_content"] = content


@cache
def _norm_class(base: Any) -> type[nn.Module]:
    return type(f"Narrow{base.__name__}", (_NarrowNorm, base), {"__module__": __name__, "_oelm_base": base})


def _revive_norm(base: Any) -> nn.Module:
    cls = _norm_class(base)
    return cls.__new__(cls)


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
