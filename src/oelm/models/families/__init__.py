"""The known families of models, and how other packages register theirs.

`huggingface.py` says where Q and K are in the models of `transformers`. All others are here: our own GPT, any model
with torch's attention, and models of unknown families, where the user says which modules they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, cast

from torch import nn

from oelm.errors import BadShape, InvalidSpec, NotCarriedOut, UnknownName
from oelm.method.freeze import APPLIED, Applied, refuse_features
from oelm.method.projection import Architecture, Projection
from oelm.method.repair import (
    FoldedRepair,
    KeyMix,
    KeyShift,
    PositionBias,
    PositionFeatures,
    QKNorm,
    QueryBias,
    Temperature,
)
from oelm.method.split import Fused
from oelm.models.families.huggingface import FAMILIES, REFUSED, model_type, without_adapter
from oelm.models.gpt import GPT, Attention, Block
from oelm.models.linear import SlicedLinear
from oelm.spec.method import MethodSpec, NamesSpec, RepairSpec, Role, Site, heads_of


class OwnGPT(Architecture):
    """Our GPT. Each role has its own module, so nothing is split."""

    name = "gpt"
    repairs = frozenset(RepairSpec.model_fields)
    can_remove_qk = True

    def matches(self, model: nn.Module) -> bool:
        """Return whether `model` is our GPT."""
        return isinstance(model, GPT)

    def projections(self, model: nn.Module) -> list[Projection]:
        """List q, k, v, o and the two feed-forward maps of every block; q and k may be absent."""
        spec = cast("GPT", model).spec
        heads: dict[Role, int] = {"q": spec.num_heads, "k": spec.key_heads, "v": spec.key_heads, "o": 1}
        found = []
        for layer, block in enumerate(_blocks(model)):
            for role, num_heads in heads.items():
                module = getattr(block.attention, role)
                if module is not None:
                    found.append(Projection(role, layer, f"blocks.{layer}.attention.{role}", module, num_heads))
            found += [
                Projection("ffn", layer, f"blocks.{layer}.ffn.{name}", module)
                for name, module in block.ffn.named_children()
                if isinstance(module, nn.Linear)
            ]
        return found

    def refuse(self, model: nn.Module, method: MethodSpec) -> None:
        """Refuse position features that leave no content, and a low-rank repair of full rank."""
        spec, rank = cast("GPT", model).spec, method.repair.low_rank
        content_size = refuse_features(method, spec.qk_size)
        full = min(spec.model_dim, spec.key_heads * content_size)
        if rank and rank >= full:
            raise BadShape(
                f"repair.low_rank={rank} was requested, but Q and K have a rank of at most {full}. Choose a smaller "
                "one, or train Q and K."
            )

    def narrow(self, model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Narrow Q and K of every block."""
        for block in _blocks(model):
            attention = block.attention
            attention.narrow(attention.spec.qk_size - 2 * repair.num_frequencies(attention.spec.qk_size))

    def install(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Add the repairs to every attention."""
        for block in _blocks(model):
            attention = block.attention
            _add_repairs(attention, method.repair)
            # A head that looks for the same token must find it at any distance, so it has no rotary positions.
            attention.unrotated_key_heads = heads_of(method.init.same_heads, attention.spec.key_heads)
            attention.to(attention.v.weight.device)

    def remove_qk(self, model: nn.Module, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Remove Q and K; attention is then uniform."""
        for block in _blocks(model):
            block.attention.q = block.attention.k = None
            block.attention.content_size = 0

    def specialise(self, model: nn.Module, projection: Projection) -> None:
        """Replace a frozen map that reads coordinates by one without a matrix product."""
        attention = cast("Block", cast("GPT", model).blocks[projection.layer]).attention
        setattr(attention, projection.role, SlicedLinear(cast("nn.Linear", projection.module)))


def _add_repairs(attention: Attention, repair: RepairSpec) -> None:
    spec, q, k = attention.spec, attention.q, attention.k
    if repair.position_features:
        number = repair.num_frequencies(spec.qk_size)
        attention.position_features = PositionFeatures(spec.num_heads, spec.key_heads, number, spec.context)
    if repair.position_bias:
        attention.position_bias = PositionBias(spec.num_heads, spec.context)
    if q is None or k is None:
        return
    # There is one core per pair of query and key head, on the side of the queries, which may have more heads.
    attention.query_fold = FoldedRepair.of(repair, spec.num_heads, q.weight, core=repair.core)
    attention.key_fold = FoldedRepair.of(repair, spec.key_heads, k.weight, core=False)
    if repair.query_bias:
        attention.query_bias = QueryBias(spec.num_heads, attention.content_size)
    if repair.qk_norm:
        attention.qk_norm = QKNorm()
    if repair.key_shift:
        attention.key_shift = KeyShift(repair.key_shift, spec.key_heads)
    if repair.key_mix:
        attention.key_mix = KeyMix(spec.key_heads)
    if repair.temperature or repair.qk_norm:
        attention.temperature = Temperature(spec.num_heads)


def _blocks(model: nn.Module) -> list[Block]:
    return cast("list[Block]", list(cast("GPT", model).blocks))


class TorchAttention(Architecture):
    """Any model with `nn.MultiheadAttention`, also inside nn.TransformerEncoder, -Decoder and Transformer.

    `in_proj_weight` packs queries, keys and values. Layers are numbered by site in the order of the model. The fast
    path of nn.TransformerEncoderLayer reads the same packed tensor, which a split module still has.
    """

    name = "torch"
    models = "`nn.MultiheadAttention`, `nn.TransformerEncoder`, ..."
    sites: tuple[Site, ...] = ("self", "encoder", "decoder", "cross")
    can_remove_qk = True

    def where(self) -> str:
        """Say how Q and K are stored, for the table of families."""
        return "packed"

    def matches(self, model: nn.Module) -> bool:
        """Return whether the model contains torch's attention."""
        return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())

    def projections(self, model: nn.Module) -> list[Projection]:
        """List q, k, v, o of every attention, and the feed-forward maps of torch's layers."""
        found: list[Projection] = []
        seen: Counter[Site] = Counter()
        modules = dict(model.named_modules())
        whole = any(isinstance(module, nn.Transformer) for module in modules.values())
        for name, module in modules.items():
            if not isinstance(module, nn.MultiheadAttention):
                continue
            parent_name, _, own_name = name.rpartition(".")
            parent = modules[parent_name]
            site = _site(parent, own_name, whole=whole)
            found += _attention(name, module, seen[site], site)
            if own_name == "self_attn" and isinstance(parent, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                found += [
                    Projection("ffn", seen[site], _join(parent_name, linear), getattr(parent, linear), site=site)
                    for linear in ("linear1", "linear2")
                ]
            seen[site] += 1
        return found


def _attention(name: str, module: nn.MultiheadAttention, layer: int, site: Site) -> list[Projection]:
    if module.in_proj_weight is None:
        raise NotCarriedOut(
            f"{name or 'This nn.MultiheadAttention'} was made with kdim or vdim, which torch stores unpacked. "
            "Give keys and values the size of the queries, or register an architecture."
        )
    size = module.embed_dim
    fused = Fused((("q", size), ("k", size), ("v", size)), weight="in_proj_weight", bias="in_proj_bias")
    roles: tuple[Role, ...] = ("q", "k", "v")
    found = [Projection(role, layer, _join(name, role), module, module.num_heads, site, fused=fused) for role in roles]
    return [*found, Projection("o", layer, _join(name, "out_proj"), module.out_proj, site=site)]


def _site(parent: nn.Module, name: str, *, whole: bool) -> Site:
    if isinstance(parent, nn.TransformerDecoderLayer):
        return "cross" if name == "multihead_attn" else "decoder"
    return "encoder" if whole and isinstance(parent, nn.TransformerEncoderLayer) else "self"


def _join(*names: str) -> str:
    return ".".join(filter(None, names))


_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "encoder_attention_heads")
_NUMBER = re.compile(r"(?<![^.])\d+(?=\.|$)")


class NamedFamily(Architecture):
    """A family that `NamesSpec` describes. Its attention is not known, so repairs and `uniform` are refused.

    An attention is found by the name of its queries; the other roles are next to them. Attentions whose names differ
    only in numbers are the layers of one stack, numbered from 0.
    """

    name = "named"

    def __init__(self, names: NamesSpec) -> None:
        self.names = names

    def matches(self, model: nn.Module) -> bool:
        """Return whether the model has modules with the names of queries and keys."""
        names = [name for name, _ in model.named_modules()]
        return all(any(_ends(name, part) for name in names) for part in (self.names.q, self.names.k))

    def projections(self, model: nn.Module) -> list[Projection]:
        """List the named projections, layer by layer."""
        modules = {name: without_adapter(module) for name, module in model.named_modules()}
        prefixes = _prefixes(modules, self.names)
        seen: Counter[str] = Counter()
        layers: dict[str, int] = {}
        found: list[Projection] = []
        for prefix in prefixes:
            stack = _NUMBER.sub("#", prefix)
            layers[prefix] = seen[stack]
            seen[stack] += 1
            found += self._attention(model, modules, prefix, layers[prefix])
        for name in self._feed_forward(modules):
            layer = layers[max(prefixes, key=lambda prefix: _num_shared(prefix, name))]
            found.append(_projection("ffn", layer, name, modules[name]))
        return found

    def _attention(
        self, model: nn.Module, modules: Mapping[str, nn.Module], prefix: str, layer: int
    ) -> list[Projection]:
        query, key = (_rows(modules[prefix + part], prefix + part) for part in (self.names.q, self.names.k))
        config = _config(model, modules, prefix + self.names.q)
        heads = self.names.heads or _heads(config, prefix + self.names.q)
        key_heads = _key_heads(self.names, config, heads, query, key, prefix)
        counts: dict[Role, int] = {"q": heads, "k": key_heads, "v": key_heads, "o": 1}
        return [
            _projection(role, layer, prefix + part, modules[prefix + part], count)
            for role, count in counts.items()
            if (part := cast("str | None", getattr(self.names, role)))
        ]

    def _feed_forward(self, modules: Mapping[str, nn.Module]) -> list[str]:
        for part in self.names.ffn:
            if not any(_ends(name, part) for name in modules):
                raise _unknown("ffn", part, modules)
        return [name for name in modules if any(_ends(name, part) for part in self.names.ffn)]


def _prefixes(modules: Mapping[str, nn.Module], names: NamesSpec) -> list[str]:
    """Return what comes before the names of the roles in each attention."""
    found: dict[str, list[str]] = {}
    for role in ("q", "k", "v", "o"):
        part = getattr(names, role)
        if part is None:
            continue
        found[role] = [name.removesuffix(part) for name in modules if _ends(name, part)]
        if not found[role]:
            raise _unknown(role, part, modules)
    for role, prefixes in found.items():
        if lacking := [prefix for prefix in found["q"] if prefix not in prefixes]:
            raise BadShape(
                f"{lacking[0]}{names.q} is there, but not {lacking[0]}{getattr(names, role)}. Give names that follow "
                f"the same prefix in every layer, for example q='self.query', {role}='output.dense'."
            )
    return found["q"]


def _projection(role: Role, layer: int, name: str, module: nn.Module, heads: int = 1) -> Projection:
    _rows(module, name)
    return Projection(role, layer, name, module, heads, transposed=_is_transposed(module))


def _rows(module: nn.Module, name: str) -> int:
    weight = getattr(module, "weight", None)
    if getattr(weight, "ndim", 0) != 2 or isinstance(module, nn.Embedding):
        raise NotCarriedOut(
            f"{name} is a {type(module).__name__} and not a linear map. Give the name of a linear map, or write an "
            "oelm.Architecture; see docs/architectures.md."
        )
    return int(cast("Any", weight).shape[1 if _is_transposed(module) else 0])


def _is_transposed(module: nn.Module) -> bool:
    """Return whether a module stores its weight as (input, output), as the `Conv1D` of transformers does."""
    return any(base.__name__ == "Conv1D" for base in type(module).__mro__)


def _config(model: nn.Module, modules: Mapping[str, nn.Module], name: str) -> Any:
    """Return the configuration of the nearest module around a name that has one, or None."""
    while name:
        name = name.rpartition(".")[0]
        config = getattr(modules[name], "config", None)
        if config is not None:
            return config
    return getattr(model, "config", None)


def _heads(config: Any, name: str) -> int:
    for field in _HEADS:
        if isinstance(heads := getattr(config, field, None), int) and heads > 0:
            return heads
    raise InvalidSpec(f"The number of heads of {name} is not in the model's configuration. Give heads=.")


def _key_heads(names: NamesSpec, config: Any, heads: int, query: int, key: int, prefix: str) -> int:
    """Return the number of key heads from the shapes, unless they contradict what is known.

    A contradiction means that a map holds more than it says, for example queries with a gate.
    """
    size, rest = divmod(query, heads)
    key_heads = names.key_heads or (key // size if size else 0)
    expected = None if names.heads else getattr(config, "head_dim", None)
    known = None if names.key_heads or names.heads else getattr(config, "num_key_value_heads", None)
    fits = not rest and key_heads > 0 and key == key_heads * size and heads % key_heads == 0
    if not fits or expected not in (None, size) or known not in (None, key_heads):
        raise BadShape(
            f"{prefix}{names.q} has {query} rows and {names.k} has {key}, which are not {heads} query heads and "
            f"{known or key_heads} key heads of one size{f' ({expected})' if expected else ''}. Give heads= and "
            "key_heads=, or the names of maps that hold nothing else."
        )
    return int(key_heads)


def _ends(name: str, part: str) -> bool:
    return name == part or name.endswith(f".{part}")


def _num_shared(prefix: str, name: str) -> int:
    """Return how many parts of two dotted names are equal from the start."""
    pairs = zip(prefix.split("."), name.split("."), strict=False)
    return next((count for count, (one, two) in enumerate(pairs) if one != two), prefix.count(".") + 1)


def _unknown(role: str, part: str, modules: Mapping[str, nn.Module]) -> UnknownName:
    linear = {
        name.rpartition(".")[2] for name, module in modules.items() if getattr(module, "weight", None) is not None
    }
    return UnknownName(f"module of this model for {role}", part, linear, "Names are the last parts of dotted names.")


# The known families, in the order in which they are tried.

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
