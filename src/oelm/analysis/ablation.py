"""What freezing, scale and orthogonality each do, one step of the way at a time.

    trained --freezing--> frozen as drawn --scale--> frozen, matched scale --orthogonality--> frozen orthogonal

Each step changes one thing, so that in log perplexity the steps add up to the whole way. *Frozen as drawn* is the
host's own draw (N(0, 0.02) is our GPT's; pretrained weights as they are): it differs from the trained arm by freezing
alone. The *matched* control is Gaussian with each head rescaled to the norm of an orthogonal one: it differs from the
frozen draw by scale, and from the orthogonal arm by orthogonality. Without it the last two steps are one, and the
published "orthogonal beats random" cannot be told from "larger logits beat smaller ones".

Arms are found by what their method is, never by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from oelm.analysis.compare import Comparison
from oelm.analysis.fairness import Cell
from oelm.analysis.measure import judge
from oelm.analysis.rows import Row
from oelm.analysis.statistics import Difference
from oelm.spec.method import InitSpec, MethodSpec

StepName = Literal["freezing", "scale", "orthogonality", "scale-and-orthogonality", "all", "whole"]
Rung = Literal["trained", "drawn", "matched", "orthogonal"]

_NAMES: dict[tuple[Rung, Rung], StepName] = {
    ("trained", "drawn"): "freezing",
    ("drawn", "matched"): "scale",
    ("matched", "orthogonal"): "orthogonality",
    ("drawn", "orthogonal"): "scale-and-orthogonality",
    ("trained", "orthogonal"): "all",
}


@dataclass(frozen=True)
class Step:
    """From one arm to another."""

    name: StepName
    start: str
    end: str
    difference: Difference | None
    """Of cost, end minus start; None where no seed is shared."""


@dataclass(frozen=True)
class Ablation:
    """The steps at one place on the axes, and the whole way."""

    cell: Cell
    steps: tuple[Step, ...]
    whole: Step

    @property
    def separates(self) -> bool:
        """Whether scale and orthogonality can be told apart."""
        return any(step.name == "orthogonality" for step in self.steps)


def rung(method: MethodSpec) -> Rung | None:
    """Tell which rung of the ladder a method is; None for one that changes something else as well."""
    plain = MethodSpec(init=method.init, freeze=method.freeze)
    if method != plain:
        return None
    if not method.freeze.roles:
        from_current = method.init.shape == "orthogonal" and method.init.source == "current"
        return "trained" if method.init == InitSpec() or from_current else None
    if set(method.freeze.roles) != {"q", "k"} or method.freeze.layers is not None:
        return None
    init = method.init
    if init.gain != 1.0 or init.correlation or init.scope != "head":
        return None
    kinds: dict[str, Rung] = {
        "host": "drawn",
        "normal": "matched" if init.matched else "drawn",
        "orthogonal": "orthogonal",
    }
    return kinds.get(init.shape)


def ablations(comparison: Comparison) -> list[Ablation]:
    """Split the way from the trained arm to the orthogonal one, at each place on the axes that has both ends."""
    found = [_ablation(comparison, cell) for cell in comparison.cells]
    return [item for item in found if item]


def _ablation(comparison: Comparison, cell: Cell) -> Ablation | None:
    methods = {arm.name: arm.method for arm in comparison.study.arms if not arm.model}
    rows = [row for row in comparison.rows if row.cell == cell and row.arm in methods and row.costs]
    ladder: dict[Rung, Row] = {}
    for name in ("trained", "drawn", "matched", "orthogonal"):
        candidates = [row for row in rows if rung(methods[row.arm]) == name]
        if candidates:
            ladder[name] = min(candidates, key=_preference(comparison, methods))
    if "orthogonal" not in ladder or len(ladder) < 2:
        return None

    def step(start: Row, end: Row, name: StepName) -> Step:
        judged = judge(comparison.measure, end.by_seed, start.by_seed, comparison.margin)
        return Step(name, start.arm, end.arm, judged.difference if judged else None)

    present = list(ladder.items())
    steps = tuple(
        step(start, end, _NAMES.get((first, second), "freezing")) for (first, start), (second, end) in pairwise(present)
    )
    return Ablation(cell, steps, step(present[0][1], present[-1][1], "whole"))


def _preference(comparison: Comparison, methods: dict[str, MethodSpec]) -> Callable[[Row], tuple[bool, bool]]:
    """Prefer the study's reference, then the host's own draw, then the order of the arms."""
    return lambda row: (row.arm != comparison.study.reference, methods[row.arm].init.shape != "host")
