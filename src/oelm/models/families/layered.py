"""What all families built of numbered layers share: a table says where the roles are, this reads it.

Nothing here imports `transformers`: a model is known by the `model_type` of its configuration and its layers by
the names of their classes, so that models of other families cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from torch import nn

from oelm.errors import NotCarriedOut
from oelm.method.projection import Architecture, Projection
from oelm.method.split import Fused
from oelm.spec.method import MethodSpec, Role, Site
from oelm.spec.repair import RepairSpec

_ROLES: tuple[Role, ...] = ("q", "k", "v", "o")


@dataclass(frozen=True)
class Attention:
    """One attention in a layer. Paths are dotted, from the layer; head counts are numbers read from the model."""

    site: Site
    num_heads: int
    num_key_heads: int | None = None
    """None: as many as query heads."""
    paths: dict[Role, str] = field(default_factory=dict)
    """The modules of the roles that have one of their own."""
    fused_path: str | None = None
    fused: Fused | None = None
    transposed: bool = False
    """Of the modules in `paths`."""

    def heads(self, role: Role) -> int:
        """Return how many heads a role has."""
        if role in ("k", "v"):
            return self.num_key_heads or self.num_heads
        return self.num_heads if role == "q" else 1


class LayeredFamily(Architecture):
    """A `transformers` family: name its types and layers, and describe one layer."""

    model_types: frozenset[str]
    """Values of `model.config.model_type`."""
    layer_classes: frozenset[str]
    """Names of the classes of its layers."""
    ffn: tuple[str, ...] = ()
    """Paths of the feed-forward maps, from the layer."""
    ffn_transposed = False
    # Attention that goes through transformers' attention interface can be repaired there.
    repairs = frozenset({"key_shift", "temperature"})
    can_remove_qk = True

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002  (for those who override it)
        """Describe the attentions of one layer."""
        raise NotCarriedOut(f"{type(self).__name__} does not describe its attentions; override attentions().")

    def matches(self, model: nn.Module) -> bool:
        """Tell whether the model's configuration is of this family."""
        return model_type(model) in self.model_types

    def projections(self, model: nn.Module) -> list[Projection]:
        """Read the table for every layer."""
        found: list[Projection] = []
        for name, layer in model.named_modules():
            if self.layer_classes.isdisjoint(base.__name__ for base in type(layer).__mro__):
                continue
            last = name.rpartition(".")[2]
            place = _Layer(layer, name, int(last) if last.isdigit() else 0)
            attentions = list(self.attentions(layer, model.config))
            for attention in attentions:
                found += place.attention(attention)
            found += [
                place.projection("ffn", path, attentions[0].site, transposed=self.ffn_transposed)
                for path in self.ffn
                if has(layer, path)
            ]
        return found

    def refuse(self, model: nn.Module, method: MethodSpec) -> None:
        """Refuse a key shift where a cache would forget what it needs."""
        if method.repair.key_shift:
            from oelm.models.repaired_attention import refuse_sliding_cache

            refuse_sliding_cache(model.config)

    def install(self, model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection]) -> None:
        """Hang the repairs into the attention function of `transformers`."""
        if repair.active():
            from oelm.models.repaired_attention import install

            install(model, repair, queries_and_keys)


def model_type(model: nn.Module) -> str | None:
    """Return the `model_type` of a model's configuration, where it has one."""
    return getattr(getattr(model, "config", None), "model_type", None)


def reach(module: Any, path: str) -> Any:
    """Follow a dotted path."""
    return reduce(getattr, path.split("."), module)


def has(module: Any, path: str) -> bool:
    """Tell whether a dotted path leads anywhere."""
    try:
        return reach(module, path) is not None
    except AttributeError:
        return False


def without_adapter(module: nn.Module) -> nn.Module:
    """Return the module that PEFT has wrapped, or the module itself."""
    while isinstance(inner := getattr(module, "base_layer", None), nn.Module):
        module = inner
    return module


@dataclass(frozen=True)
class _Layer:
    """One layer, and where it stands in its model."""

    module: nn.Module
    name: str
    number: int

    def attention(self, attention: Attention) -> Iterator[Projection]:
        """Yield the projections of one attention, its roles in order."""
        fused = attention.fused
        for role in _ROLES:
            heads = attention.heads(role)
            if role in attention.paths:
                path = attention.paths[role]
                yield self.projection(role, path, attention.site, heads, transposed=attention.transposed)
            elif fused is not None and attention.fused_path and role in dict(fused.rows):
                yield self.projection(role, attention.fused_path, attention.site, heads, fused=fused)

    def projection(
        self, role: Role, path: str, site: Site, heads: int = 1, *, transposed: bool = False, fused: Fused | None = None
    ) -> Projection:
        """Return the projection of one role at a path from this layer."""
        name = ".".join(filter(None, (self.name, path, role if fused else "")))
        module = without_adapter(reach(self.module, path))
        transposed = fused.transposed if fused else transposed
        return Projection(role, self.number, name, module, heads, site, transposed, fused)
