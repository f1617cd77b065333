"""Whether the regime of a study is representative: whether attention by content matters there as it does at scale.

A regime is the model, the data and the training, apart from learning rate, seed and machine. It is *representative* if

1. the lower 95 % bound of C, what content is worth, is at least twice the margin;
2. C changes by less than a fifth over the last doubling of tokens;
3. T beats P by at least 0.2 nats on tokens that complete a bigram already seen in the window.

Elsewhere "met" can be reached without any content, and the margin that counts is half the lower bound of C. A study
that did not measure C itself takes it from a study on record at the same regime.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from oelm.analysis.compare import Comparison, compare_folder
from oelm.analysis.content import Costs, Worth, content_worth, tuning_costs
from oelm.analysis.convergence import Curves, validation_curves
from oelm.analysis.evidence import Cell, cell_of, meaning
from oelm.analysis.measure import Judged, Measure, margin_of
from oelm.analysis.rows import Row
from oelm.errors import BadRecord, OelmError
from oelm.record.archive import opened_with_neighbours
from oelm.record.schema import MetricRecord
from oelm.record.stages import by_declaration
from oelm.record.store import STUDY, read_study
from oelm.record.window_losses import read_window_losses
from oelm.spec.content import frozen_arms
from oelm.study import Listing, Setting, Study, replaced

MARGINS = 2.0
"""C must be this many margins."""
MOST_CHANGE = 0.2
"""C must change by less than this share over the last doubling of tokens."""
LEAST_ON_REPEATS = 0.2
"""T must beat P by this many nats on repeats."""

_OF_THE_MACHINE = frozenset(
    f"train.{name}"
    for name in ("accumulation", "compiled", "device", "eval_every", "eval_tokens", "precision", "processes", "tf32",
                 "threads")
)  # fmt: skip
_OF_THE_TEXT = frozenset({"data.corpus", "data.tokens", "data.seed"})

CriterionName = Literal["worth", "doubling", "repeats"]


@dataclass(frozen=True)
class Criterion:
    """One of the three conditions: the measured value, what is required, and whether that is met (None: unknown)."""

    name: CriterionName
    value: float | None
    required: float
    is_met: bool | None


@dataclass(frozen=True)
class Regime:
    """What is known about one regime from the arms of one study."""

    study: str
    cell: Cell
    measure: Measure
    worth: Worth
    against_reference: float | None
    """log ppl(P) - log ppl(reference), where the reference is another arm than T."""
    reference: str
    change: float | None
    """C at the end over C at half the tokens, minus one; None without curves."""
    on_repeats: float | None
    """Nats by which T beats P on repeats; None where it was not measured."""
    margin: float
    """Of the study that asks."""
    costs: Costs
    """Log perplexities of T and P."""
    checksums: frozenset[str | None]
    """Of the data that T and P were trained on."""
    same_text: bool = True
    """Whether it is the regime that was asked about; False: the same model and training on another text."""

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The three conditions."""
        lower, needed = self.worth.lower, MARGINS * self.margin
        change, repeats = self.change, self.on_repeats
        return (
            Criterion("worth", lower, needed, None if lower is None else lower >= needed),
            Criterion("doubling", change, MOST_CHANGE, None if change is None else abs(change) < MOST_CHANGE),
            Criterion("repeats", repeats, LEAST_ON_REPEATS, None if repeats is None else repeats >= LEAST_ON_REPEATS),
        )

    @property
    def is_representative(self) -> bool | None:
        """False if one condition is violated, True if all are met, None while some are unknown."""
        found = [criterion.is_met for criterion in self.criteria]
        return False if False in found else None if None in found else True


def regimes_of(comparison: Comparison, complaints: list[str]) -> list[Regime]:
    """Return what a study's own arms say about its regime, for each place on the axes and position scheme."""
    study = comparison.study
    if comparison.measure.name != "perplexity" or not study.content_arms:
        return []
    found = []
    for cell, costs, judged in _costs(comparison):
        for arms in study.content_arms:
            worth = content_worth(arms, costs)
            if worth is None:
                continue
            trained, position = (_row(comparison, name, cell) for name in (arms.trained, arms.position))
            other = costs.get(study.reference, {}) if study.reference != arms.trained else {}
            own = costs.get(arms.position, {})
            behind = [own[seed] - other[seed] for seed in own if seed in other]
            found.append(
                Regime(
                    study=study.name,
                    cell=cell,
                    measure=Measure("perplexity", judged),
                    worth=worth,
                    against_reference=statistics.fmean(behind) if behind else None,
                    reference=study.reference,
                    change=_change(trained, position, complaints),
                    on_repeats=_on_repeats(trained, position, complaints),
                    margin=judged_margin(comparison),
                    costs={name: costs[name] for name in (arms.trained, arms.position)},
                    checksums=_checksums(trained, position),
                )
            )
    return found


def judged_margin(comparison: Comparison) -> float:
    """Return the margin that a regime is measured by: a margin of half of C would make any regime representative."""
    return margin_of(comparison.measure) if comparison.study.margin == "content" else comparison.margin


def _costs(comparison: Comparison) -> Iterator[tuple[Cell, Costs, Judged]]:
    """Yield the log perplexities by place: those that the study is judged by, or validation where it is a screen."""
    study, choice = comparison.study, comparison.stage.choice
    if not study.is_screen:
        for cell in comparison.cells:
            rows = [row for row in comparison.rows if row.cell == cell]
            yield cell, {row.arm: row.by_seed for row in rows}, comparison.judged
    elif choice is not None:
        records = by_declaration(item.record for item in comparison.tuning)
        for setting, chosen in zip(study.cells(), choice.cells, strict=True):
            yield _cell(study, setting), tuning_costs(study, setting, chosen, records), "val"


def _checksums(*rows: Row | None) -> frozenset[str | None]:
    return frozenset(item.spec.data.checksum for row in rows if row for item in row.evidence)


def _row(comparison: Comparison, arm: str, cell: Cell) -> Row | None:
    return next((row for row in comparison.rows if (row.arm, row.cell) == (arm, cell)), None)


def _cell(study: Study, setting: Setting) -> Cell:
    return cell_of(study, replaced(study.base, setting))


def _change(trained: Row | None, position: Row | None, complaints: list[str]) -> float | None:
    if trained is None or position is None:
        return None
    return change_over_last_doubling(validation_curves(trained, complaints), validation_curves(position, complaints))


def change_over_last_doubling(trained: Curves, position: Curves) -> float | None:
    """Return C(N) / C(N/2) - 1 from the validation curves, means over shared seeds; infinite where C(N/2) <= 0.

    None where no shared seed has both curves up to one last step N, with a point at or before N/2.
    """
    ends, halves = [], []
    for seed in trained:
        curves = (trained[seed], position.get(seed, []))
        if not all(curves) or len({points[-1].step for points in curves}) > 1:
            continue
        at_half = [loss_at(points, points[-1].step / 2) for points in curves]
        if at_half[0] is not None and at_half[1] is not None:
            ends.append(curves[1][-1].loss - curves[0][-1].loss)
            halves.append(at_half[1] - at_half[0])
    if not ends:
        return None
    half = statistics.fmean(halves)
    return statistics.fmean(ends) / half - 1 if half > 0 else math.inf


def loss_at(points: Sequence[MetricRecord], step: float) -> float | None:
    """Return a curve's loss at a step, on a straight line against log steps; None before its first point."""
    for before, after in itertools.pairwise(points):
        if 0 < before.step <= step <= after.step and before.step < after.step:
            share = math.log(step / before.step) / math.log(after.step / before.step)
            return before.loss + share * (after.loss - before.loss)
    return None


def _on_repeats(trained: Row | None, position: Row | None, complaints: list[str]) -> float | None:
    """Return by how many nats T beats P on repeats, the mean over shared seeds; None where it was not measured."""
    if trained is None or position is None:
        return None
    own, other = (_repeats(row, complaints) for row in (trained, position))
    gains = [other[place] - own[place] for place in own if place in other]
    return statistics.fmean(gains) if gains else None


def _repeats(row: Row, complaints: list[str]) -> dict[tuple[int, str], float]:
    """Return seed and split -> mean loss on repeats."""
    found: dict[tuple[int, str], float] = {}
    for item in row.evidence:
        try:
            losses = read_window_losses(item.directory)
        except BadRecord as error:
            complaints.append(str(error))
            continue
        if losses is not None and losses.repeats.mean is not None:
            found[item.spec.seed, losses.split] = losses.repeats.mean
    return found


def find_regimes(comparison: Comparison, root: Path | None, complaints: list[str]) -> dict[Cell, Regime]:
    """Return what is known about the regime at each place on the axes: measured here, else next to `root`.

    A study of the same regime counts before one of the same model and training on another text; of several schemes or
    studies the one with the most seeds.
    """
    study = comparison.study
    if comparison.measure.name != "perplexity" or not study.is_language:
        return {}
    found: dict[Cell, Regime] = {}
    for regime in regimes_of(comparison, complaints):
        found.setdefault(regime.cell, regime)
    if root is None:
        return found
    missing = {cell: setting for setting in study.cells() if (cell := _cell(study, setting)) not in found}
    if not missing:
        return found
    with opened_with_neighbours(root) as own:
        for cell, setting in missing.items():
            candidates = _elsewhere(comparison, setting, own, complaints)
            best = max(candidates, key=lambda regime: (regime.same_text, regime.worth.value.pairs), default=None)
            if best is not None:
                found[cell] = _asked_by(comparison, cell, best)
    return found


def _asked_by(comparison: Comparison, cell: Cell, regime: Regime) -> Regime:
    """Return a regime as seen by a study that did not measure it: with its margin, and what its own frozen arms keep.

    T and P of the other study are paired with the frozen arms here by seed: they saw the same data in the same order.
    """
    methods = {arm.name: arm.method for arm in comparison.study.arms if not arm.model}
    rows = [_row(comparison, name, cell) for name in frozen_arms(methods, regime.worth.arms.scheme)]
    paired = regime.same_text and regime.measure == comparison.measure
    own = {row.arm: row.by_seed for row in rows if paired and row and _checksums(row) == regime.checksums}
    arms = replace(regime.worth.arms, frozen=tuple(own))
    worth = content_worth(arms, {**own, **regime.costs})
    return replace(regime, margin=judged_margin(comparison), worth=worth or regime.worth)


def _elsewhere(comparison: Comparison, setting: Setting, root: Path, complaints: list[str]) -> Iterator[Regime]:
    """Yield the regimes that other studies in the same folder measured, if their model and training are those here."""
    study = comparison.study
    for folder in sorted(path.parent for path in root.resolve().parent.glob(f"*/{STUDY}")):
        try:
            other = read_study(folder)
            if folder == root.resolve() or isinstance(other, Listing) or not other.content_arms:
                continue
            cells = {_cell(other, cell): differing(study, setting, other, cell) for cell in other.cells()}
            if any(differs <= _OF_THE_TEXT for differs in cells.values()):
                for regime in regimes_of(compare_folder(other, folder), complaints):
                    if cells[regime.cell] <= _OF_THE_TEXT:
                        yield replace(regime, same_text=not cells[regime.cell])
        except OelmError as error:
            complaints.append(f"{folder.name}: {error}")


def differing(one: Study, own: Setting, other: Study, its: Setting) -> set[str]:
    """Name the fields in which the regimes of two studies differ, each at one place on its axes."""
    apart = {*_OF_THE_MACHINE, "train.learning_rate", "train.min_learning_rate", *one.tuned, *other.tuned}
    first, second = (_fields(study, setting, apart) for study, setting in ((one, own), (other, its)))
    return {field for field in {**first, **second} if first.get(field) != second.get(field)}


def _fields(study: Study, setting: Setting, apart: set[str]) -> Mapping[str, Any]:
    fields = meaning(replaced(study.base, setting))
    kept = ("model.", "data.", "train.")
    return {field: value for field, value in fields.items() if field.startswith(kept) and field not in apart}
