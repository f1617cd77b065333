"""Freezing that can be proved.

A zero gradient is not a frozen weight: an optimiser decays whatever has a gradient tensor, and a stale gradient
moves a parameter after `requires_grad=False`. A tensor held here has neither, and a hash of its bytes says later
whether it stayed what it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from oelm.errors import FrozenWeightsMoved
from oelm.spec.method import MethodSpec

Named = Iterable[tuple[str, nn.Parameter]]


_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass
class Applied:
    """What stands on a model: the method, the seed of its draws, and the hash of each frozen tensor."""

    method: MethodSpec
    seed: int
    hashes: dict[str, str] = field(default_factory=dict)
    casts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The hashes of each frozen tensor's values rounded to narrower types."""


def sha256(tensor: Tensor) -> str:
    """Hash a tensor's bytes."""
    data = tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().data).hexdigest()


def hold(tensors: Named) -> dict[str, str]:
    """Freeze tensors and return their hashes. Afterwards they have no gradient and can get none."""
    hashes = {}
    for name, parameter in tensors:
        parameter.requires_grad_(False)
        parameter.grad = None
        hashes[name] = sha256(parameter)
    return hashes


def rounded(tensors: Named) -> dict[str, tuple[str, ...]]:
    """Return the hashes of each tensor's values in the floating-point types that would round them.

    A frozen model that is cast (`.to(bfloat16)`) has other bytes and the same frozen values: remembering these
    hashes is what tells such a cast from a movement.
    """
    return {
        name: tuple(sha256(tensor.detach().to(dtype)) for dtype in _FLOATS if _rounds(tensor.dtype, dtype))
        for name, tensor in tensors
    }


def is_as_frozen(tensor: Tensor, frozen: str, casts: tuple[str, ...] = ()) -> bool:
    """Tell whether a tensor holds what was frozen, be it in another floating-point type.

    It does if, in some type that holds its values exactly, its bytes are those that were frozen or those rounded.
    """
    if sha256(tensor) == frozen:
        return True
    for dtype in _FLOATS:
        other = tensor.detach().to(dtype)
        if torch.equal(other.to(tensor.dtype), tensor.detach()) and sha256(other) in (frozen, *casts):
            return True
    return False


def release(tensors: Named) -> list[str]:
    """Let tensors train again and return their names."""
    names = []
    for name, parameter in tensors:
        parameter.requires_grad_(True)
        names.append(name)
    return names


def named_tensors(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return a model's parameters by name, the names as they were before PEFT wrapped modules."""
    return {name.replace(".base_layer", ""): parameter for name, parameter in model.named_parameters()}


def refuse_moved(
    tensors: dict[str, nn.Parameter], hashes: dict[str, str], casts: dict[str, tuple[str, ...]] | None = None
) -> None:
    """Raise, naming each tensor that is gone, trains, or no longer holds what it was frozen with."""
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
            f"{len(wrong)} of {len(hashes)} frozen tensors are not what was frozen: {', '.join(wrong)}. Something else "
            "wrote to them, loaded over them or made them train; apply the method after loading weights, and thaw "
            "with oelm.unfreeze(model) so that the change is known."
        )


def _rounds(source: torch.dtype, target: torch.dtype) -> bool:
    """Tell whether values of `source` may lose digits or range in `target`."""
    return torch.promote_types(source, target) != target
