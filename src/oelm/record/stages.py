"""Where a study stands: which stage its records have reached, and what tuning has chosen.

Tuning is static but for one rule of fairness: where some arm is best at the end of the grid, the grid grows there
for every arm. So the stage is a function of the study and of its records alone, and any process can compute it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from oelm.errors import InvalidSpec
from oelm.record.schema import Record, RunRecord
from oelm.spec.run import NUMERICS, RunSpec, declared, fingerprint
from oelm.study import AnyStudy, Arm, Listing, Setting, Study, at, distinct, replaced

CHOICE = "choice.json"
EXTENSIONS = 3
"""How often a grid may grow; an optimum that is still at its end is then chosen, and marked."""

Grid = dict[str, tuple[Any, ...]]
StageName = Literal["tune", "confirm"]


class ArmChoice(Record):
    """What tuning chose for one arm, and the records it rests on."""

    arm: str
    values: dict[str, Any]
    score: float
    """Mean over the tuning seeds of what the validation split says; less is better."""
    at_edge: bool
    """Whether the grid ends at the chosen value although it has grown as far as it may."""
    runs: tuple[str, ...]
    """Fingerprints of the records of this arm that were compared."""


class CellChoice(Record):
    """What tuning chose at one place on the axes."""

    axes: dict[str, Any]
    grid: Grid
    """As it ended, the same for every arm."""
    arms: tuple[ArmChoice, ...]


class ChoiceRecord(Record):
    """The end of a study's first stage: `choice.json`."""

    study: str
    cells: tuple[CellChoice, ...]


@dataclass(frozen=True)
class Stage:
    """The runs that a study consists of at this point."""

    name: StageName
    tune: list[RunSpec]
    confirm: list[RunSpec]
    """Empty until tuning has ended."""
    choice: ChoiceRecord | None = None

    @property
    def runs(self) -> list[RunSpec]:
        """All of them, in the order in which they are carried out."""
        return [*self.tune, *self.confirm]


def by_declaration(records: Iterable[RunRecord]) -> dict[str, RunRecord]:
    """Index records by the run they were declared as, before it was bound to data; complete ones win.

    Records of another NUMERICS are of other runs, whatever their specs say.
    """
    found: dict[str, RunRecord] = {}
    for record in sorted(records, key=lambda record: record.status == "complete"):
        if record.numerics == NUMERICS:
            found[fingerprint(declared(record.spec))] = record
    return found


def stage_of(study: AnyStudy, records: Mapping[str, RunRecord]) -> Stage:
    """Return the stage that a study has reached. `records` are indexed `by_declaration`."""
    if isinstance(study, Listing) or not study.tuned:
        return Stage("confirm", [], study.runs())
    cells = [_tuned(study, cell, records) for cell in study.cells()]
    tune = distinct(study.name, [run for runs, _ in cells for run in runs])
    chosen = [choice for _, choice in cells if choice]
    if len(chosen) < len(cells):
        return Stage("tune", tune, [])
    return Stage("confirm", tune, confirming(study, chosen), ChoiceRecord(study=study.name, cells=tuple(chosen)))


def confirming(study: Study, chosen: Sequence[CellChoice]) -> list[RunSpec]:
    """Expand the second stage from what the first has chosen."""
    cells = study.cells()

    def setting(cell: Setting, arm: Arm) -> Setting:
        choice = chosen[cells.index(cell)]
        return next(item.values for item in choice.arms if item.arm == arm.name)

    return distinct(study.name, study.confirming(setting))


def _tuned(study: Study, cell: Setting, records: Mapping[str, RunRecord]) -> tuple[list[RunSpec], CellChoice | None]:
    """Return the tuning runs of a cell, and the choice if they have all ended and no arm asks for a wider grid."""
    grid: Grid = dict(study.tuned)
    for extension in range(EXTENSIONS + 1):
        runs = study.tuning(cell, grid)
        scores = _scores(runs, records)
        if scores is None:
            return runs, None
        best = {arm.name: _best(arm, runs, scores, grid) for arm in study.arms}
        wider = _extended(study, grid, [values for values, _ in best.values()])
        if wider == grid or extension == EXTENSIONS:
            break
        grid = wider
    plain = runs[0].model_dump(mode="json")
    arms = tuple(
        ArmChoice(
            arm=name,
            values=values,
            score=score,
            at_edge=any(_ends(grid, [values]).values()),
            runs=tuple(records[fingerprint(run)].fingerprint for run in runs if run.arm == name),
        )
        for name, (values, score) in best.items()
    )
    return runs, CellChoice(axes={axis: at(plain, axis) for axis in cell}, grid=grid, arms=arms)


def _scores(runs: Sequence[RunSpec], records: Mapping[str, RunRecord]) -> dict[str, float] | None:
    """Return fingerprint -> score, or None while some run has not ended. A diverged run is as bad as can be."""
    scores = {}
    for run in runs:
        key = fingerprint(run)
        record = records.get(key)
        if record is None or not is_settled(record):
            return None
        score = record.result.tuning_score if record.result else math.inf
        scores[key] = score if math.isfinite(score) else math.inf
    return scores


def is_settled(record: RunRecord) -> bool:
    """Whether a run has ended with an answer: complete, or diverged, which is one."""
    return record.status == "complete" or record.failure == "diverged"


def _best(arm: Arm, runs: Sequence[RunSpec], scores: Mapping[str, float], grid: Grid) -> tuple[Setting, float]:
    by_point: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        if run.arm == arm.name:
            point = tuple(at(run, field) for field in grid)
            by_point.setdefault(point, []).append(scores[fingerprint(run)])
    means = {point: statistics.fmean(values) for point, values in by_point.items()}
    point = min(means, key=means.__getitem__)
    return dict(zip(grid, point, strict=True)), means[point]


def _extended(study: Study, grid: Grid, optima: Sequence[Setting]) -> Grid:
    """Return the grid with one more value at each end at which some optimum lies, where a run can have that value."""
    wider = dict(grid)
    for field, new in _ends(grid, optima).items():
        fitting = [value for value in new if _fits(study, field, value)]
        if fitting:
            wider[field] = tuple(sorted((*grid[field], *fitting)))
    return wider


def _ends(grid: Grid, optima: Sequence[Setting]) -> dict[str, list[float]]:
    """Return, per field, the values that would follow the ends of the grid at which some optimum lies.

    The values go on in the ratio of the last two. A grid of one value, or of what are no positive numbers, has no
    direction to grow in.
    """
    found: dict[str, list[float]] = {}
    for field, values in grid.items():
        if len(values) < 2 or not all(_is_positive(value) for value in values):
            continue
        ordered, best = sorted(values), {optimum[field] for optimum in optima}
        below = [_rounded(ordered[0] ** 2 / ordered[1])] if ordered[0] in best else []
        above = [_rounded(ordered[-1] ** 2 / ordered[-2])] if ordered[-1] in best else []
        if below or above:
            found[field] = [*below, *above]
    return found


def _fits(study: Study, field: str, value: float) -> bool:
    try:
        replaced(study.base, field, value)
    except InvalidSpec:
        return False
    return True


def _is_positive(value: Any) -> bool:
    return isinstance(value, float) and value > 0


def _rounded(value: float) -> float:
    """Round to what a person would have written: a fingerprint hangs on every digit."""
    return float(f"{value:.3g}")
