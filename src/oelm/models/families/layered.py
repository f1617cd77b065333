"""What all families built of numbered layers share: a table says where the roles are, this reads it.

Nothing here imports `transformers`: a model is known by the `model_type` of its configuration and its layers by
the names of their classes, so that models of other families cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from math import gcd
from types import MappingProxyType
from typing import Any, cast

from torch import nn

from oelm.errors import BadShape, NotCarriedOut
from oelm.method.projection import Architecture, Projection
from oelm.method.refuse import refuse_features
from oelm.method.repair import Fold, QueryBias
from oelm.method.split import Content, Fused, Split, narrow_norm
from oelm.models.sliced import Coordinates
from oelm.spec.method import MethodSpec, Role, Site
from oelm.spec.repair import POSITION_REPAIRS, RepairSpec

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
    roles: Mapping[Role, str] = MappingProxyType({})
    """Role -> path of its module, from the layer, where each role has a module of its own."""
    ffn: tuple[str, ...] = ()
    """Paths of the feed-forward maps, from the layer."""
    ffn_transposed = False
    # Attention that goes through transformers' attention interface can be repaired there.
    repairs = frozenset(RepairSpec.model_fields) - {"qk_norm"}
    can_remove_qk = True

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[Attention]:  # noqa: ARG002  (for overriding classes)
        """Describe the attentions of one layer: here one self-attention with a module for each of the `roles`."""
        if not self.roles:
            raise NotCarriedOut(f"{type(self).__name__} has no `roles`; name them, or override attentions().")
        key_heads = getattr(config, "num_key_value_heads", None)
        yield Attention("self", config.num_attention_heads, key_heads, paths=dict(self.roles))

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

    def num_rotated(self, attention: nn.Module) -> int:  # noqa: ARG002  (for families with rotary positions)
        """Return how many coordinates of each head are turned by rotary positions, in pairs (i, i + half of them)."""
        return 0

    def norms(self, attention: nn.Module, role: Role) -> Iterable[nn.Module]:  # noqa: ARG002  (likewise)
        """Return the norms over the coordinates of a head that this role's output goes through."""
        return ()

    def context(self, model: nn.Module) -> int:
        """Return the largest number of tokens that the model takes at once."""
        return int(cast("Any", model).config.max_position_embeddings)

    def refuse(self, model: nn.Module, method: MethodSpec) -> None:
        """Refuse what does not fit this model: features, residuals, a cache that forgets, attention without masks."""
        repair = method.repair
        in_reach = [
            each
            for each in self.projections(model)
            if each.role in ("q", "k") and (method.sites is None or each.site in method.sites)
        ]
        if not repair.active():
            return
        from oelm.models.repaired_attention import refuse_sliding_cache, refuse_unmasked

        if repair.key_shift or repair.key_mix:
            refuse_sliding_cache(cast("Any", model).config)
        if repair.position_bias:
            refuse_unmasked(cast("Any", model).config)
        if POSITION_REPAIRS & set(repair.active()) and all(each.site == "cross" for each in in_reach):
            raise NotCarriedOut(
                "position_features and position_bias act on self-attention, where queries and keys have a distance, "
                "and the method reaches cross-attention only. Add another site, or leave them off."
            )
        for projection in in_reach:
            size = projection.whole_head_size
            if repair.position_features and projection.site != "cross":
                refuse_features(method, size)
                size = self._content(model, projection, repair, absent=method.init.shape == "absent").size
            _refuse_rank(repair.low_rank, projection, size)

    def _content(self, model: nn.Module, projection: Projection, repair: RepairSpec, *, absent: bool) -> Content:
        """Return which coordinates of a head position features leave to content."""
        head_size = projection.whole_head_size
        size = head_size - 2 * repair.num_frequencies(head_size)
        if absent:
            return Content(head_size, 0)
        rotated = self.num_rotated(_attention_of(model, projection))
        if size >= rotated:
            return Content(head_size, size)
        if rotated < head_size:
            raise BadShape(
                f"Position features would leave {size} coordinates of each head to content, but rotary positions turn "
                f"the first {rotated} of {head_size} in pairs. Choose position_features of at most "
                f"{(head_size - rotated) // 2}."
            )
        return Content(head_size, size, runs=gcd(head_size, size))

    def narrow(self, model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection]) -> None:
        """Leave the rows out of Q and K, at sites with distances, whose coordinates features will fill."""
        for projection in queries_and_keys:
            if projection.site != "cross":
                self._narrow(model, projection, self._content(model, projection, repair, absent=False))

    def _narrow(self, model: nn.Module, projection: Projection, content: Content) -> None:
        projection.set_apart().narrow(content, projection.num_heads)
        for norm in self.norms(_attention_of(model, projection), projection.role):
            narrow_norm(norm, content)

    def remove_qk(self, model: nn.Module, queries_and_keys: list[Projection]) -> None:
        """Leave all rows out of Q and K: no products, no parameters; the logits are zero."""
        for projection in queries_and_keys:
            self._narrow(model, projection, Content(projection.shape[1], 0))

    def set_apart(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Split Q and K where something will act on their weights."""
        repair = method.repair
        if method.slices_stay or repair.low_rank or repair.diagonal or repair.core or repair.query_bias:
            for projection in queries_and_keys:
                projection.set_apart()

    def install(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:
        """Fold repairs into the weights and add the others to the attention function of `transformers`."""
        repair, same = method.repair, method.init.same_heads
        turned = [each for each in queries_and_keys if same and self.num_rotated(_attention_of(model, each))]
        if not repair.active() and not turned:
            return
        from oelm.models.repaired_attention import attention_name, install, turn_back

        contents = {}
        for projection in queries_and_keys:
            part = projection.part
            absent = part is not None and part.is_absent
            if part is not None and not absent:
                # One core per pair of query and key head: on the side of the queries, of which grouped heads have more.
                core = repair.core and projection.role == "q"
                fold = Fold.of(repair, projection.num_heads, part.matrix, core=core)
                part.oelm_fold = None if fold is None else fold.to(part.weight.device)
                if repair.query_bias and projection.role == "q":
                    num_heads, content_size, _ = projection.shape
                    part.oelm_query_bias = QueryBias(num_heads, content_size).to(part.weight.device)
            if repair.position_features and projection.site != "cross":
                content = self._content(model, projection, repair, absent=absent)
                contents[attention_name(projection)] = content
        by_attention: dict[str, dict[str, Projection]] = {}
        for projection in turned:
            by_attention.setdefault(attention_name(projection), {})[projection.role] = projection
        for name, roles in by_attention.items():
            attention = model.get_submodule(name)
            norms = {role: list(self.norms(attention, projection.role)) for role, projection in roles.items()}
            turn_back(attention, roles, same, self.num_rotated(attention), norms)
        install(
            model,
            repair,
            queries_and_keys,
            context=self.context(model),
            contents=contents,
            attentions={attention_name(each) for each in self.projections(model) if each.role in ("q", "k")},
        )

    def specialise(self, model: nn.Module, projection: Projection) -> None:  # noqa: ARG002
        """Read the coordinates of slices instead of multiplying; rows that training has changed are multiplied."""
        part = projection.part
        if part is not None:
            with suppress(ValueError):
                part.reader = Coordinates(part.matrix)


def _attention_of(model: nn.Module, projection: Projection) -> nn.Module:
    return model.get_submodule(projection.module_name.rpartition(".")[0])


def _refuse_rank(rank: int, projection: Projection, content_size: int) -> None:
    full = min(projection.num_heads * content_size, projection.shape[2])
    if rank and rank >= full:
        raise BadShape(
            f"repair.low_rank={rank} was requested on {projection.name}, whose rank is at most {full}. Choose a "
            "smaller one, or let Q and K train."
        )


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
        module = without_adapter(reach(self.module, path))
        if fused is None and isinstance(module, Split):  # a module of one role that was set apart
            fused = module.fused
        name = ".".join(filter(None, (self.name, path, role if fused else "")))
        transposed = fused.transposed if fused else transposed
        return Projection(role, self.number, name, module, heads, site, transposed, fused)
