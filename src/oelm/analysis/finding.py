"""What one comparison says about a published claim, and which comparisons may say anything.

About quality only a comparison decides in which every arm was tuned, and in which attention mattered: the baseline
beats uniform attention by a tenth, or guessing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from oelm.analysis.ablation import is_frozen, is_pretrained, starts_alike
from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell, Evidence
from oelm.analysis.rows import Row
from oelm.analysis.statistics import Interval, percent
from oelm.spec.method import InitSpec, MethodSpec
from oelm.spec.model import GPTSpec

LedgerVerdict = Literal["supported", "contradicted", "undecided", "not yet tested"]
Unit = Literal["percent", "points", "share", "steps"]

LEAST_USE = 10.0
"""Percent by which uniform attention must be behind, or a regime says nothing about attention."""


@dataclass(frozen=True)
class Finding:
    """What one comparison says about a claim: a number with its interval, and the records behind it."""

    study: str
    what: str
    verdict: LedgerVerdict
    unit: Unit
    mean: float | None
    interval: Interval | None
    evidence: tuple[Evidence, ...]


def finding_of(
    comparison: Comparison, what: str, verdict: LedgerVerdict, mean: float | None, interval: Interval | None,
    rows: Sequence[Row],
) -> Finding:  # fmt: skip
    """Return a finding about quality, in the unit of its measure, with the records of some rows."""
    unit: Unit = "percent" if comparison.measure.name == "perplexity" else "points"
    evidence = tuple(itertools.chain.from_iterable(row.evidence for row in rows))
    return Finding(comparison.study.name, what, verdict, unit, mean, interval, evidence)


def of_row(comparison: Comparison, row: Row, verdict: LedgerVerdict) -> Finding:
    """Return a finding of what a row is against the reference."""
    difference = row.difference
    return finding_of(
        comparison, row.arm, verdict, difference.mean if difference else None,
        difference.interval if difference else None, [comparison.reference(row.cell), row],
    )  # fmt: skip


def side(interval: Interval | None, *, below: LedgerVerdict, above: LedgerVerdict) -> LedgerVerdict:
    """Return what it means that an interval is wholly on a side of nought; undecided if it is on neither."""
    if interval is None:
        return "undecided"
    return below if interval.high < 0 else above if interval.low > 0 else "undecided"


def frozen_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield the rows of the published method: frozen and head-wise orthogonal in all layers, and nothing else.

    From scratch that is a fresh draw, in a pretrained model what its current weights are made into: a fresh draw there
    would throw away what Q and K have learned, which no published run did. Beside a reference that is frozen itself
    they say nothing about freezing.
    """
    if any(arm.name == comparison.study.reference and arm.method.freeze.roles for arm in comparison.study.arms):
        return
    methods = {arm.name: arm.method for arm in comparison.study.arms if not arm.model}
    for row in comparison.rows:
        method = methods.get(row.arm)
        if not method or not is_frozen(method) or not row.difference:
            continue
        source = "current" if is_pretrained(row) else "fresh"
        if method.init == InitSpec(shape="orthogonal", source=source):
            yield row


def counterpart(comparison: Comparison, row: Row) -> Row | None:
    """Return what a frozen arm is held against where freezing is asked about; None where the study has no such arm.

    From scratch that is the reference. A pretrained baseline differs by orthogonalising as well, so there it is the arm
    that starts alike and trains, as it was in the published study.
    """
    if not is_pretrained(row):
        return comparison.reference(row.cell)
    (own,) = (arm for arm in comparison.study.arms if arm.name == row.arm)
    alike = (arm for arm in comparison.study.arms if starts_alike(arm.method, own.method) and not arm.model)
    rows = (comparison.row(arm.name, row.cell) for arm in alike)
    return next((other for other in rows if other.costs), None)


def can_decide(comparison: Comparison, row: Row) -> bool:
    """Whether a comparison says anything about quality: every arm tuned, a plain baseline, and attention mattered."""
    study = comparison.study
    if not study.is_tuned or comparison.reference(row.cell).at_chance or row.awaits:
        return False
    plain = (arm.name for arm in study.arms if arm.method == MethodSpec() and not arm.model)
    if study.reference not in plain:
        return False
    return not is_language(comparison) or _uses_attention(comparison, row.cell)


def _uses_attention(comparison: Comparison, cell: Cell) -> bool:
    """Whether the reference beats uniform attention by a tenth; not known where no arm has it."""
    uniform = {arm.name for arm in comparison.study.arms if arm.method.init.shape == "absent"}
    rows = [row for row in comparison.rows if row.arm in uniform and row.cell == cell and row.difference]
    return any(row.difference is not None and percent(row.difference.mean) >= LEAST_USE for row in rows)


def is_language(comparison: Comparison) -> bool:
    """Whether a comparison is of language modelling from scratch."""
    return comparison.measure.name == "perplexity" and isinstance(comparison.study.base.model, GPTSpec)
