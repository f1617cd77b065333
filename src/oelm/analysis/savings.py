"""What an arm saves, beside what it can save: parameters, bytes, and time against its share of the FLOPs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import MACHINE, Cell, Evidence
from oelm.analysis.published import published_run
from oelm.analysis.rows import Row
from oelm.analysis.statistics import CONFIDENCE, Interval, interval_of_mean
from oelm.record.schema import CostRecord
from oelm.spec.method import ScheduleSpec

BEYOND_FLOPS = 0.05
"""What a step may save beyond its FLOPs: gradients not made, clipped or applied are bytes (LOG.md: 2 points)."""
SINGLE_RUN_NOISE = 0.10
"""What one pair of runs on a shared machine easily differs by; a saving from a single pair is doubted beyond it."""


@dataclass(frozen=True)
class Saving:
    """One arm against the reference. Shares are of the reference's; None where the records do not say.

    Nor do they for a schedule, what trains and what a step costs changing on the way.
    """

    arm: str
    cell: Cell
    trained: float | None
    """Of the trained parameters."""
    qk: float | None
    """What is trained of Q and K, repairs included, as a share of the reference's Q and K."""
    optimizer: float | None
    """Of the optimiser's bytes."""
    memory: float | None
    """Of the peak of memory, as measured, the mean over seeds that both ran on one machine."""
    memory_interval: Interval | None
    flops: float | None
    """Of a training step's FLOPs."""
    time: float | None
    """Of the training seconds per step, as the runs had them, the mean over seeds that both ran on one machine."""
    time_interval: Interval | None
    times: dict[int, float] = field(default_factory=dict)
    """Seed -> the share of a step's time saved, for the pairs of runs on one machine."""
    peaks: dict[int, float] = field(default_factory=dict)
    """Seed -> the share of the peak of memory saved, likewise."""

    @property
    def unexplained(self) -> bool:
        """Whether more time was saved than the method can explain."""
        if self.time is None or self.flops is None:
            return False
        surely = self.time_interval.low if self.time_interval else self.time - SINGLE_RUN_NOISE
        return surely > self.flops + BEYOND_FLOPS


def qk_trained(run: Evidence, reference: Evidence) -> float | None:
    """Return what a run trains of Q and K, repairs included, as a share of the Q and K of the reference.

    What a schedule unfreezes on the way counts as all of them. None where other parts are frozen, too, and for records
    of before Q and K were counted.
    """
    own, whole = run.record.parameters, reference.record.parameters
    if not own or not whole or not whole.qk or not {"q", "k"}.issuperset(run.spec.method.freeze.roles):
        return None
    frozen = 0 if _unfreezes_on_the_way(run.spec.method.schedule) else min(own.frozen, own.qk)
    return (own.qk - frozen + own.repair) / whole.qk


def _unfreezes_on_the_way(schedule: ScheduleSpec) -> bool:
    """Whether training begins with Q and K frozen that it does not leave so."""
    return schedule.every is not None or any(change.action == "unfreeze" for change in schedule.later)


def savings(comparison: Comparison) -> list[Saving]:
    """Compare what every arm needs with what the reference needs."""
    return [
        _saving(row, comparison.reference(row.cell))
        for row in comparison.rows
        if row.arm != comparison.study.reference and row.evidence and comparison.reference(row.cell).evidence
    ]


def _saving(row: Row, reference: Row) -> Saving:
    first, other = row.evidence[0], reference.evidence[0].record
    times, peaks = _paired(row, reference, _step_seconds), _paired(row, reference, _peak)
    # Records count what a run begins with: of one that freezes or unfreezes on the way that says little.
    begun = None if first.spec.method.schedule.moves else first.record
    trained = (begun.parameters if begun else None, other.parameters)
    cost = (begun.cost if begun else None, other.cost)
    return Saving(
        arm=row.arm,
        cell=row.cell,
        trained=1 - trained[0].trainable / trained[1].trainable if trained[0] and trained[1] else None,
        qk=qk_trained(first, reference.evidence[0]),
        optimizer=1 - cost[0].optimizer_bytes / cost[1].optimizer_bytes if cost[0] and cost[1] else None,
        memory=statistics.fmean(peaks.values()) if peaks else None,
        memory_interval=interval_of_mean(list(peaks.values()), CONFIDENCE),
        flops=_fewer_flops(first, other.cost) if begun else None,
        time=statistics.fmean(times.values()) if times else None,
        time_interval=interval_of_mean(list(times.values()), CONFIDENCE),
        times=times,
        peaks=peaks,
    )


def _fewer_flops(item: Evidence, reference: CostRecord | None) -> float | None:
    if item.record.cost and reference:
        return 1 - step_flops(item.record.cost) / step_flops(reference)
    known = published_run(item.spec)
    return known.flop_share if known else None


def step_flops(cost: CostRecord) -> int:
    """Return the FLOPs of one training step."""
    return sum(cost.forward_flops.values()) + sum(cost.backward_flops.values())


def _paired(row: Row, reference: Row, measured: Callable[[Evidence], float | None]) -> dict[int, float]:
    """Return the share saved for each shared seed whose records both have the figure.

    The loss of a run hardly depends on its machine, but seconds and bytes do, so runs of two machines are not paired.
    """
    own, other = ({item.spec.seed: item for item in side.evidence} for side in (row, reference))
    pairs = [seed for seed in own if seed in other and is_same_machine(own[seed], other[seed])]
    measures = {seed: (measured(own[seed]), measured(other[seed])) for seed in pairs}
    return {seed: 1 - mine / theirs for seed, (mine, theirs) in measures.items() if mine and theirs}


def is_same_machine(one: Evidence, other: Evidence) -> bool:
    """Whether the seconds of two runs can be compared: they ran on the same kind of machine with the same software."""
    return all(getattr(one.record.environment, field) == getattr(other.record.environment, field) for field in MACHINE)


def _peak(item: Evidence) -> float | None:
    return item.record.result.peak_memory_bytes if item.record.result else None


def _step_seconds(item: Evidence) -> float | None:
    record = item.record
    if record.seconds is None:
        return None
    steps = record.step if record.seconds.timed_steps is None else record.seconds.timed_steps
    return record.seconds.train / steps if steps else None
