"""The families of models that the method knows, and how other packages add theirs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from torch import nn

from oelm.errors import InvalidSpec, UnknownName
from oelm.method.projection import Architecture
from oelm.models.families.huggingface import FAMILIES
from oelm.models.families.layered import model_type
from oelm.models.families.own_gpt import OwnGPT
from oelm.models.families.torch_attention import TorchAttention

ENTRY_POINTS = "oelm.architectures"
# Torch's attention comes last: a family that knows the whole model says more than its parts do.
ARCHITECTURES: list[Architecture] = [OwnGPT(), *FAMILIES, TorchAttention()]
_REGISTERED: list[Architecture] = []


def register_architecture(architecture: Architecture) -> Architecture:
    """Teach the method where Q and K live in a family of models; the latest registered is asked first.

    Packages can do the same by an entry point in the group `oelm.architectures` that names a subclass of
    `Architecture`.

    Raises:
        InvalidSpec: it is no Architecture, or has no name or the name of another.

    """
    if not isinstance(architecture, Architecture) or not getattr(architecture, "name", ""):
        raise InvalidSpec(
            f"{architecture!r} was registered as an architecture. Give an instance of a subclass of "
            "oelm.Architecture with a name, matches() and projections(); see docs/architectures.md."
        )
    if architecture.name in {known.name for known in known_architectures()}:
        raise InvalidSpec(f"there is an architecture named {architecture.name!r} already. Choose another name.")
    _REGISTERED.insert(0, architecture)
    return architecture


def known_architectures() -> list[Architecture]:
    """Return all architectures in the order in which they are asked."""
    return [*_REGISTERED, *_from_entry_points(), *ARCHITECTURES]


def architecture_of(model: nn.Module) -> Architecture:
    """Return the family that a model belongs to."""
    known = known_architectures()
    for architecture in known:
        if architecture.matches(model):
            return architecture
    raise UnknownName(
        "known architecture for a model of class", type(model).__name__, [each.name for each in known],
        f"Looked for a known config.model_type (found {model_type(model)!r}) and for torch.nn.MultiheadAttention "
        "inside. Say where its Q and K live with oelm.register_architecture; docs/architectures.md shows how.",
    )  # fmt: skip


@cache
def _from_entry_points() -> tuple[Architecture, ...]:
    return tuple(point.load()() for point in entry_points(group=ENTRY_POINTS))
