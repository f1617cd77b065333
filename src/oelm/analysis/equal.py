"""Compare arms at an equal budget: tokens, processor time, FLOPs, or trained parameters.

Runs of a study train for equally many tokens. A method that makes a step cheaper could train longer in the same time,
and one that makes it dearer less long. So both validation curves are read off where the cheaper one ends:

    x_end = min(x(arm), x(reference)),  difference = loss(arm, x_end) - loss(reference, x_end)

with straight lines between the points. The curve that is cut off there has a learning rate that has not decayed yet, so
the difference overstates the loss of whichever side is cut: a bound for a dearer arm, not an estimate. To decide, train
the two sides for an equal budget.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from oelm.analysis.compare import Comparison
from oelm.analysis.convergence import Curves
from oelm.analysis.evidence import Cell, Evidence
from oelm.analysis.price import kind_of
from oelm.analysis.rows import Row
from oelm.analysis.savings import is_same_machine, step_flops
from oelm.analysis.statistics import Difference, paired_difference
from oelm.record.schema import MetricRecord

Budget = Literal["tokens", "processor", "seconds", "flops"]
Side = Literal["arm", "reference"]
AS_MANY = 0.02
"""Arms train equally many parameters if their numbers differ by no more than this share."""
NEGLIGIBLE = 0.005
"""Budgets that differ by less than this share are equal: no curve is cut."""

Line = list[tuple[float, float]]
"""Budget spent and validation loss, in order of the budget."""


@dataclass(frozen=True)
class AtEqualBudget:
    """An arm against the reference where the cheaper of the two has ended."""

    arm: str
    cell: Cell
    budget: Budget
    difference: Difference
    """Of the validation losses there, over paired seeds."""
    share: float
    """Budget of the whole arm as a share of the reference's, the mean over seeds."""
    cut: Side | None
    """Whose curve was cut off; None where both end at the same budget."""
    crossing: float | None
    """Where the mean curves last cross, as a share of the compared budget; None where one is ahead all the way."""


@dataclass(frozen=True)
class AsManyParameters:
    """An arm against one that trains Q and K and has equally many trained parameters in all."""

    arm: str
    control: str
    cell: Cell
    difference: Difference


def at_equal_budgets(comparison: Comparison, curves: Mapping[tuple[str, Cell], Curves]) -> list[AtEqualBudget]:
    """Compare every arm with the reference at every budget that the records know."""
    found = []
    for row in comparison.rows:
        reference = comparison.reference(row.cell)
        if comparison.measure.name != "perplexity" or row.arm == reference.arm:
            continue
        for budget in _budgets(row, reference, curves):
            lines = _paired_lines(row, reference, curves, budget)
            if lines:
                found.append(_compare(row, budget, lines))
    return found


def with_as_many_parameters(comparison: Comparison) -> list[AsManyParameters]:
    """Compare every arm that freezes with the nearest fully trained arm of as many trained parameters, if any."""
    found = []
    kinds = {arm.name: kind_of(arm.method) for arm in comparison.study.arms}
    for row in comparison.rows:
        trained = [other for other in comparison.rows if other.cell == row.cell and kinds[other.arm] == "trained"]
        near = [(gap, other) for other in trained if (gap := _gap(row, other)) is not None and gap <= AS_MANY]
        if kinds[row.arm] == "trained" or not near:
            continue
        _, control = min(near, key=lambda pair: pair[0])
        shared = [row.by_seed[seed] - control.by_seed[seed] for seed in row.by_seed if seed in control.by_seed]
        if shared:
            difference = paired_difference(shared, margin=comparison.margin)
            found.append(AsManyParameters(row.arm, control.arm, row.cell, difference))
    return found


def mean_line(row: Row, curves: Curves, budget: Budget) -> Line:
    """Return an arm's curve over a budget, the mean of its seeds at the points that all of them have."""
    lines = [line for item in row.evidence if (line := _line(item, curves, budget))]
    return [
        (statistics.fmean(x for x, _ in points), statistics.fmean(loss for _, loss in points))
        for points in zip(*lines, strict=False)
    ]


def _budgets(row: Row, reference: Row, curves: Mapping[tuple[str, Cell], Curves]) -> list[Budget]:
    """Name the budgets to compare at: processor time where it was measured, else wall time."""
    sides = (row, reference)
    measured = all(
        point.processor_seconds is not None
        for side in sides
        for points in curves.get((side.arm, side.cell), {}).values()
        for point in points
    )
    return ["tokens", "processor" if measured else "seconds", "flops"]


def _meter(item: Evidence, budget: Budget) -> Callable[[MetricRecord], float | None] | None:
    """Return a function from a point of a run's curve to the budget spent there; None if its record does not know."""
    record = item.record
    if budget == "tokens":
        per_step = record.result.train_tokens / record.step if record.result and record.step else None
    elif budget == "flops":
        moves = item.spec.method.schedule.moves  # what a step costs changes on the way then
        per_step = step_flops(record.cost) if record.cost and not moves else None
    else:
        return lambda point: point.processor_seconds if budget == "processor" else point.seconds
    return None if per_step is None else lambda point: point.step * per_step


def _paired_lines(
    row: Row, reference: Row, curves: Mapping[tuple[str, Cell], Curves], budget: Budget
) -> list[tuple[Line, Line]]:
    own, other = ({item.spec.seed: item for item in side.evidence} for side in (row, reference))
    pairs = []
    for seed, item in own.items():
        if seed not in other or (budget in ("processor", "seconds") and not is_same_machine(item, other[seed])):
            continue
        lines = (
            _line(item, curves.get((row.arm, row.cell), {}), budget),
            _line(other[seed], curves.get((reference.arm, reference.cell), {}), budget),
        )
        if all(len(line) > 1 for line in lines):
            pairs.append(lines)
    return pairs


def _line(item: Evidence, curves: Curves, budget: Budget) -> Line:
    spent = _meter(item, budget)
    points = curves.get(item.spec.seed, ())
    line = [(x, point.loss) for point in points if spent and (x := spent(point)) is not None]
    grows = all(before < after for (before, _), (after, _) in pairwise(line))
    return line if grows else []  # a clock that stood still does not say what was spent


def _compare(row: Row, budget: Budget, pairs: Sequence[tuple[Line, Line]]) -> AtEqualBudget:
    ends = [min(own[-1][0], other[-1][0]) for own, other in pairs]
    differences = [_at(own, end) - _at(other, end) for (own, other), end in zip(pairs, ends, strict=True)]
    share = statistics.fmean(own[-1][0] / other[-1][0] for own, other in pairs)
    cut: Side | None = None if abs(share - 1) < NEGLIGIBLE else "arm" if share > 1 else "reference"
    crossing = _last_crossing(pairs, statistics.fmean(ends))
    return AtEqualBudget(row.arm, row.cell, budget, paired_difference(differences), share, cut, crossing)


def _at(line: Line, x: float) -> float:
    """Read a curve off at a budget within it."""
    place = min(max(bisect_left(line, (x, float("-inf"))), 1), len(line) - 1)
    (before, high), (after, low) = line[place - 1], line[place]
    return high + (low - high) * (x - before) / (after - before)


def _last_crossing(pairs: Sequence[tuple[Line, Line]], end: float) -> float | None:
    """Return where the mean difference last changes its sign, as a share of the end."""
    start = max(max(own[0][0], other[0][0]) for own, other in pairs)
    grid = sorted({x for pair in pairs for line in pair for x, _ in line if start <= x <= end} | {end})
    gaps = [statistics.fmean(_at(own, x) - _at(other, x) for own, other in pairs) for x in grid]
    for number in range(len(grid) - 1, 0, -1):
        if gaps[number - 1] * gaps[number] < 0:
            share = gaps[number - 1] / (gaps[number - 1] - gaps[number])
            return (grid[number - 1] + share * (grid[number] - grid[number - 1])) / end
    return None


def _gap(row: Row, other: Row) -> float | None:
    if row.parameters is None or other.parameters is None:
        return None
    return abs(row.parameters.trainable / other.parameters.trainable - 1)
