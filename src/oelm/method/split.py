"""Split a fused tensor by role, without changing the module from outside.

Masking cannot freeze some rows of a tensor, because an optimiser decays every parameter that has a gradient. So the
rows of each role become a parameter of their own. The module keeps its name and identity, its type becomes a subclass,
it computes the same numbers, and it saves and loads the one merged tensor.

Each role has its own matrix product, so that frozen rows have no weight gradient. A role may also be narrower than its
place in the merged tensor (position features fill the rest), have a repair folded into its weight, or only read
coordinates of the input. A module of a single role is split in the same way if it needs one of these.
"""

# ruff: noqa: SLF001  (torch has no public access to the tensors of a module or around its subclass hooks)
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.errors import BadShape, UnusableWeight
from oelm.method.repair import FoldedRepair, QueryBias
from oelm.spec.method import Role


@dataclass(frozen=True)
class Fused:
    """The layout of a tensor with several roles: `groups` times the rows of each role, in order.

    With one group the rows are q, then k, then v; with as many groups as heads they are interleaved by head. Rows are
    output features; a transposed weight (Conv1D) has them as columns.
    """

    rows: tuple[tuple[Role, int], ...]
    groups: int = 1
    transposed: bool = False
    weight: str = "weight"
    bias: str = "bias"

    def take_apart(self, tensor: Tensor) -> dict[Role, Tensor]:
        """Return the rows of each role; views if the layout allows it."""
        dim = self.dim(tensor)
        sizes = [size // self.groups for _, size in self.rows]
        if self.groups == 1:
            parts = torch.split(tensor, sizes, dim)
        else:
            grouped = torch.split(torch.unflatten(tensor, dim, (self.groups, -1)), sizes, dim + 1)
            parts = tuple(part.flatten(dim, dim + 1) for part in grouped)
        return {role: part for (role, _), part in zip(self.rows, parts, strict=True)}

    def put_together(self, parts: list[Tensor], dim: int | None = None) -> Tensor:
        """Return the fused tensor of parts in the order of `rows`; `dim` is the dimension of the rows, if known."""
        dim = self.dim(parts[0]) if dim is None else dim
        if len(parts) == 1:
            return parts[0]
        if self.groups == 1:
            return torch.cat(parts, dim)
        grouped = [torch.unflatten(part, dim, (self.groups, -1)) for part in parts]
        return torch.cat(grouped, dim + 1).flatten(dim, dim + 1)

    def dim(self, tensor: Tensor) -> int:
        """Return the dimension of the rows of `tensor`."""
        return tensor.ndim - 1 if self.transposed else 0


@dataclass(frozen=True)
class ComputedCoordinates:
    """The coordinates of each head that a narrowed projection computes. The others are zero until features fill them.

    The K coordinates of a head are `runs` runs of equal length, and the first `size` / `runs` of each run are content.
    One run keeps the first coordinates. Rotary positions rotate the pairs (i, i + K/2), which must stay together: an
    even number of runs does that. With as many runs as divide K and `size`, the remaining pairs are spread evenly over
    the frequencies, which are then those of a head of this size.
    """

    head_size: int
    size: int
    runs: int = 1

    @property
    def kept(self) -> int:
        """Number of content coordinates in a run."""
        return self.size // self.runs

    @property
    def free(self) -> int:
        """Number of coordinates in a run that are free for features."""
        return (self.head_size - self.size) // self.runs

    def take(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the content coordinates of a tensor that has all coordinates of all heads along `dim`."""
        runs = torch.unflatten(tensor, dim, (-1, self.kept + self.free))
        return runs.narrow(dim + 1, 0, self.kept).flatten(dim, dim + 1)

    def spread(self, tensor: Tensor, dim: int, num_heads: int) -> Tensor:
        """Return a tensor with content back in its place along `dim` and zeros elsewhere."""
        if not self.size:
            shape = [*tensor.shape[:dim], num_heads * self.head_size, *tensor.shape[dim + 1 :]]
            return tensor.new_zeros(shape)
        runs = torch.unflatten(tensor, dim, (-1, self.kept))
        after = 2 * (tensor.ndim - 1 - dim)  # F.pad counts from the last dimension
        return F.pad(runs, (*(0,) * after, 0, self.free)).flatten(dim, dim + 1)

    def append(self, x_BHTK: Tensor, features_HTF: Tensor) -> Tensor:
        """Return the content of queries or keys with features in the free coordinates.

        The free coordinates are zero, unless an adapter on top of the projection writes to them. Its values are
        dropped, as they are when the adapter is merged into the narrower weight.
        """
        runs = torch.unflatten(features_HTF.to(x_BHTK.dtype), -1, (self.runs, -1))
        # In the memory layout (B, T, H, K), which attention gives its output too: the output projection reads it as is.
        placed_THK = F.pad(runs, (self.kept, self.free - runs.shape[-1])).flatten(-2).transpose(0, 1).contiguous()
        is_content_K = self.spread(x_BHTK.new_ones(self.size), 0, 1)
        return torch.addcmul(placed_THK, x_BHTK.transpose(1, 2), is_content_K).transpose(1, 2)


class RolePart(nn.Module):
    """The rows of one role. The module they belong to saves and loads them."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, *, transposed: bool = False) -> None:
        super().__init__()
        self.transposed, self.num_heads = transposed, 1
        self.bias = None
        self.content: ComputedCoordinates | None = None
        self.oelm_fold: FoldedRepair | None = None
        self.oelm_query_bias: QueryBias | None = None
        self.reader: Reader | None = None
        self.afterwards: Callable[[Tensor], Tensor] | None = None
        """Function applied to the output (..., H, K) before anything else."""

    @property
    def is_absent(self) -> bool:
        """Whether the role has no content coordinates."""
        return self.content is not None and not self.content.size

    @property
    def matrix(self) -> Tensor:
        """The weight as (output, input)."""
        return self.weight.T if self.transposed else self.weight

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the role's output, with zeros in place of features; `bias` is for a module whose bias is not split."""
        y = self._multiply(x, self.bias if bias is None else bias)
        if self.content is not None:
            y = self.content.spread(y, y.ndim - 1, self.num_heads)
        if self.afterwards is not None:
            y = self.afterwards(torch.unflatten(y, -1, (self.num_heads, -1))).flatten(-2)
        return y

    def _multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.weight.requires_grad:
            self.reader = None  # trained rows do not stay multiples of unit vectors
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

    def narrow(self, content: ComputedCoordinates, num_heads: int) -> None:
        """Keep only the content coordinates of each head."""
        self.content, self.num_heads = content, num_heads
        for name in ("weight", "bias"):
            whole = getattr(self, name)
            if whole is not None:
                rows = content.take(whole.detach(), self._dim(name)).clone()
                setattr(self, name, nn.Parameter(rows, requires_grad=whole.requires_grad))

    def whole(self, name: str) -> Tensor:
        """Return the rows of a tensor as they are in the merged one."""
        rows: Tensor = getattr(self, name)
        if self.content is None:
            return rows
        return self.content.spread(rows, self._dim(name), self.num_heads)

    def _dim(self, name: str) -> int:
        return 1 if self.transposed and name == "weight" else 0

    @torch.no_grad()
    def write(self, name: str, rows: Tensor) -> None:
        """Replace a tensor by rows as they are in the merged one."""
        own: Tensor = getattr(self, name)
        own.copy_(rows if self.content is None else self.content.take(rows, self._dim(name)))
        if self.reader is not None and name == "weight":
            try:
                self.reader.find(self.matrix)
            except ValueError:  # the new weights need a matrix product
                self.reader = None

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save nothing: the module does."""

    def _load_from_state_dict(self, *_: Any) -> None:
        """Load nothing: the module does."""


class MergedTensor(Tensor):
    """The merged copy that a split module presents as its weight, which does not let writes to it get lost.

    Assigning to `.data`, as PEFT's merge does, writes to the parts; every other change in place is refused. Torch's own
    attention reads `in_proj_weight` in its forward pass and gets a plain copy (docs/architectures.md).
    """

    _write: Callable[[Tensor], None]

    @classmethod
    def of(cls, merged: Tensor, write: Callable[[Tensor], None]) -> MergedTensor:
        """Return a merged tensor as one of this class; it keeps its place in the autograd graph."""
        result = merged.as_subclass(cls)
        result._write = write
        return result

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = getattr(func, "__name__", ""), kwargs or {}
        target = next(iter((*args, *options.values())), None)
        if name.endswith("_") and not name.endswith("__") and isinstance(target, cls):
            raise UnusableWeight(
                f"{name} was called on the weight of a module that oelm has split by role. It is a merged copy, so the "
                "change would be lost. Assign to .data, or use oelm.freeze and oelm.unfreeze."
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


class SplitModule(nn.Module):
    """The class that split modules inherit from in addition to their own. Their parts are children named by role."""

    _oelm_base: type[nn.Module]
    _oelm_fused: Fused
    _oelm_names: tuple[str, ...]

    @property
    def fused(self) -> Fused:
        """The layout of the merged tensors."""
        return self._oelm_fused

    def parts(self) -> dict[Role, RolePart]:
        """Return the parts by role."""
        return {role: cast("RolePart", self._modules[role]) for role, _ in self._oelm_fused.rows}

    def has_split(self, name: str) -> bool:
        """Return whether a tensor of this module is split."""
        return name in self._oelm_names

    def merge(self, name: str) -> Tensor:
        """Return a fused tensor, computed from the parts."""
        field = "weight" if name == self._oelm_fused.weight else "bias"
        return self._oelm_fused.put_together([part.whole(field) for part in self.parts().values()])

    @torch.no_grad()
    def write(self, name: str, value: Tensor) -> None:
        """Replace the values of every part by those of a fused tensor."""
        expected = self.merge(name).shape
        if value.shape != expected:
            raise BadShape(
                f"{name} has the shape {tuple(expected)}, but a tensor of shape {tuple(value.shape)} was assigned. Use "
                "one of the same shape."
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
        return _revive, (_split_class, self._oelm_base, self._oelm_names), self.__dict__

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._oelm_names:
            merged = self.merge(name)
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


class _SplitLinear(SplitModule):
    """A linear map (also a transposed one) with one product per role, so that frozen roles get no weight gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the module, as before it was split."""
        whole = cast("Tensor | None", None if "bias" in self._oelm_names else self.bias)
        biases = {} if whole is None else self._oelm_fused.take_apart(whole)
        outputs = [part(x, biases.get(role)) for role, part in self.parts().items()]
        return self._oelm_fused.put_together(outputs, outputs[0].ndim - 1)


class Reader(Protocol):
    """A module that reads coordinates of the input, times the factors in a weight (`oelm.models.linear`)."""

    def find(self, weight_CI: Tensor) -> None:
        """Find the coordinate that each row reads; raise ValueError if a row is not a multiple of a unit vector."""

    def __call__(self, weight_CI: Tensor, x: Tensor) -> Tensor:
        """Return the product with the weight."""


def is_split(module: nn.Module) -> bool:
    """Return whether a module has been split by role."""
    return isinstance(module, SplitModule)


def split(module: nn.Module, fused: Fused, *, biases: bool) -> None:
    """Give each role in a fused module its own parameters, in place. Each keeps its `requires_grad`."""
    if is_split(module):
        return
    has_bias = getattr(module, fused.bias, None) is not None
    names = (fused.weight, fused.bias) if biases and has_bias else (fused.weight,)
    parts = {role: RolePart(transposed=fused.transposed) for role, _ in fused.rows}
    for name in names:
        whole = cast("nn.Parameter", module._parameters.pop(name))
        for role, rows in fused.take_apart(whole.detach()).items():
            field = "weight" if name == fused.weight else "bias"
            setattr(parts[role], field, nn.Parameter(rows.clone(), requires_grad=whole.requires_grad))
    module.__class__ = _split_class(cast("Any", type(module)), names)
    module.__dict__.update(_oelm_fused=fused, _oelm_names=names)
    for role, part in parts.items():
        module.add_module(role, part)


def join(module: nn.Module) -> None:
    """Undo `split`, in place: one fused tensor again, which trains if one of its parts does."""
    own = cast("SplitModule", module)
    parts = own.parts()
    merged = {
        name: nn.Parameter(
            own.merge(name).detach().clone(),
            requires_grad=any(each.requires_grad for part in parts.values() for each in part.parameters()),
        )
        for name in own._oelm_names
    }
    for role in parts:
        delattr(module, role)
    module.__class__ = own._oelm_base
    for name in ("_oelm_fused", "_oelm_names"):
        del module.__dict__[name]
    for name, whole in merged.items():
        module.register_parameter(name, whole)


class _NarrowNorm(nn.Module):
    """The class that a norm over the coordinates of one or of all heads inherits from if only some are content."""

    weight: nn.Parameter
    _oelm_base: type[nn.Module]
    _oelm_content: ComputedCoordinates
    _oelm_heads: int

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the content coordinates."""
        content = self._oelm_content
        y = super().forward(content.take(x, x.ndim - 1)) if content.size else x[..., :0]
        return content.spread(y, y.ndim - 1, self._oelm_heads)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _revive, (_norm_class, self._oelm_base), self.__dict__

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        whole = self._oelm_content.spread(self.weight, 0, self._oelm_heads)
        destination[prefix + "weight"] = whole if keep_vars else whole.detach()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        whole = state_dict.get(prefix + "weight")
        own = {} if whole is None else {prefix + "weight": self._oelm_content.take(whole, 0)}
        super()._load_from_state_dict({**state_dict, **own}, prefix, *rest)


def narrow_norm(norm: nn.Module, content: ComputedCoordinates) -> None:
    """Limit a norm over the coordinates of one or all heads to content, in place. It saves and loads all its weight."""
    whole = cast("nn.Parameter", norm.weight)
    norm.weight = nn.Parameter(content.take(whole.detach(), 0).clone(), requires_grad=whole.requires_grad)
    norm.__class__ = _norm_class(cast("Any", type(norm)))
    norm.__dict__.update(_oelm_content=content, _oelm_heads=whole.numel() // content.head_size)


# Classes are cached, so that a copy has the same type as the original. Copies and pickles name the function that makes
# their class.


@cache
def _norm_class(base: Any) -> type[nn.Module]:
    return type(f"Narrow{base.__name__}", (_NarrowNorm, base), {"__module__": __name__, "_oelm_base": base})


@cache
def _split_class(base: Any, names: tuple[str, ...]) -> type[nn.Module]:
    """Return a subclass of a module's class whose fused tensors are computed from the parts."""
    # nn.Linear and transformers' Conv1D call the tensor 'weight'; torch's attention reads 'in_proj_weight' itself.
    linear = "weight" in names
    body = {name: _property(name, writable=linear) for name in names} | {"__module__": __name__, "_oelm_base": base}
    return type(f"Split{base.__name__}", (_SplitLinear if linear else SplitModule, base), body)


def _property(name: str, *, writable: bool) -> property:
    def read(module: SplitModule) -> Tensor:
        merged = module.merge(name)
        return MergedTensor.of(merged, lambda value: module.write(name, value)) if writable else merged

    return property(read)


def _revive(make_class: Callable[..., type[nn.Module]], *arguments: Any) -> nn.Module:
    """Return an empty module of a class, which copying or unpickling fills."""
    cls = make_class(*arguments)
    return cls.__new__(cls)
