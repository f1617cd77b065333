"""The results of tuning: each arm's score over the grid, and how much a wrong setting costs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.analysis.budgets import qk_trained
from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell, Evidence, cell_of, format_value
from oelm.record.stages import is_grid_end
from oelm.spec.study import SIZE, field_at

ROUNDED = 1.02
"""Transferred values are rounded to three digits, so half a step may be a little more."""


@dataclass(frozen=True)
class Point:
    """One value of the tuned field: the scores of its seeds, at the best of the other tuned fields' values."""

    value: Any
    scores: tuple[float, ...]
    """Scores of the complete runs; less is better."""
    diverged: int
    directories: tuple[Path, ...] = ()
    """Folders of all runs at this value."""

    @property
    def mean(self) -> float:
        """The mean score; infinite if a seed diverged, because such a setting cannot be chosen."""
        return math.inf if self.diverged or not self.scores else statistics.fmean(self.scores)


@dataclass(frozen=True)
class Misfit:
    """A value that an arm took over at a checked size although another one of the grid is better there."""

    arm: str
    size: str
    used: Any
    best: Any


def misfits(comparison: Comparison) -> list[Misfit]:
    """Find the arms whose value at a checked size is more than half a step of the grid from the best one there."""
    choice = comparison.stage.choice
    return [
        Misfit(own.arm, str(cell.axes.get(SIZE)), own.values[field], best)
        for cell in (choice.cells if choice else ())
        for own in cell.arms
        for field, best in (own.best_here or {}).items()
        if not _is_near(own.values[field], best, cell.grid[field])
    ]


def _is_near(used: Any, best: Any, grid: Sequence[Any]) -> bool:
    numbers = [*grid, used]
    if any(not isinstance(value, int | float) or value <= 0 for value in numbers):
        return bool(used == best)
    logs = sorted(math.log(value) for value in grid)
    steps = [after - before for before, after in itertools.pairwise(logs)]
    return abs(math.log(used / best)) <= ROUNDED * min(steps, default=0.0) / 2


@dataclass(frozen=True)
class Sensitivity:
    """An arm's curve over the first tuned field."""

    arm: str
    cell: Cell
    field: str
    points: tuple[Point, ...]
    chosen: Any
    """The chosen value; None before tuning is complete."""
    at_edge: bool
    qk: float | None
    """The trained parameters of Q and K, repairs included, as a share of the reference's Q and K."""

    @property
    def best(self) -> float | None:
        """The least mean score on the grid; None if every setting diverged."""
        finite = [point.mean for point in self.points if math.isfinite(point.mean)]
        return min(finite, default=None)

    @property
    def penalty(self) -> float | None:
        """How much worse the worse neighbour of the best value is; None if the best value has no neighbour."""
        if self.best is None:
            return None
        means = [point.mean for point in self.points]
        place = means.index(self.best)
        neighbours = [means[n] for n in (place - 1, place + 1) if 0 <= n < len(means)]
        return max(neighbours) - means[place] if neighbours else None


def sensitivities(comparison: Comparison) -> list[Sensitivity]:
    """Collect the tuning records by arm, place on the axes and value of the first tuned field.

    The reference comes first, then the other arms as declared, or in a screen by their best score.
    """
    study = comparison.study
    if not study.tuned:
        return []
    field = next(iter(study.tuned))
    cells = list(dict.fromkeys(cell_of(study, item.spec) for item in comparison.tuning))
    found = []
    for cell in cells:
        here = [item for item in comparison.tuning if cell_of(study, item.spec) == cell]
        reference = [item for item in here if item.arm == study.reference]
        for arm in sorted((arm.name for arm in study.arms), key=lambda name: name != study.reference):
            own = [item for item in here if item.arm == arm]
            points = _points(own, field, [name for name in study.tuned if name != field])
            if points:
                chosen, at_edge = _choice(comparison, arm, cell, field)
                qk = qk_trained(own[0], reference[0]) if reference else None
                found.append(Sensitivity(arm, cell, field, points, chosen, at_edge, qk))
    if study.is_screen:
        found.sort(key=lambda item: (cells.index(item.cell), item.arm != study.reference, item.best or math.inf))
    return found


def _points(evidence: list[Evidence], field: str, others: list[str]) -> tuple[Point, ...]:
    settings: dict[Any, dict[tuple[Any, ...], list[Evidence]]] = {}
    for item in evidence:
        rest = tuple(str(field_at(item.spec, name)) for name in others)
        settings.setdefault(field_at(item.spec, field), {}).setdefault(rest, []).append(item)
    points = []
    for value, by_rest in settings.items():
        candidates = [_point(value, items) for items in by_rest.values()]
        points.append(min(candidates, key=lambda point: point.mean))
    numeric = all(isinstance(point.value, int | float) for point in points)
    ended = [point for point in points if point.scores or point.diverged]
    return tuple(sorted(ended, key=lambda point: point.value) if numeric else ended)


def _point(value: Any, evidence: list[Evidence]) -> Point:
    scores, diverged = [], 0
    for item in evidence:
        score = item.record.result.tuning_score if item.record.result else math.nan
        if item.record.failure == "diverged" or (item.record.status == "complete" and not math.isfinite(score)):
            diverged += 1
        elif item.record.status == "complete":
            scores.append(score)
    return Point(value, tuple(scores), diverged, tuple(item.directory for item in evidence))


def _choice(comparison: Comparison, arm: str, cell: Cell, field: str) -> tuple[Any, bool]:
    choice = comparison.stage.choice
    for chosen in choice.cells if choice else ():
        if tuple((axis, format_value(value)) for axis, value in chosen.axes.items()) == cell:
            own = next(item for item in chosen.arms if item.arm == arm)
            return own.values[field], is_grid_end(chosen.grid[field], own.values[field])
    return None, False
