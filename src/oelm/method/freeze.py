"""Write the drawn weights into Q and K, freeze them, and prove later that they did not change.

A zero gradient does not freeze a weight: an optimiser decays every parameter that has a gradient tensor, and a stale
gradient moves a parameter after `requires_grad=False`. Tensors frozen here have no gradient, and a hash of their bytes
shows whether they changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from oelm.errors import FrozenWeightsMoved
from oelm.method.orthogonal import draw
from oelm.method.projection import Projection
from oelm.spec.method import InitSpec, MethodSpec, NamesSpec, Site, heads_of
from oelm.spec.seeds import stream


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
