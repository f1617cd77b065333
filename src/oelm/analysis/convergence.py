"""How fast arms learn: the area under the validation curve, and when each reaches the reference's final loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell
from oelm.analysis.rows import Row
from oelm.analysis.statistics import CONFIDENCE, Interval, interval_of_mean
from oelm.errors import BadRecord
from oelm.record.schema import MetricRecord
from oelm.record.store import read_metrics

Curves = dict[int, list[MetricRecord]]
"""Seed -> the validation points of its run, in order of steps."""


@dataclass(frozen=True)
class Reached:
    """When a curve first was at a loss, between two of its points by a straight line."""

    steps: float
    seconds: float


@dataclass(frozen=True)
class Convergence:
    """One arm's way, over its seeds. None where no curve allows the figure."""

    arm: str
    cell: Cell
    seeds: int
    area: float | None
    """Mean height of the validation curve over training, in nats."""
    area_interval: Interval | None
    """Of its paired difference to the reference's."""
    reached: tuple[Reached, ...]
    """Of the seeds that came to the final loss of the reference with the same seed."""
    missed: int
    """How many of the shared seeds never came to it."""
    step_shares: tuple[float, ...]
    """Steps to that loss as a share of the reference's own, one for each shared seed. A seed that never comes to it
    counts with all its steps: it would have needed more."""

    @property
    def steps(self) -> float | None:
        """Mean steps of those that reached it."""
        return statistics.fmean(item.steps for item in self.reached) if self.reached else None

    @property
    def seconds(self) -> float | None:
        """Mean training seconds of those that reached it."""
        return statistics.fmean(item.seconds for item in self.reached) if self.reached else None


def validation_curves(row: Row, complaints: list[str]) -> Curves:
    """Read the curves of a row's runs; what cannot be read is told and left out."""
    found: Curves = {}
    for item in row.evidence:
        try:
            metrics = read_metrics(item.directory)
        except BadRecord as error:
            complaints.append(str(error))
            continue
        points = [point for point in metrics if point.kind == "val" and math.isfinite(point.loss)]
        if points:
            found[item.spec.seed] = sorted(points, key=lambda point: point.step)
    return found


def convergence_of(comparison: Comparison, curves: dict[tuple[str, Cell], Curves]) -> list[Convergence]:
    """Measure every arm's way against the reference's."""
    found = []
    for row in comparison.rows:
        own, other = curves.get((row.arm, row.cell), {}), curves.get((comparison.study.reference, row.cell), {})
        if own:
            found.append(convergence(row, own, other))
    return found


def convergence(row: Row, own: Curves, other: Curves) -> Convergence:
    """Measure one arm's way by its curves, against another's."""
    areas = {seed: area for seed, points in own.items() if (area := area_under(points)) is not None}
    references = {seed: area for seed, points in other.items() if (area := area_under(points)) is not None}
    shared = [areas[seed] - references[seed] for seed in areas if seed in references]
    reached = {seed: reaching(points, other[seed][-1].loss) for seed, points in own.items() if seed in other}
    shares = [_step_share(own[seed], found, other[seed]) for seed, found in reached.items()]
    return Convergence(
        arm=row.arm,
        cell=row.cell,
        seeds=len(own),
        area=statistics.fmean(areas.values()) if areas else None,
        area_interval=interval_of_mean(shared, CONFIDENCE),
        reached=tuple(item for item in reached.values() if item),
        missed=sum(item is None for item in reached.values()),
        step_shares=tuple(share for share in shares if share is not None),
    )


def _step_share(own: Sequence[MetricRecord], found: Reached | None, other: Sequence[MetricRecord]) -> float | None:
    """Return None where the reference began at its final loss."""
    theirs = reaching(other, other[-1].loss)
    if theirs is None or not theirs.steps:
        return None
    return (found.steps if found else own[-1].step) / theirs.steps


def area_under(points: Sequence[MetricRecord]) -> float | None:
    """Return the mean height of a curve between its first and last point; None for fewer than two points."""
    if len(points) < 2 or points[-1].step == points[0].step:
        return None
    area = math.fsum((b.step - a.step) * (a.loss + b.loss) / 2 for a, b in pairwise(points))
    return area / (points[-1].step - points[0].step)


def reaching(points: Sequence[MetricRecord], loss: float) -> Reached | None:
    """Return when a curve first came down to a loss; None if it never did."""
    for number, point in enumerate(points):
        if point.loss <= loss:
            before = points[number - 1] if number else point
            fall = before.loss - point.loss
            share = (before.loss - loss) / fall if fall else 1.0
            return Reached(
                before.step + share * (point.step - before.step),
                before.seconds + share * (point.seconds - before.seconds),
            )
    return None
