"""Learning-rate multipliers: by role, by layer, and geometric by depth."""

from __future__ import annotations

import re
from collections.abc import Iterable

from oelm.errors import BadShape
from oelm.method.projection import Projection
from oelm.method.schedule import resolve_layers
from oelm.spec.method import RatesSpec

_NUMBER = re.compile(r"(?<![^.])\d+(?=\.)")

_EMBEDDING = re.compile(r"embed|(^|\.)(wte|wpe|shared)\.")
"""What lies before the layers, as our GPT, BERT and its kin, GPT-2 and T5 name it."""


def layer_prefixes(projections: Iterable[Projection]) -> dict[str, int]:
    """Map the dotted name of each layer ('blocks.3') to its number, as the projections in it tell it."""
    layers: dict[str, set[int]] = {}
    for projection in projections:
        for number in _NUMBER.finditer(projection.name):
            layers.setdefault(projection.name[: number.end()], set()).add(projection.layer)
    # Numbers may stand before that of the layer, as in '1.layers.0': the shortest name that means one layer counts.
    alone = {prefix: only.pop() for prefix, only in layers.items() if len(only) == 1}
    return {prefix: layer for prefix, layer in alone.items() if not any(prefix.startswith(f"{p}.") for p in alone)}


def multipliers(names: Iterable[str], projections: list[Projection], rates: RatesSpec) -> dict[str, float]:
    """Return the learning-rate multiplier of each parameter name.

    With depth decay r and L layers, layer l has r^(L-1-l), what lies before the layers (embeddings) r^L and what
    lies behind them 1. Tied tensors have one name, that of the embedding, and so the smallest rate.
    """
    prefixes = layer_prefixes(projections)
    depth = 1 + max(prefixes.values(), default=-1)
    by_layer = _by_layer(rates, depth)
    roles = {projection.name: projection.role for projection in projections}
    result = {}
    for name in names:
        layer = next((number for prefix, number in prefixes.items() if name.startswith(prefix + ".")), None)
        factor = 1.0
        if layer is not None:
            factor = by_layer.get(layer, 1.0) * rates.layer_decay ** (depth - 1 - layer)
        elif _EMBEDDING.search(name):
            factor = rates.layer_decay**depth
        role = roles.get(name.rpartition(".")[0])
        result[name] = factor * (rates.roles.get(role, 1.0) if role else 1.0)
    return result


def _by_layer(rates: RatesSpec, depth: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for layer, factor in rates.layers.items():
        number = resolve_layers((layer,), depth)[0]
        if number in found:
            raise BadShape(
                f"rates.layers names layer {number} twice: {number - depth}, from the end, is the same. Name one."
            )
        found[number] = factor
    return found
