"""From the records of a study to its answer: arms paired by seed with the reference arm.

Nothing disappears: a run without a figure is a `Gap`, a record of something else is `Ignored`, a file that
cannot be read is told in words, and all of them are part of the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from oelm.analysis.content import content_margin
from oelm.analysis.evidence import (
    MACHINE,
    Cell,
    Evidence,
    bytes_of,
    cell_of,
    departure_from,
    differences,
    meaning,
    shown,
)
from oelm.analysis.fairness import check, complaints
from oelm.analysis.measure import Judged, Measure, is_finite, margin_of, measure_of
from oelm.analysis.rows import LOST, Matrix, Place, Row
from oelm.errors import IncomparableRuns, UsageError
from oelm.record.registration import Registration, read_registration, registration_of
from oelm.record.schema import RunRecord
from oelm.record.stages import Stage, by_declaration, in_order_of_counting, is_settled, of_these_numerics, stage_of
from oelm.record.store import find_records
from oelm.spec.data import DataSpec
from oelm.spec.run import NUMERICS, declared, fingerprint
from oelm.study import Study, at

Found = tuple[Path, RunRecord]
GapState = Literal["missing", "running", "interrupted", "failed", "diverged", "unmeasured"]


@dataclass(frozen=True)
class Gap:
    """A run of the study that gives no figure, and why. `evidence` is None where it left no record."""

    arm: str
    cell: Cell
    """Place on the axes and, for a tuning run, on the grid."""
    seed: int
    state: GapState
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Ignored:
    """A record that is not of this study: where it departs from the study's nearest run.

    `twin` is set instead where it repeats a run of the study that has been counted from another folder.
    """

    directory: Path
    arm: str
    seed: int
    differs: dict[str, tuple[Any, Any]]
    """Field -> the record's value, the study's."""
    twin: Path | None = None


@dataclass(frozen=True)
class Comparison:
    """A study's answer, with everything that it rests on and everything that is missing."""

    study: Study
    stage: Stage
    measure: Measure
    margin: float
    """The largest allowed difference of cost; not a number while tuning has yet to fix it (margin="content")."""
    rows: tuple[Row, ...]
    gaps: tuple[Gap, ...]
    ignored: tuple[Ignored, ...]
    tuning: tuple[Evidence, ...]
    """The records of the first stage."""
    mixed: dict[str, tuple[str, ...]]
    """What the runs' machines or versions differ in: their speeds are not comparable then."""
    unfair: tuple[str, ...] = ()
    """What should have stopped a comparison that was forced."""
    unreadable: tuple[str, ...] = ()
    registration: Registration | None = None
    """What was declared before the first confirming run; None for runs that no folder of a study holds."""
    waiting: frozenset[Place] = frozenset()
    """Declared confirming runs that have not ended: verdicts wait for them."""

    @property
    def judged(self) -> Judged:
        """The split of the figures: test, or validation for data that have no test split."""
        return self.measure.judged

    @property
    def cells(self) -> list[Cell]:
        """The places on the axes."""
        return list(dict.fromkeys(row.cell for row in self.rows))

    @property
    def is_probe(self) -> bool:
        """Whether it is of probes, which say why, and nothing about text or labels."""
        data = self.study.base.data
        return isinstance(data, DataSpec) and data.probe is not None

    @property
    def confirming(self) -> list[Found]:
        """The records of confirming runs, with a figure or without."""
        gaps = [gap.evidence for gap in self.gaps if gap.evidence and len(gap.cell) == len(self.study.axis_names)]
        evidence = [*(item for row in self.rows for item in row.evidence), *gaps]
        return [(item.directory, item.record) for item in evidence]

    def row(self, arm: str, cell: Cell) -> Row:
        """Return an arm's row at a place on the axes."""
        return next(row for row in self.rows if row.arm == arm and row.cell == cell)

    def reference(self, cell: Cell) -> Row:
        """Return the reference arm's row at a place on the axes."""
        return self.row(self.study.reference, cell)


def compare_folder(study: Study, root: Path, *, force: bool = False) -> Comparison:
    """Compare the study's runs among all records below a folder; the other records are listed as ignored."""
    if not root.is_dir():
        raise UsageError(f"{root} is no folder, so no run of study {study.name!r} is there. Run it first.")
    found, bad = find_records(root)
    members, ignored = select(study, found)
    known = read_registration(root)
    comparison = compare(study, members, force=force, registered_margin=known.margin_resolved if known else None)
    return replace(
        comparison,
        registration=registration_of(root, study, comparison.stage.choice, comparison.confirming),
        ignored=(*comparison.ignored, *ignored),
        unreadable=tuple(str(error) for error in bad),
    )


def select(study: Study, found: Iterable[Found]) -> tuple[list[Found], list[Ignored]]:
    """Part the records of the study's own runs, of either stage, from those of anything else."""
    found = list(found)
    departure = departure_from(stage_of(study, by_declaration(record for _, record in found)).runs)
    members: list[Found] = []
    ignored: list[Ignored] = []
    for directory, record in found:
        if differs := departure(record.spec):
            ignored.append(Ignored(directory, record.spec.arm, record.spec.seed, differs))
        else:
            members.append((directory, record))
    return members, ignored


def compare(
    study: Study,
    records: Iterable[Found],
    *,
    force: bool = False,
    gathered: bool = False,
    registered_margin: float | None = None,
) -> Comparison:
    """Compare records that are all meant for this study, or that it was `gathered` from.

    `registered_margin` is that of `margin="content"`, in percent, as it was fixed when tuning ended; None: computed
    from the tuning records.

    Raise IncomparableRuns if two of them differ in anything that the study does not declare as arm, axis, tuned or
    seed, in `numerics`, or in their data. With `force` the reasons are kept with the comparison instead.
    """
    records = list(records)
    stage = stage_of(study, by_declaration(record for _, record in records))
    found, everything = _assigned(study, stage, records)
    tuning, repeated = _tuned_once(found)
    evidence, outdated = _of_newest_bytes(everything)
    unfair = tuple(complaints(study, stage.confirm, evidence, tuning, gathered=gathered)) if force else ()
    if not force:
        check(study, stage.confirm, evidence, tuning, gathered=gathered)
    kept, twins = _without_twins(study, evidence)
    # A run that is still to be scored says nothing about whether its data have a test split.
    results = [item.record.result for item in kept.values() if gathered or not item.record.is_unscored]
    measure = measure_of(study.base.data, results)
    margin = _margin(study, measure, stage, [item.record for item in tuning], registered_margin)
    places = dict.fromkeys([*((run.arm, cell_of(study, run), run.seed) for run in stage.confirm), *kept])
    states = {place: _state(kept.get(place), measure) for place in places}
    gaps = tuple(
        Gap(*place, state=state, evidence=kept.get(place)) for place, state in states.items() if state != "complete"
    )
    whole = {place: item for place, item in sorted(kept.items()) if states[place] == "complete"}
    arms = sorted((arm.name for arm in study.arms), key=lambda arm: arm != study.reference)
    cells = dict.fromkeys([cell for _, cell, _ in places] or [cell_of(study, run) for run in stage.tune])
    lost = {(gap.arm, gap.cell) for gap in gaps if gap.state in LOST}
    # Nobody declared the seeds of a gathered study, so it waits for none.
    waiting = frozenset((gap.arm, gap.cell, gap.seed) for gap in gaps if gap.state not in LOST and not gathered)
    matrix = Matrix(study, measure, margin, whole, lost, waiting)
    rows = tuple(row for cell in cells for row in matrix.rows(arms, cell))
    return Comparison(
        study, stage, measure, margin, rows, (*_tuning_gaps(study, stage, tuning), *gaps),
        (*twins, *repeated, *outdated), tuple(tuning),
        _mixed(whole.values()), unfair, waiting=waiting,
    )  # fmt: skip


def _margin(
    study: Study, measure: Measure, stage: Stage, tuning: Sequence[RunRecord], registered: float | None
) -> float:
    if study.margin != "content":
        return margin_of(measure, study.margin)
    if registered is None and stage.choice is None:
        return math.nan
    return margin_of(measure, content_margin(study, tuning) if registered is None else registered)


def _assigned(study: Study, stage: Stage, records: Iterable[Found]) -> tuple[list[Evidence], list[Evidence]]:
    """Give every record the arm of the study's same run, whatever the record calls it, else its own name.

    Return those of the first stage, and the rest.
    """
    tune = {fingerprint(run): run.arm for run in stage.tune}
    confirm = {fingerprint(run): run.arm for run in stage.confirm}
    known = [arm.name for arm in study.arms]
    tuning, rest = [], []
    for directory, record in records:
        key = fingerprint(declared(record.spec))
        if key in tune:
            tuning.append(Evidence(tune[key], directory, record))
            continue
        arm = confirm.get(key, record.spec.arm)
        if arm not in known:
            raise IncomparableRuns(
                f"{directory} is a run of {arm!r}, which is no arm of study {study.name!r} "
                f"({', '.join(known)}). Add it to arms=, or leave the record out."
            )
        rest.append(Evidence(arm, directory, record))
    return tuning, rest


def _tuned_once(found: Sequence[Evidence]) -> tuple[list[Evidence], list[Ignored]]:
    """Keep the one record of each tuning run that its choice rests on; the others are told."""
    keys = [fingerprint(declared(item.spec)) for item in found]
    of_run = of_these_numerics(zip(keys, (item.record for item in found), strict=True))
    kept = {key: item for key, item in zip(keys, found, strict=True) if of_run.get(key) is item.record}
    ignored = []
    for key, item in zip(keys, found, strict=True):
        twin = kept.get(key)
        if twin is item:
            continue
        differs = {"numerics": (item.record.numerics, NUMERICS)} if item.record.numerics != NUMERICS else {}
        path = twin.directory if twin and not differs else None
        ignored.append(Ignored(item.directory, item.arm, item.spec.seed, differs, twin=path))
    return list(kept.values()), ignored


def _of_newest_bytes(evidence: Sequence[Evidence]) -> tuple[list[Evidence], list[Ignored]]:
    """Leave out what was done again after its data had been prepared anew, and what others did of our own runs."""
    settled = [item for item in evidence if is_settled(item.record) and item.record.numerics == NUMERICS]
    newest = {fingerprint(declared(item.spec)): item for item in in_order_of_counting(settled, _record)}
    kept, outdated = [], []
    for item in evidence:
        last = newest.get(fingerprint(declared(item.spec)), item)
        other = differences(bytes_of(item.spec), bytes_of(last.spec))
        if item.record.numerics != NUMERICS or not other:
            kept.append(item)
        else:
            outdated.append(Ignored(item.directory, item.arm, item.spec.seed, other))
    return kept, outdated


def _without_twins(study: Study, evidence: Sequence[Evidence]) -> tuple[dict[Place, Evidence], tuple[Ignored, ...]]:
    """Keep the one record per run that counts; the others are listed."""
    kept: dict[Place, Evidence] = {}
    twins = []
    for item in reversed(in_order_of_counting(evidence, _record)):
        first = kept.setdefault((item.arm, cell_of(study, item.spec), item.spec.seed), item)
        if first is not item:
            differs = differences(meaning(item.spec), meaning(first.spec))
            twin = None if differs else first.directory
            twins.append(Ignored(item.directory, item.arm, item.spec.seed, differs, twin=twin))
    return kept, tuple(twins)


def _record(item: Evidence) -> RunRecord:
    return item.record


def _tuning_gaps(study: Study, stage: Stage, tuning: Iterable[Evidence]) -> list[Gap]:
    found = {fingerprint(declared(item.spec)): item for item in tuning}
    gaps = []
    for run in stage.tune:
        item = found.get(fingerprint(run))
        state = _state(item, measure_of(run.data, [item.record.result if item else None]))
        if state != "complete":
            point = tuple((field, shown(at(run.model_dump(mode="json"), field))) for field in study.tuned)
            gaps.append(Gap(run.arm, (*cell_of(study, run), *point), run.seed, state, item))
    return gaps


def _state(item: Evidence | None, measure: Measure) -> GapState | Literal["complete"]:
    if item is None:
        return "missing"
    if item.record.failure == "diverged":
        return "diverged"
    if item.record.status != "complete":
        return item.record.status
    cost = measure.cost(item.record.result)
    if cost is None:
        return "unmeasured"
    return "complete" if is_finite(cost) else "diverged"


def _mixed(evidence: Iterable[Evidence]) -> dict[str, tuple[str, ...]]:
    found = [item.record.environment for item in evidence]
    values = {field: tuple(sorted({str(getattr(environment, field)) for environment in found})) for field in MACHINE}
    return {field: different for field, different in values.items() if len(different) > 1}
