"""Which layers are frozen at a step, and the learning-rate multipliers of parameters.

Both are pure functions, so that a resumed run needs no saved state for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from oelm.errors import BadShape
from oelm.method.projection import Projection
from oelm.spec.method import Change, Layers, MethodSpec, Moment, RatesSpec, Sweep


@dataclass(frozen=True)
class Event:
    """One layer freezes or unfreezes at the beginning of a step."""

    step: int
    layer: int
    freezes: bool


def resolve_layers(layers: Layers | None, num_layers: int) -> list[int]:
    """Return layer numbers without negative ones, which count from the last layer; None means all."""
    if layers is None:
        return list(range(num_layers))
    for layer in layers:
        if not -num_layers <= layer < num_layers:
            raise BadShape(
                f"The method names layer {layer}, but the model has {num_layers} layers, numbered 0 to "
                f"{num_layers - 1} or -{num_layers} to -1. Name one of these."
            )
    return sorted({layer % num_layers for layer in layers})


class Timeline:
    """The schedule of one method on a model of `num_layers`, in a training of `steps`."""

    def __init__(self, method: MethodSpec, num_layers: int, steps: int) -> None:
        self.every = method.schedule.every
        self.steps = steps
        self.frozen_by_method = frozenset(
            resolve_layers(method.freeze.layers, num_layers) if method.freeze.roles else ()
        )
        self.events = sorted(
            (event for change in method.schedule.changes for event in self._expand(change, num_layers)),
            key=lambda event: event.step,
        )
        others = sorted({event.layer for event in self.events} - self.frozen_by_method)
        if others:
            raise BadShape(
                f"The schedule changes layers {others}, which the method does not freeze (it freezes "
                f"{sorted(self.frozen_by_method)}). Add them to freeze.layers or leave them out."
            )

    def frozen_layers(self, step: int) -> frozenset[int]:
        """Return the layers whose roles are frozen during a step (numbered from 0)."""
        if self.every and (step + 1) % self.every == 0:
            return frozenset()
        return frozenset(layer for layer in self.frozen_by_method if self._is_frozen(layer, step))

    def _is_frozen(self, layer: int, step: int) -> bool:
        mine = [event for event in self.events if event.layer == layer]
        # A layer whose first change freezes it has trained before; every other layer starts frozen.
        state = not (mine and mine[0].freezes)
        for event in mine:
            if event.step <= step:
                state = event.freezes
        return state

    def _expand(self, change: Change | Sweep, num_layers: int) -> list[Event]:
        freezes = change.action == "freeze"
        if isinstance(change, Change):
            layers = (
                sorted(self.frozen_by_method) if change.layers is None else resolve_layers(change.layers, num_layers)
            )
            return [Event(self._step(change.at), layer, freezes) for layer in layers]
        layers = sorted(self.frozen_by_method, reverse=change.order == "last-to-first")
        start, stop = self._step(change.start), self._step(change.stop)
        gaps = max(len(layers) - 1, 1)
        return [
            Event(start + round(place * (stop - start) / gaps), layer, freezes) for place, layer in enumerate(layers)
        ]

    def _step(self, moment: Moment) -> int:
        return round(moment * self.steps) if isinstance(moment, float) else moment


# Learning-rate multipliers by role, by layer, and geometric by depth.

_NUMBER = re.compile(r"(?<![^.])\d+(?=\.)")

_EMBEDDING = re.compile(r"embed|(^|\.)(wte|wpe|shared)\.")
"""Names of the embeddings in our GPT, the BERT families, GPT-2 and T5."""


def layer_prefixes(projections: Iterable[Projection]) -> dict[str, int]:
    """Return the dotted name of each layer ('blocks.3') with its number, found from the projections in it."""
    layers: dict[str, set[int]] = {}
    for projection in projections:
        for number in _NUMBER.finditer(projection.name):
            layers.setdefault(projection.name[: number.end()], set()).add(projection.layer)
    # The number of the layer need not be the first, as in '1.layers.0': the shortest name of exactly one layer counts.
    alone = {prefix: only.pop() for prefix, only in layers.items() if len(only) == 1}
    return {prefix: layer for prefix, layer in alone.items() if not any(prefix.startswith(f"{p}.") for p in alone)}


def multipliers(names: Iterable[str], projections: list[Projection], rates: RatesSpec) -> dict[str, float]:
    """Return the learning-rate multiplier of each parameter name.

    With depth decay r and L layers, layer l has r^(L-1-l), the embeddings before the layers have r^L, and parameters
    after the layers have 1. Tied tensors have one name, that of the embedding, and so the smallest rate.
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
                f"rates.layers names layer {number} twice: {number - depth} counts from the last layer. Name it once."
            )
        found[number] = factor
    return found
