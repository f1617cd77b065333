"""How little of Q and K has to be trained to stay within a margin, and what freezing does once both sides are repaired.

The table of a study compares every arm with one reference. Two questions it leaves to its reader: which of the arms
that are close enough trains least, and whether a repaired frozen arm is close because of a repair that helps trained Q
and K just as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell
from oelm.analysis.measure import judge
from oelm.analysis.rows import LOST, Matrix, Row
from oelm.analysis.savings import qk_trained
from oelm.analysis.statistics import Difference
from oelm.spec.method import MethodSpec
from oelm.study import Arm

CLOSE = math.log1p(0.01)
"""The second margin that is asked about: a loss of 1 % of perplexity is one that nobody would mind."""

Kind = Literal["frozen", "partly", "trained"]
"""No weight of Q and K is ever trained; some are, or for a time; all are."""


@dataclass(frozen=True)
class Cheapest:
    """The arm of a kind that is surely within a margin and trains the least of Q and K."""

    cell: Cell
    margin: float
    kind: Kind
    row: Row | None
    """As judged against this margin; None where no arm of the kind is surely within it."""
    share: float | None
    """Of the reference's Q and K, repairs included."""


@dataclass(frozen=True)
class SameRepair:
    """What a repair does to trained Q and K, and what freezing does once both have it."""

    cell: Cell
    frozen: str
    control: str
    repair: Difference | None
    """Control minus reference."""
    freezing: Difference | None
    """Frozen arm minus control."""


def kind_of(method: MethodSpec) -> Kind:
    """Tell how much of Q and K a method keeps frozen; where there are none, none is trained."""
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
    """Return the cheapest arm of every kind for both margins; nothing where no arm trains a part of Q and K.

    Each margin has verdicts of its own, corrected for the family as the study's are.
    """
    if comparison.measure.name != "perplexity" or not any(0 < share < 1 for share in _shares(comparison).values()):
        return []
    kinds = {arm.name: kind_of(arm.method) for arm in comparison.study.arms}
    present = [kind for kind in get_args(Kind) if kind in kinds.values()]
    return [
        _cheapest(comparison, rows, kinds, (cell, margin, kind))
        for margin in dict.fromkeys((comparison.margin, CLOSE))
        for cell in comparison.cells
        if (rows := _judged(comparison, cell, margin))
        for kind in present
    ]


def same_repairs(comparison: Comparison) -> list[SameRepair]:
    """Pair every frozen arm with the trained one that has its repair and its model, where the study has one."""
    return [
        _same_repair(comparison, cell, frozen, control)
        for cell in comparison.cells
        for frozen in comparison.study.arms
        for control in _controls(comparison, frozen)
    ]


def _shares(comparison: Comparison) -> dict[tuple[str, Cell], float]:
    found = {
        (row.arm, row.cell): qk_trained(row.evidence[0], reference.evidence[0])
        for row in comparison.rows
        if row.evidence and (reference := comparison.reference(row.cell)).evidence
    }
    return {place: share for place, share in found.items() if share is not None}


def _judged(comparison: Comparison, cell: Cell, margin: float) -> list[Row]:
    """Return the rows of a cell as another margin judges them."""
    rows = [row for row in comparison.rows if row.cell == cell]
    whole = {(row.arm, cell, item.spec.seed): item for row in rows for item in row.evidence}
    lost = {(gap.arm, gap.cell) for gap in comparison.gaps if gap.state in LOST}
    matrix = Matrix(comparison.study, comparison.measure, margin, whole, lost, comparison.waiting)
    return list(matrix.rows([row.arm for row in rows], cell))


def _cheapest(
    comparison: Comparison, rows: Sequence[Row], kinds: dict[str, Kind], place: tuple[Cell, float, Kind]
) -> Cheapest:
    cell, margin, kind = place
    shares = _shares(comparison)
    # The reference is within every margin of itself; only what trains less than it is of interest beside it.
    met = [
        (shares[row.arm, cell], row.difference.mean if row.difference else 0.0, row)
        for row in rows
        if (row.verdict == "met" or row.arm == comparison.study.reference)
        if kinds[row.arm] == kind and (row.arm, cell) in shares
    ]
    share, _, row = min(met, key=lambda item: item[:2], default=(None, None, None))
    return Cheapest(cell, margin, kind, row, share)


def _controls(comparison: Comparison, frozen: Arm) -> Iterator[Arm]:
    method = frozen.method
    if kind_of(method) != "frozen" or not method.repair.active():
        return
    trained = MethodSpec(repair=method.repair, rates=method.rates, sites=method.sites)
    for arm in comparison.study.arms:
        if arm.name != comparison.study.reference and arm.method == trained and arm.model == frozen.model:
            yield arm


def _same_repair(comparison: Comparison, cell: Cell, frozen: Arm, control: Arm) -> SameRepair:
    def difference(end: str, start: str) -> Difference | None:
        costs = comparison.row(end, cell).by_seed, comparison.row(start, cell).by_seed
        judged = judge(comparison.measure, *costs, comparison.margin)
        return judged.difference if judged else None

    reference = comparison.study.reference
    return SameRepair(
        cell, frozen.name, control.name,
        repair=difference(control.name, reference), freezing=difference(frozen.name, control.name),
    )  # fmt: skip
