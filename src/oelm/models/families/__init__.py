"""The known families of models, and how other packages register theirs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from torch import nn

from oelm.errors import InvalidSpec, NotCarriedOut, UnknownName
from oelm.method.freeze import APPLIED, Applied
from oelm.method.projection import Architecture
from oelm.models.families.huggingface import FAMILIES, REFUSED, model_type
from oelm.models.families.plain_torch import NamedFamily, OwnGPT, TorchAttention
from oelm.spec.method import NamesSpec

ENTRY_POINTS = "oelm.architectures"
# Torch's attention comes last, because a family knows more about a model than its parts do.
ARCHITECTURES: list[Architecture] = [OwnGPT(), *FAMILIES, TorchAttention()]
_REGISTERED: list[Architecture] = []


def register_architecture(architecture: Architecture) -> Architecture:
    """Register a family of models, so that methods find its Q and K; the latest family is tried first.

    Packages can also define an entry point in the group `oelm.architectures` that names a subclass of `Architecture`.

    Raises:
        InvalidSpec: it is not an Architecture, or has no name, or has the name of another.

    """
    if not isinstance(architecture, Architecture) or not getattr(architecture, "name", ""):
        raise InvalidSpec(
            f"{architecture!r} cannot be registered as an architecture. Give an instance of a subclass of "
            "oelm.Architecture with a name, matches() and projections(); see docs/architectures.md."
        )
    if architecture.name in {known.name for known in _known_architectures()}:
        raise InvalidSpec(f"An architecture named {architecture.name!r} already exists. Choose another name.")
    _REGISTERED.insert(0, architecture)
    return architecture


def _known_architectures() -> list[Architecture]:
    """Return all families in the order in which they are tried."""
    return [*_REGISTERED, *_from_entry_points(), *ARCHITECTURES]


def architecture_of(model: nn.Module, names: NamesSpec | None = None) -> Architecture:
    """Return the family of a model, or the one that the user has described by names, now or when applying a method."""
    applied = model.__dict__.get(APPLIED)
    names = applied.names if isinstance(applied, Applied) else names
    if names is not None:
        return NamedFamily(names)
    known = _known_architectures()
    for architecture in known:
        if architecture.matches(model):
            return architecture
    kind = model_type(model)
    if kind in REFUSED:
        raise NotCarriedOut(f"A method cannot be applied to {kind} models. {REFUSED[kind]}")
    raise UnknownName(
        "known architecture for a model of class", type(model).__name__, [each.name for each in known],
        f"Its config.model_type is {kind!r}. Name its modules, for example "
        "oelm.apply(model, method, q='q_proj', k='k_proj').",
    )  # fmt: skip


@cache
def _from_entry_points() -> tuple[Architecture, ...]:
    return tuple(point.load()() for point in entry_points(group=ENTRY_POINTS))
