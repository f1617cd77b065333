"""When which layers are frozen: a pure function of the step, so that a resumed run needs no memory of it."""

from __future__ import annotations

from dataclasses import dataclass

from oelm.errors import BadShape
from oelm.spec.method import Change, Layers, MethodSpec, Moment, Sweep


@dataclass(frozen=True)
class Event:
    """One layer freezes or unfreezes as a step begins."""

    step: int
    layer: int
    freezes: bool


def resolve_layers(layers: Layers | None, num_layers: int) -> list[int]:
    """Turn layer numbers, negative ones counted from the end, into plain ones; None means all."""
    if layers is None:
        return list(range(num_layers))
    for layer in layers:
        if not -num_layers <= layer < num_layers:
            raise BadShape(
                f"layer {layer} was named, but the model has {num_layers} layers, numbered 0 to "
                f"{num_layers - 1} or -{num_layers} to -1. Name one of these."
            )
    return sorted({layer % num_layers for layer in layers})


def step_of(moment: Moment, steps: int) -> int:
    """Return the step of a moment: a float is a fraction of training."""
    return round(moment * steps) if isinstance(moment, float) else moment


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
        self._refuse_foreign_layers()

    def frozen_layers(self, step: int) -> frozenset[int]:
        """Return the layers whose roles are frozen during a step (numbered from 0)."""
        if self.every and (step + 1) % self.every == 0:
            return frozenset()
        return frozenset(layer for layer in self.frozen_by_method if self._frozen(layer, step))

    def _frozen(self, layer: int, step: int) -> bool:
        mine = [event for event in self.events if event.layer == layer]
        # What is frozen first must have trained before; everything else starts frozen.
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
            return [Event(step_of(change.at, self.steps), layer, freezes) for layer in layers]
        layers = sorted(self.frozen_by_method, reverse=change.order == "last-to-first")
        start, stop = step_of(change.start, self.steps), step_of(change.stop, self.steps)
        gaps = max(len(layers) - 1, 1)
        return [
            Event(start + round(place * (stop - start) / gaps), layer, freezes) for place, layer in enumerate(layers)
        ]

    def _refuse_foreign_layers(self) -> None:
        foreign = sorted({event.layer for event in self.events} - self.frozen_by_method)
        if foreign:
            raise BadShape(
                f"the schedule changes layers {foreign}, which the method does not freeze (it freezes "
                f"{sorted(self.frozen_by_method)}). Add them to freeze.layers or leave them out."
            )
