"""The stage that a study's records have reached, and what tuning has chosen.

Tuning follows a fixed grid with one rule of fairness: where some arm is best at an end of the grid, the grid grows
there for every arm. So the stage is a function of the study and its records, and any process can compute it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from oelm.errors import InvalidSpec
from oelm.record.record import Record, RunRecord
from oelm.spec.run import NUMERICS, RunSpec, declared_fingerprint, fingerprint
from oelm.spec.study import (
    WIDTH_FIELD,
    AnyStudy,
    Arm,
    Listing,
    Setting,
    Study,
    field_at,
    keep_branch_checkpoints,
    refuse_duplicates,
)

CHOICE = "choice.json"
EXTENSIONS = 3
"""How often a grid may grow. An optimum that is still at its end is then chosen, and marked."""

Grid = dict[str, tuple[Any, ...]]
_T = TypeVar("_T")
StageName = Literal["tune", "confirm"]


class ArmChoice(Record):
    """What tuning chose for one arm, and the records behind the choice."""

    arm: str
    values: dict[str, Any]
    score: float | None
    """Mean tuning score on validation over the tuning seeds; lower is better. None for a transferred value."""
    at_edge: bool
    """Whether the chosen value is at an end of the grid, although the grid has grown as far as possible."""
    runs: tuple[str, ...]
    """Fingerprints of the records of this arm that were compared."""
    transferred: bool = False
    """Whether the values come from other sizes by the study's rule."""
    best_here: dict[str, Any] | None = None
    """The best values of the grid at this size, where transferred values were checked."""


class CellChoice(Record):
    """What tuning chose at one point on the axes."""

    axes: dict[str, Any]
    grid: Grid
    """The final grid, the same for every arm."""
    arms: tuple[ArmChoice, ...]


class ChoiceRecord(Record):
    """The result of a study's tuning stage: `choice.json`."""

    study: str
    cells: tuple[CellChoice, ...]


@dataclass(frozen=True)
class Stage:
    """The runs of a study up to its present stage."""

    name: StageName
    tune: list[RunSpec]
    confirm: list[RunSpec]
    """Empty until tuning has ended."""
    choice: ChoiceRecord | None = None

    @property
    def runs(self) -> list[RunSpec]:
        """All runs, in the order in which they are carried out."""
        return [*self.tune, *self.confirm]


def index_by_declaration(records: Iterable[RunRecord]) -> dict[str, RunRecord]:
    """Index records by the fingerprint of the declared run, before it was resolved with its data."""
    return index_by_key((declared_fingerprint(record.spec), record) for record in records)


def index_by_key(keyed: Iterable[tuple[str, RunRecord]]) -> dict[str, RunRecord]:
    """Index records by their keys; of several records with one key, take the one that counts.

    Records of another NUMERICS belong to other runs, whatever their specs say, and are left out.
    """
    ordered = sort_by_precedence(list(keyed), lambda item: item[1])
    return {key: record for key, record in ordered if record.numerics == NUMERICS}


def sort_by_precedence(items: Sequence[_T], record_of: Callable[[_T], RunRecord]) -> list[_T]:
    """Sort items with records so that of several records of one run the last one counts.

    A settled record precedes an unsettled one, ours precedes an imported one, and one of the most recently used data
    precedes one of older data. Of two settled records of the same data **the first counts**: otherwise a run could be
    repeated until its result is welcome. Of two unsettled records the newest counts, because it continues.
    """
    last_use: dict[str, str] = {}
    for record in map(record_of, items):
        last_use[record.fingerprint] = max(record.started, last_use.get(record.fingerprint, ""))

    def rank(item: _T) -> tuple[bool, bool, str]:
        record = record_of(item)
        return is_settled(record), not record.imported, last_use[record.fingerprint]

    oldest_first = sorted(items, key=lambda item: record_of(item).started)
    settled = [item for item in oldest_first if is_settled(record_of(item))]
    rest = [item for item in oldest_first if not is_settled(record_of(item))]
    return sorted([*rest, *reversed(settled)], key=rank)


def stage_of(study: AnyStudy, records: Mapping[str, RunRecord]) -> Stage:
    """Return the stage that a study has reached. `records` come from `index_by_declaration`."""
    if isinstance(study, Listing) or not study.tuned:
        return Stage("confirm", [], study.runs())
    tried = {
        number: _tune(study, cell, records, may_grow=study.size_in(cell) not in study.checked_at)
        for number, cell in enumerate(study.cells())
        if not study.tuned_at or study.size_in(cell) in (*study.tuned_at, *study.checked_at)
    }
    tune = refuse_duplicates(study.name, keep_branch_checkpoints([run for runs, _ in tried.values() for run in runs]))
    found = {number: choice for number, (_, choice) in tried.items() if choice}
    if len(found) < len(tried):
        return Stage("tune", tune, [])
    chosen = transfer_choices(study, found) if study.tuned_at else list(found.values())
    return Stage(
        "confirm", tune, expand_confirmation(study, chosen), ChoiceRecord(study=study.name, cells=tuple(chosen))
    )


def expand_confirmation(study: Study, chosen: Sequence[CellChoice]) -> list[RunSpec]:
    """Return the runs of the confirming stage, given the choices of the tuning stage."""
    cells = study.cells()

    def setting(cell: Setting, arm: Arm) -> Setting:
        choice = chosen[cells.index(cell)]
        return _of_arm(choice, arm).values

    return refuse_duplicates(study.name, study.confirming(setting))


def transfer_choices(study: Study, found: Mapping[int, CellChoice]) -> list[CellChoice]:
    """Return the choice of every cell: what was tuned there, or what the study's rule derives from the tuned sizes."""
    cells = study.cells()
    choices = []
    for number, cell in enumerate(cells):
        if study.size_in(cell) in study.tuned_at:
            choices.append(found[number])
            continue
        point = {axis: cell[axis] for axis in study.axes}
        sources = [
            (at_other, cells[at])
            for at, at_other in found.items()
            if study.size_in(cells[at]) in study.tuned_at and point.items() <= cells[at].items()
        ]
        checked = found.get(number)
        arms = tuple(_transfer(study, arm, cell, sources, checked) for arm in study.arms)
        place = study.place(study.tuning(cell, {field: grid[:1] for field, grid in study.tuned.items()})[0])
        choices.append(CellChoice(axes=place, grid=checked.grid if checked else dict(study.tuned), arms=arms))
    return choices


def _transfer(
    study: Study, arm: Arm, cell: Setting, sources: Sequence[tuple[CellChoice, Setting]], checked: CellChoice | None
) -> ArmChoice:
    chosen = [(_of_arm(choice, arm), other) for choice, other in sources]
    here = _of_arm(checked, arm) if checked else None
    return ArmChoice(
        arm=arm.name,
        values={
            field: follow_width(
                [(other.get(WIDTH_FIELD), own.values[field]) for own, other in chosen], cell.get(WIDTH_FIELD), study
            )
            for field in study.tuned
        },
        score=None,
        at_edge=any(own.at_edge for own, _ in chosen),
        runs=tuple(run for own, _ in chosen for run in own.runs),
        transferred=True,
        best_here=here.values if here else None,
    )


def follow_width(known: Sequence[tuple[Any, Any]], width: Any, study: Study) -> Any:
    """Return the value that a study's transfer rule gives for a width, from the tuned widths and values."""
    if study.transfer == "nearest":
        apart = [0.0 if width is None else abs(math.log(width / other)) for other, _ in known]
        return known[apart.index(min(apart))][1]
    logs = [(math.log(other), math.log(value)) for other, value in known]
    middle = tuple(map(statistics.fmean, zip(*logs, strict=True)))
    if study.transfer == "line":
        slope = statistics.linear_regression(*zip(*logs, strict=True)).slope
    else:
        slope = float(study.transfer)
    value = math.exp(middle[1] + slope * (math.log(width) - middle[0]))
    return _round(value, [value for _, value in known])


def _of_arm(choice: CellChoice, arm: Arm) -> ArmChoice:
    return next(item for item in choice.arms if item.arm == arm.name)


def _tune(
    study: Study, cell: Setting, records: Mapping[str, RunRecord], *, may_grow: bool = True
) -> tuple[list[RunSpec], CellChoice | None]:
    """Return the tuning runs of a cell, and the choice if all have ended and no arm needs a wider grid."""
    grid: Grid = dict(study.tuned)
    for extension in range(EXTENSIONS + 1):
        runs = study.tuning(cell, grid)
        scores = _scores(runs, records)
        if scores is None:
            return runs, None
        best = {arm.name: _best(arm, runs, scores, grid) for arm in study.arms}
        wider = _extend(study, grid, [values for values, _ in best.values()])
        if wider == grid or extension == EXTENSIONS or not may_grow:
            break
        grid = wider
    arms = tuple(
        ArmChoice(
            arm=name,
            values=values,
            score=score,
            at_edge=any(is_grid_end(grid[field], value) for field, value in values.items()),
            runs=tuple(records[fingerprint(run)].fingerprint for run in runs if run.arm == name),
        )
        for name, (values, score) in best.items()
    )
    return runs, CellChoice(axes=study.place(runs[0]), grid=grid, arms=arms)


def _scores(runs: Sequence[RunSpec], records: Mapping[str, RunRecord]) -> dict[str, float] | None:
    """Return fingerprint -> score, or None while some run has not ended. A diverged run has an infinite score."""
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
    """Whether a run has ended with a result: it is complete, or it diverged."""
    return record.status == "complete" or record.failure == "diverged"


def _best(arm: Arm, runs: Sequence[RunSpec], scores: Mapping[str, float], grid: Grid) -> tuple[Setting, float]:
    by_point: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        if run.arm == arm.name:
            point = tuple(field_at(run, field) for field in grid)
            by_point.setdefault(point, []).append(scores[fingerprint(run)])
    means = {point: statistics.fmean(values) for point, values in by_point.items()}
    # Of equal scores the smallest point: if every setting diverged, the grid must not grow upwards.
    ordered = sorted(means) if all(_is_number(value) for point in means for value in point) else list(means)
    point = min(ordered, key=means.__getitem__)
    return dict(zip(grid, point, strict=True)), means[point]


def _extend(study: Study, grid: Grid, optima: Sequence[Setting]) -> Grid:
    """Return the grid with one more value at each end that is the optimum of some arm, if a run can have that value."""
    wider = dict(grid)
    for field, values in grid.items():
        found = [optimum[field] for optimum in optima]
        grown = _below(values, found) + _above(values, found)
        fitting = [value for value in grown if _fits(study, {**wider, field: (value,)})]
        if fitting:
            wider[field] = tuple(sorted((*values, *fitting)))
    return wider


def _below(values: Sequence[Any], optima: Sequence[Any]) -> list[float]:
    """Return the value below the lower end of a grid, if some optimum is at that end.

    It continues the ratio of the last two values. There is none below zero, nor below one for whole numbers.
    """
    if not _at_end(values, optima, min) or min(values) <= 0:
        return []
    first, second = sorted(values)[:2]
    new = _round(first**2 / second, optima)
    return [new] if 0 < new < first else []


def _above(values: Sequence[Any], optima: Sequence[Any]) -> list[float]:
    """Return the value above the upper end of a grid, in the ratio of the last two, if some optimum is at that end."""
    if not _at_end(values, optima, max) or sorted(values)[-2] <= 0:
        return []
    second, last = sorted(values)[-2:]
    new = _round(last**2 / second, optima)
    return [new] if new > last else []


def is_grid_end(values: Sequence[Any], value: Any) -> bool:
    """Whether a value is at an end of a grid that could continue; nothing is below zero."""
    return any(_at_end(values, [value], end) for end in ((min, max) if value != 0 else (max,)))


def _at_end(values: Sequence[Any], optima: Sequence[Any], end: Callable[[Sequence[Any]], Any]) -> bool:
    """Whether some optimum is at an end of a grid. A single value, and values that are not numbers, have no ends."""
    return len(values) > 1 and all(map(_is_number, values)) and end(values) in optima


def _fits(study: Study, grid: Grid) -> bool:
    """Whether every arm can run at every point of a grid."""
    try:
        for cell in study.cells():
            study.tuning(cell, grid)
    except InvalidSpec:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _round(value: float, like: Sequence[Any]) -> float:
    """Round to three digits, as a person would write it, because a fingerprint depends on every digit.

    The result is a whole number if the field is.
    """
    if all(isinstance(one, int) for one in like):
        return round(value)
    return float(f"{value:.3g}")
