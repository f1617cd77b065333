"""Where Q and K are in a model of an unknown family: where the user says they are, by the names of the modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

from torch import nn

from oelm.errors import BadShape, InvalidSpec, NotCarriedOut, UnknownName
from oelm.method.projection import Architecture, Projection
from oelm.models.families.layered import without_adapter
from oelm.spec.method import NamesSpec, Role

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
