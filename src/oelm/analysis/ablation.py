"""Separate the effects of freezing, scale and orthogonality, one step at a time.

    trained --freezing--> frozen as drawn --scale--> frozen, matched scale --orthogonality--> frozen orthogonal

Each step changes one thing, so in log perplexity the steps add up to the whole. *Frozen as drawn* is the model's own
draw (N(0, 0.02) for our GPT): it differs from the trained arm by freezing alone. The *matched* control is Gaussian with
each head rescaled to the norm of an orthogonal one: it differs from the frozen draw by scale, and from the orthogonal
arm by orthogonality. Without it, "orthogonal beats random" cannot be separated from "larger logits beat smaller ones".

On a pretrained model a fresh draw also discards what Q and K have learned, so the ladder there has only the fresh
draws, from the Gaussian on. Arms made from the current weights are on no ladder: matched and orthogonal ones keep
different amounts of what was learned.

Two steps are apart from the ladder: freezing alone, where two arms start alike and one is frozen (`baseline` and
`frozen-as-is` on a pretrained model), and the form of the orthogonal rows (one QR for all heads, or slices, instead of
one QR per head).

Arms are recognised by their method, never by their name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Literal

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell, Row, judge
from oelm.analysis.statistics import Difference
from oelm.spec.method import INITIAL_DEVIATION, InitSpec, MethodSpec
from oelm.spec.run import GPTSpec, HuggingFaceSpec

StepName = Literal[
    "freezing", "scale", "orthogonality", "freezing-and-scale", "scale-and-orthogonality", "all", "form", "whole"
]
Rung = Literal["trained", "drawn", "matched", "orthogonal"]

_NAMES: dict[tuple[Rung, Rung], StepName] = {
    ("trained", "drawn"): "freezing",
    ("drawn", "matched"): "scale",
    ("trained", "matched"): "freezing-and-scale",
    ("matched", "orthogonal"): "orthogonality",
    ("drawn", "orthogonal"): "scale-and-orthogonality",
    ("trained", "orthogonal"): "all",
}
_OTHER_FORMS = (InitSpec(shape="orthogonal", scope="global"), InitSpec(shape="slice"), InitSpec(shape="hadamard"))


@dataclass(frozen=True)
class AblationStep:
    """The difference between two arms that differ in one thing."""

    name: StepName
    start: str
    end: str
    difference: Difference | None
    """Difference of cost, end minus start; None if no seed is shared."""


@dataclass(frozen=True)
class Ablation:
    """The steps at one place on the axes and their total: a ladder, or a single step apart from it."""

    cell: Cell
    steps: tuple[AblationStep, ...]
    whole: AblationStep

    @property
    def apart(self) -> bool:
        """Whether this is freezing or the form alone, apart from any ladder."""
        return [step.name for step in self.steps] in (["freezing"], ["form"])

    @property
    def confounded(self) -> bool:
        """Whether scale and orthogonality cannot be separated."""
        return not self.apart and all(step.name != "orthogonality" for step in self.steps)


def is_frozen(method: MethodSpec) -> bool:
    """Whether a method freezes Q and K in all layers during all of training, and otherwise only changes their start."""
    freeze = method.freeze
    alone = method == MethodSpec(init=method.init, freeze=freeze)
    return alone and set(freeze.roles) == {"q", "k"} and freeze.layers is None


def find_rung(
    method: MethodSpec, *, pretrained: bool = False, deviation: float | str = INITIAL_DEVIATION
) -> Rung | None:
    """Return the rung of the ladder that a method is on; None if it changes something else as well.

    `deviation` is that of the model's own draw: a frozen Gaussian counts as drawn only if it has the same deviation.
    """
    init = method.init
    if method == MethodSpec():
        return None if pretrained else "trained"
    if not is_frozen(method) or init.gain != 1.0 or init.correlation or (init.scope, init.source) != ("head", "fresh"):
        return None
    if init.shape == "host":
        return None if pretrained else "drawn"
    if init.shape == "normal":
        as_drawn = init.deviation == deviation  # another deviation changes the scale as well
        return "matched" if init.matched else "drawn" if as_drawn else None
    return "orthogonal" if init.shape == "orthogonal" else None


def ablations(comparison: Comparison) -> list[Ablation]:
    """Return the ladder to the orthogonal arm at each place on the axes, then the steps of freezing or form alone."""
    return [item for cell in comparison.cells for item in _ablate(comparison, cell)]


def _ablate(comparison: Comparison, cell: Cell) -> Iterator[Ablation]:
    methods = {arm.name: arm.method for arm in comparison.study.arms if not arm.model}
    rows = [row for row in comparison.rows if row.cell == cell and row.arm in methods and row.costs]

    def step(start: Row, end: Row, name: StepName) -> AblationStep:
        judged = judge(comparison.measure, end.by_seed, start.by_seed, comparison.margin)
        return AblationStep(name, start.arm, end.arm, judged.difference if judged else None)

    present = list(_build_ladder(comparison, rows, methods).items())
    steps = tuple(step(start, end, _NAMES[first, second]) for (first, start), (second, end) in pairwise(present))
    if steps:
        yield Ablation(cell, steps, step(present[0][1], present[-1][1], "whole"))
    known = {(item.start, item.end) for item in steps}
    for start, end in permutations(rows, 2):
        if starts_alike(methods[start.arm], methods[end.arm]) and (start.arm, end.arm) not in known:
            alone = step(start, end, "freezing")
            yield Ablation(cell, (alone,), alone)
        if present and start is present[-1][1] and is_another_form(methods[end.arm]):
            alone = step(start, end, "form")
            yield Ablation(cell, (alone,), alone)


def _build_ladder(comparison: Comparison, rows: Sequence[Row], methods: dict[str, MethodSpec]) -> dict[Rung, Row]:
    """Return the rungs that the study has, in order; none without an orthogonal one."""
    ladder: dict[Rung, Row] = {}
    for name in ("trained", "drawn", "matched", "orthogonal"):
        candidates = [row for row in rows if _rung_of(row, methods) == name]
        if candidates:
            ladder[name] = min(candidates, key=_preference(comparison, methods))
    return ladder if "orthogonal" in ladder else {}


def _rung_of(row: Row, methods: dict[str, MethodSpec]) -> Rung | None:
    model = row.evidence[0].spec.model
    deviation = model.initial_deviation if isinstance(model, GPTSpec) else INITIAL_DEVIATION
    return find_rung(methods[row.arm], pretrained=is_pretrained(row), deviation=deviation)


def starts_alike(free: MethodSpec, frozen: MethodSpec) -> bool:
    """Whether two methods differ by freezing alone."""
    return is_frozen(frozen) and free == MethodSpec(init=frozen.init)


def is_another_form(method: MethodSpec) -> bool:
    """Whether a method freezes fresh orthogonal rows that do not come from one QR per head."""
    return is_frozen(method) and method.init in _OTHER_FORMS


def is_pretrained(row: Row) -> bool:
    """Whether an arm's model is pretrained."""
    model = row.evidence[0].spec.model  # of the run: an axis may change the study's model
    return isinstance(model, HuggingFaceSpec) and model.pretrained


def _preference(comparison: Comparison, methods: dict[str, MethodSpec]) -> Callable[[Row], tuple[bool, bool]]:
    """Prefer the study's reference, then the model's own draw, then the order of the arms."""
    return lambda row: (row.arm != comparison.study.reference, methods[row.arm].init.shape != "host")
