"""The published claims about cost: time, memory, and steps to the baseline's loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oelm.analysis.compare import Comparison
from oelm.analysis.convergence import convergence, validation_curves
from oelm.analysis.finding import Finding, LedgerVerdict, can_decide, counterpart, frozen_rows, is_language, side
from oelm.analysis.rows import Row
from oelm.analysis.savings import Saving, savings
from oelm.analysis.statistics import Interval, paired_difference
from oelm.spec.model import ForeignSpec

LEAST_GAIN = 0.05
"""Of the time: below it nobody would call it a gain."""


def faster(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Ask for half of an encoder's time, the least that could be meant by the published 57 %."""
    for comparison in comparisons:
        if isinstance(comparison.study.base.model, ForeignSpec):
            yield from _of_time(comparison, 0.5, below="contradicted", above="supported")


def no_gain(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Ask whether a GPT gains no time; less than the least gain is none, be it surely more than nothing."""
    for comparison in filter(is_language, comparisons):
        yield from _of_time(comparison, LEAST_GAIN, below="supported", above="contradicted")


def _of_time(comparison: Comparison, least: float, *, below: LedgerVerdict, above: LedgerVerdict) -> Iterator[Finding]:
    """Hold the time saved against the least that is asked for.

    What freezing cannot explain says that the runs were not timed alike, be it more or less than was asked for.
    """
    for saving, row in _savings(comparison):
        if saving.time is not None:
            verdict = side(_shifted(saving.time_interval, least), below=below, above=above)
            said: LedgerVerdict = "undecided" if saving.unexplained else verdict
            yield _of_saving(comparison, row, saving.time, saving.time_interval, said)


def less_memory(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Ask of the peak of memory, as measured; the published 4.7 % is of checkpoint files.

    A model so small that the program itself is most of the peak cannot save that much, whatever is frozen.
    """
    for comparison in filter(is_language, comparisons):
        for saving, row in _savings(comparison):
            if saving.memory is not None:
                interval = saving.memory_interval
                verdict = side(_shifted(interval, 0.04), below="contradicted", above="supported")
                if not _fills_memory(comparison.reference(row.cell)):
                    verdict = "undecided"
                yield _of_saving(comparison, row, saving.memory, interval, verdict)


def _fills_memory(row: Row) -> bool:
    """Whether weights, gradients and moments are at least half of what a run held at its peak."""
    record = row.evidence[0].record
    if not record.cost or not record.result:
        return False
    return 2 * record.cost.weight_bytes + record.cost.optimizer_bytes >= record.result.peak_memory_bytes / 2


def converges_sooner(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Ask for four fifths of the steps to the baseline's loss: published are 2.0 epochs instead of 2.5.

    Seeds that never come to it count with all their steps, which is a lower bound and no sample: then the final losses
    decide, and they can only contradict.
    """
    for comparison in comparisons:
        if comparison.measure.name != "accuracy":
            continue
        complaints: list[str] = []
        for row in frozen_rows(comparison):
            alike = counterpart(comparison, row)
            other = alike or comparison.reference(row.cell)
            own, theirs = (validation_curves(each, complaints) for each in (row, other))
            item = convergence(row, own, theirs)
            if not item.step_shares:
                continue
            shares = paired_difference(item.step_shares)
            verdict: LedgerVerdict = "undecided"
            if alike and can_decide(comparison, row):
                behind = [own[seed][-1].loss - theirs[seed][-1].loss for seed in own if seed in theirs]
                verdict = (
                    side(paired_difference(behind).interval, below="undecided", above="contradicted")
                    if item.missed
                    else _fewer(shares.interval)
                )
            mean, interval = (None, None) if item.missed else (shares.mean, shares.interval)
            what = row.arm if other.arm == comparison.study.reference else f"{other.arm} → {row.arm}"
            yield Finding(comparison.study.name, what, verdict, "steps", mean, interval, row.evidence)


def _fewer(shares: Interval | None) -> LedgerVerdict:
    if shares is None:
        return "undecided"
    return "supported" if shares.high <= 0.85 else "contradicted" if shares.low >= 1 else "undecided"


def _savings(comparison: Comparison) -> Iterator[tuple[Saving, Row]]:
    rows = {(row.arm, row.cell): row for row in frozen_rows(comparison)}
    for saving in savings(comparison):
        if (saving.arm, saving.cell) in rows:
            yield saving, rows[saving.arm, saving.cell]


def _shifted(interval: Interval | None, by: float) -> Interval | None:
    return Interval(interval.low - by, interval.high - by) if interval else None


def _of_saving(
    comparison: Comparison, row: Row, mean: float | None, interval: Interval | None, verdict: LedgerVerdict
) -> Finding:
    return Finding(comparison.study.name, row.arm, verdict, "share", mean, interval, row.evidence)
