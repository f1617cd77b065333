"""How fast arms learn: the area under the validation curve, and when it reaches the reference's final loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell, Row
from oelm.analysis.statistics import CONFIDENCE, Interval, interval_of_mean
from oelm.record.folder import read_metrics
from oelm.record.record import MetricRecord

SeedCurves = dict[int, list[MetricRecord]]
"""Seed -> the validation points of its run, in order of steps."""


@dataclass(frozen=True)
class Reached:
    """When a curve first reaches a loss, interpolated linearly between its points."""

    steps: float
    seconds: float


@dataclass(frozen=True)
class Convergence:
    """How fast one arm learns, over its seeds. Figures are None where no curve allows them."""

    arm: str
    cell: Cell
    seeds: int
    area: float | None
    """Mean height of the validation curve over training, in nats."""
    area_interval: Interval | None
    """Interval of its paired difference to the reference."""
    reached: tuple[Reached, ...]
    """When each seed reached the final loss of the reference with the same seed."""
    missed: int
    """How many shared seeds never reached it."""
    step_shares: tuple[float, ...]
    """Steps to that loss as a share of the reference's own, one for each shared seed. A seed that never reaches it
    counts with all its steps, which is a lower bound."""

    @property
    def steps(self) -> float | None:
        """Mean steps of the seeds that reached the loss."""
        return statistics.fmean(item.steps for item in self.reached) if self.reached else None

    @property
    def seconds(self) -> float | None:
        """Mean training seconds of the seeds that reached the loss."""
        return statistics.fmean(item.seconds for item in self.reached) if self.reached else None


def validation_curves(row: Row, complaints: list[str]) -> SeedCurves:
    """Read the curves of a row's runs. Unreadable files are left out and reported in `complaints`."""
    found: SeedCurves = {}
    complaints += [f"{item.directory.name}: {note}" for item in row.evidence for note in item.record.damage]
    for seed, metrics in row.read(lambda directory: read_metrics(directory, complaints), complaints).items():
        points = [point for point in metrics if point.kind == "val" and math.isfinite(point.loss)]
        if points:
            found[seed] = sorted(points, key=lambda point: point.step)
    return found


def convergence_of(comparison: Comparison, curves: dict[tuple[str, Cell], SeedCurves]) -> list[Convergence]:
    """Measure how fast every arm learns, compared with the reference."""
    found = []
    for row in comparison.rows:
        own, other = curves.get((row.arm, row.cell), {}), curves.get((comparison.study.reference, row.cell), {})
        if own:
            found.append(measure_convergence(row, own, other))
    return found


def measure_convergence(row: Row, own: SeedCurves, other: SeedCurves) -> Convergence:
    """Measure how fast one arm learns by its curves, compared with another's."""
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
    """Return steps as a share of the other arm's; None if that arm started at its final loss."""
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
    """Return when a curve first reaches a loss; None if it never does."""
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
