"""What arms cost: savings of time and memory, the trained share of Q and K, and comparisons at an equal budget.

Runs of a study train for equally many tokens, but a cheaper step would allow longer training in the same time. So
`at_equal_budgets` reads both validation curves where the cheaper run ends, with straight lines between their points:

    x_end = min(x(arm), x(reference)),  difference = loss(arm, x_end) - loss(reference, x_end)

The curve that is cut there has a learning rate that has not decayed yet, so the loss of that side is overstated: for a
more expensive arm the difference is a bound, not an estimate. To decide, train both sides for an equal budget.

The same curves show how fast arms learn: the area under them, and when they reach the reference's final loss.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import LOST, MACHINE, Cell, Evidence, Matrix, Row, judge
from oelm.analysis.statistics import CONFIDENCE, Difference, Interval, interval_of_mean, paired_difference
from oelm.record.folder import read_metrics
from oelm.record.record import CostRecord, MetricRecord
from oelm.spec.method import MethodSpec
from oelm.spec.run import RunSpec
from oelm.spec.study import Arm

# How fast arms learn.

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


# Savings of parameters, memory and time, next to the share of FLOPs that bounds them.

BEYOND_FLOPS = 0.05
"""What a step may save beyond its FLOPs: gradients that are not stored, clipped or applied (LOG.md: 2 points)."""
SINGLE_RUN_NOISE = 0.10
"""The difference that one pair of runs on a shared machine may have by chance."""


@dataclass(frozen=True)
class Saving:
    """The shares that one arm saves of the reference's cost; None if the records do not say.

    Under a schedule trained parameters and the cost of a step change during training, so they are None as well.
    """

    arm: str
    cell: Cell
    trained: float | None
    """Share of the trained parameters."""
    qk: float | None
    """The trained parameters of Q and K, repairs included, as a share of the reference's Q and K."""
    optimizer: float | None
    """Share of the optimiser's bytes."""
    memory: float | None
    """Share of the measured memory peak, the mean over seeds whose two runs used one machine."""
    flops: float | None
    """Share of a training step's FLOPs."""
    time: float | None
    """Share of the training seconds per step, the mean over seeds whose two runs used one machine."""
    time_interval: Interval | None
    times: dict[int, float] = field(default_factory=dict)
    """Seed -> the share of a step's time saved, for pairs of runs on one machine."""
    peaks: dict[int, float] = field(default_factory=dict)
    """Seed -> the share of the memory peak saved, for pairs of runs on one machine."""

    @property
    def unexplained(self) -> bool:
        """Whether more time was saved than the method can explain."""
        if self.time is None or self.flops is None:
            return False
        least = self.time_interval.low if self.time_interval else self.time - SINGLE_RUN_NOISE
        return least > self.flops + BEYOND_FLOPS


def qk_trained(run: Evidence, reference: Evidence) -> float | None:
    """Return the trained parameters of Q and K, repairs included, as a share of the reference's Q and K.

    Weights that a schedule unfreezes later count as trained. None if other parts are frozen too, and for old records
    that do not count Q and K.
    """
    own, whole = run.record.parameters, reference.record.parameters
    if not own or not whole or not whole.qk or not {"q", "k"}.issuperset(run.spec.method.freeze.roles):
        return None
    schedule = run.spec.method.schedule
    unfreezes = schedule.every is not None or any(change.action == "unfreeze" for change in schedule.later)
    frozen = 0 if unfreezes else min(own.frozen, own.qk)
    return (own.qk - frozen + own.repair) / whole.qk


def savings(
    comparison: Comparison, known_flop_share: Callable[[RunSpec], float | None] = lambda _: None
) -> list[Saving]:
    """Compare the cost of every arm with that of the reference.

    `known_flop_share` returns the share of a step's FLOPs that a run saves, for records that do not count FLOPs.
    """
    return [
        _saving(row, comparison.reference(row.cell), known_flop_share)
        for row in comparison.rows
        if row.arm != comparison.study.reference and row.evidence and comparison.reference(row.cell).evidence
    ]


def _saving(row: Row, reference: Row, known_flop_share: Callable[[RunSpec], float | None]) -> Saving:
    first, other = row.evidence[0], reference.evidence[0].record
    times, peaks = _pair_shares(row, reference, _step_seconds), _pair_shares(row, reference, _peak)
    # Records count parameters and FLOPs at the first step, which says little about a run that freezes or unfreezes.
    begun = None if first.spec.method.schedule.moves else first.record
    trained = (begun.parameters if begun else None, other.parameters)
    cost = (begun.cost if begun else None, other.cost)
    flops = 1 - step_flops(cost[0]) / step_flops(cost[1]) if cost[0] and cost[1] else None
    return Saving(
        arm=row.arm,
        cell=row.cell,
        trained=1 - trained[0].trainable / trained[1].trainable if trained[0] and trained[1] else None,
        qk=qk_trained(first, reference.evidence[0]),
        optimizer=1 - cost[0].optimizer_bytes / cost[1].optimizer_bytes if cost[0] and cost[1] else None,
        memory=statistics.fmean(peaks.values()) if peaks else None,
        flops=known_flop_share(first.spec) if begun and flops is None else flops,
        time=statistics.fmean(times.values()) if times else None,
        time_interval=interval_of_mean(list(times.values()), CONFIDENCE),
        times=times,
        peaks=peaks,
    )


def step_flops(cost: CostRecord) -> int:
    """Return the FLOPs of one training step."""
    return sum(cost.forward_flops.values()) + sum(cost.backward_flops.values())


def _pair_shares(row: Row, reference: Row, measured: Callable[[Evidence], float | None]) -> dict[int, float]:
    """Return the share saved for each shared seed whose records both have the figure.

    Seconds and bytes depend on the machine, so runs of two machines are not paired.
    """
    own, other = ({item.spec.seed: item for item in side.evidence} for side in (row, reference))
    pairs = [seed for seed in own if seed in other and is_same_machine(own[seed], other[seed])]
    measures = {seed: (measured(own[seed]), measured(other[seed])) for seed in pairs}
    return {seed: 1 - mine / theirs for seed, (mine, theirs) in measures.items() if mine and theirs}


def is_same_machine(one: Evidence, other: Evidence) -> bool:
    """Whether two runs used the same kind of machine and software, so that their seconds can be compared."""
    return all(getattr(one.record.environment, field) == getattr(other.record.environment, field) for field in MACHINE)


def _peak(item: Evidence) -> float | None:
    return item.record.result.peak_memory_bytes if item.record.result else None


def _step_seconds(item: Evidence) -> float | None:
    record = item.record
    if record.seconds is None:
        return None
    steps = record.step if record.seconds.timed_steps is None else record.seconds.timed_steps
    return record.seconds.train / steps if steps else None


# Which arm within a margin trains the least of Q and K, and what freezing costs when both sides have the same repair:
# a repaired frozen arm may be close only because the repair helps trained Q and K just as much.

CLOSE = math.log1p(0.01)
"""The second margin: a negligible loss, 1 % of perplexity."""

Kind = Literal["frozen", "partly", "trained"]
"""Whether no weight of Q and K is ever trained, some are (or all for some time), or all are."""


@dataclass(frozen=True)
class Cheapest:
    """The arm of a kind that meets a margin and trains the least of Q and K."""

    cell: Cell
    margin: float
    kind: Kind
    row: Row | None
    """The row as judged against this margin; None if no arm of the kind meets it."""
    share: float | None
    """Trained parameters, repairs included, as a share of the reference's Q and K."""


@dataclass(frozen=True)
class SameRepair:
    """The effect of a repair on trained Q and K, and the effect of freezing when both arms have the repair."""

    cell: Cell
    frozen: str
    control: str
    repair: Difference | None
    """Control minus reference."""
    freezing: Difference | None
    """Frozen arm minus control."""


def kind_of(method: MethodSpec) -> Kind:
    """Return how much of Q and K a method keeps frozen; without Q and K the answer is "frozen"."""
    freeze, schedule = method.freeze, method.schedule
    if method.init.shape == "absent":
        return "frozen"
    roles = {"q", "k"} & set(freeze.roles)
    if not roles:
        return "trained"
    always = not schedule.changes and schedule.every is None
    everywhere = freeze.layers is None and method.sites is None
    return "frozen" if always and everywhere and len(roles) == 2 else "partly"


def cheapest(comparison: Comparison) -> list[Cheapest]:
    """Return the cheapest arm of every kind for both margins; empty if no arm trains a part of Q and K.

    Each margin has its own verdicts, corrected for the family of arms like the study's.
    """
    if comparison.measure.name != "perplexity" or not any(0 < share < 1 for share in _shares(comparison).values()):
        return []
    kinds = {arm.name: kind_of(arm.method) for arm in comparison.study.arms}
    present = [kind for kind in get_args(Kind) if kind in kinds.values()]
    return [
        _find_cheapest(comparison, rows, kinds, (cell, margin, kind))
        for margin in dict.fromkeys((comparison.margin, CLOSE))
        for cell in comparison.cells
        if (rows := _judge_rows(comparison, cell, margin))
        for kind in present
    ]


def same_repairs(comparison: Comparison) -> list[SameRepair]:
    """Compare every repaired frozen arm with trained arms that have the same repair and model."""

    def difference(cell: Cell, end: str, start: str) -> Difference | None:
        costs = comparison.row(end, cell).by_seed, comparison.row(start, cell).by_seed
        judged = judge(comparison.measure, *costs, comparison.margin)
        return judged.difference if judged else None

    reference = comparison.study.reference
    return [
        SameRepair(
            cell, frozen.name, control.name,
            repair=difference(cell, control.name, reference), freezing=difference(cell, frozen.name, control.name),
        )
        for cell in comparison.cells
        for frozen in comparison.study.arms
        for control in _find_controls(comparison, frozen)
    ]  # fmt: skip


def _shares(comparison: Comparison) -> dict[tuple[str, Cell], float]:
    found = {
        (row.arm, row.cell): qk_trained(row.evidence[0], reference.evidence[0])
        for row in comparison.rows
        if row.evidence and (reference := comparison.reference(row.cell)).evidence
    }
    return {place: share for place, share in found.items() if share is not None}


def _judge_rows(comparison: Comparison, cell: Cell, margin: float) -> list[Row]:
    """Judge the rows of a cell against another margin."""
    rows = [row for row in comparison.rows if row.cell == cell]
    whole = {(row.arm, cell, item.spec.seed): item for row in rows for item in row.evidence}
    lost = {(gap.arm, gap.cell) for gap in comparison.gaps if gap.state in LOST}
    matrix = Matrix(comparison.study, comparison.measure, margin, whole, lost, comparison.waiting)
    return list(matrix.rows([row.arm for row in rows], cell))


def _find_cheapest(
    comparison: Comparison, rows: Sequence[Row], kinds: dict[str, Kind], place: tuple[Cell, float, Kind]
) -> Cheapest:
    cell, margin, kind = place
    shares = _shares(comparison)
    # The reference meets every margin: it is the answer where no arm that trains less does.
    met = [
        (shares[row.arm, cell], row.difference.mean if row.difference else 0.0, row)
        for row in rows
        if (row.verdict == "met" or row.arm == comparison.study.reference)
        if kinds[row.arm] == kind and (row.arm, cell) in shares
    ]
    share, _, row = min(met, key=lambda item: item[:2], default=(None, None, None))
    return Cheapest(cell, margin, kind, row, share)


def _find_controls(comparison: Comparison, frozen: Arm) -> Iterator[Arm]:
    method = frozen.method
    if kind_of(method) != "frozen" or not method.repair.active():
        return
    trained = MethodSpec(repair=method.repair, rates=method.rates, sites=method.sites)
    for arm in comparison.study.arms:
        if arm.name != comparison.study.reference and arm.method == trained and arm.model == frozen.model:
            yield arm


# Comparisons at an equal budget.

Budget = Literal["tokens", "processor", "seconds", "flops"]
Side = Literal["arm", "reference"]
AS_MANY = 0.02
"""Numbers of trained parameters that differ by at most this share count as equal."""
NEGLIGIBLE = 0.005
"""Budgets that differ by less than this share count as equal."""

Polyline = list[tuple[float, float]]
"""Budget spent and validation loss, in order of the budget."""


@dataclass(frozen=True)
class AtEqualBudget:
    """An arm compared with the reference at the budget where the cheaper of the two ends."""

    arm: str
    cell: Cell
    budget: Budget
    difference: Difference
    """Difference of the validation losses at that budget, over paired seeds."""
    share: float
    """The arm's whole budget as a share of the reference's, the mean over seeds."""
    cut: Side | None
    """Whose curve is cut; None if both end at the same budget."""
    crossing: float | None
    """Where the mean curves last cross, as a share of the compared budget; None if they never cross."""


@dataclass(frozen=True)
class AsManyParameters:
    """An arm compared with one that trains Q and K and has equally many trained parameters in total."""

    arm: str
    control: str
    cell: Cell
    difference: Difference


def at_equal_budgets(comparison: Comparison, curves: Mapping[tuple[str, Cell], SeedCurves]) -> list[AtEqualBudget]:
    """Compare every arm with the reference at every budget that the records contain."""
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
    """Compare every frozen arm with the fully trained arm nearest to it in trained parameters, within AS_MANY."""
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


def mean_line(row: Row, curves: SeedCurves, budget: Budget) -> Polyline:
    """Return an arm's curve over a budget, the mean of its seeds at the points that all of them have."""
    lines = [line for item in row.evidence if (line := _line(item, curves, budget))]
    return [
        (statistics.fmean(x for x, _ in points), statistics.fmean(loss for _, loss in points))
        for points in zip(*lines, strict=False)
    ]


def _budgets(row: Row, reference: Row, curves: Mapping[tuple[str, Cell], SeedCurves]) -> list[Budget]:
    """Return the budgets to compare at: processor time if it was measured, else wall time."""
    measured = all(
        point.processor_seconds is not None
        for side in (row, reference)
        for points in curves.get((side.arm, side.cell), {}).values()
        for point in points
    )
    return ["tokens", "processor" if measured else "seconds", "flops"]


def _meter(item: Evidence, budget: Budget) -> Callable[[MetricRecord], float | None] | None:
    """Return a function from a point of a run's curve to the budget spent so far; None if its record lacks it."""
    record = item.record
    if budget == "tokens":
        per_step = record.result.train_tokens / record.step if record.result and record.step else None
    elif budget == "flops":
        moves = item.spec.method.schedule.moves  # the cost of a step changes during training then
        per_step = step_flops(record.cost) if record.cost and not moves else None
    else:
        return lambda point: point.processor_seconds if budget == "processor" else point.seconds
    return None if per_step is None else lambda point: point.step * per_step


def _paired_lines(
    row: Row, reference: Row, curves: Mapping[tuple[str, Cell], SeedCurves], budget: Budget
) -> list[tuple[Polyline, Polyline]]:
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


def _line(item: Evidence, curves: SeedCurves, budget: Budget) -> Polyline:
    spent = _meter(item, budget)
    points = curves.get(item.spec.seed, ())
    line = [(x, point.loss) for point in points if spent and (x := spent(point)) is not None]
    grows = all(before < after for (before, _), (after, _) in pairwise(line))
    return line if grows else []  # a clock that does not advance cannot measure a budget


def _compare(row: Row, budget: Budget, pairs: Sequence[tuple[Polyline, Polyline]]) -> AtEqualBudget:
    ends = [min(own[-1][0], other[-1][0]) for own, other in pairs]
    differences = [_at(own, end) - _at(other, end) for (own, other), end in zip(pairs, ends, strict=True)]
    share = statistics.fmean(own[-1][0] / other[-1][0] for own, other in pairs)
    cut: Side | None = None if abs(share - 1) < NEGLIGIBLE else "arm" if share > 1 else "reference"
    crossing = _last_crossing(pairs, statistics.fmean(ends))
    return AtEqualBudget(row.arm, row.cell, budget, paired_difference(differences), share, cut, crossing)


def _at(line: Polyline, x: float) -> float:
    """Interpolate a curve at a budget within it."""
    place = min(max(bisect_left(line, (x, float("-inf"))), 1), len(line) - 1)
    (before, high), (after, low) = line[place - 1], line[place]
    return high + (low - high) * (x - before) / (after - before)


def _last_crossing(pairs: Sequence[tuple[Polyline, Polyline]], end: float) -> float | None:
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
