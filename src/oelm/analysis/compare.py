"""From the records of a study to its answer: arms paired by seed with the reference arm.

Nothing disappears: a run without a figure is a `Gap`, a record of something else is `Ignored`, a file that
cannot be read is told in words, and all of them are part of the comparison.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from oelm.analysis.fairness import Cell, Evidence, cell_of, check, departure_from, meaning
from oelm.analysis.statistics import MARGIN, Difference, Verdict, paired_difference
from oelm.errors import IncomparableRuns, UsageError
from oelm.record.schema import ParametersRecord, RunRecord, perplexity
from oelm.record.store import find_records
from oelm.spec.base import digest
from oelm.study import Study

Found = tuple[Path, RunRecord]
Place = tuple[str, Cell, int]
"""Arm, place on the axes, seed: a run as the study sees it."""
Judged = Literal["test", "val"]
GapState = Literal["missing", "running", "interrupted", "failed", "diverged", "unmeasured"]
_LOST: tuple[GapState, ...] = ("failed", "diverged")


@dataclass(frozen=True)
class Gap:
    """A run of the study that gives no figure, and why. `evidence` is None where it left no record."""

    arm: str
    cell: Cell
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
class Row:
    """One arm at one place on the axes. Figures are None where no run is complete."""

    arm: str
    cell: Cell
    evidence: tuple[Evidence, ...]
    """The complete runs that the figures come from, by seed."""
    losses: tuple[float, ...]
    """Theirs, in the same order."""
    difference: Difference | None
    """To the reference arm over shared seeds; None for the reference itself and where no seed is shared."""
    verdict: Verdict | None
    """None for the reference itself."""
    floor: float | None
    """Perplexity that no model can beat, where the corpus is generated."""

    @property
    def perplexity(self) -> float | None:
        """Geometric mean over seeds."""
        return perplexity(statistics.fmean(self.losses)) if self.losses else None

    @property
    def tokens_per_second(self) -> float | None:
        """Mean over seeds."""
        speeds = [item.record.result.tokens_per_second for item in self.evidence if item.record.result]
        return statistics.fmean(speeds) if speeds else None

    @property
    def parameters(self) -> ParametersRecord | None:
        """Scalars of the model, the same for every seed."""
        return next((item.record.parameters for item in self.evidence), None)

    @property
    def dirty(self) -> bool:
        """Whether some run came from a source tree with uncommitted changes."""
        return any(item.record.environment.dirty for item in self.evidence)


@dataclass(frozen=True)
class Comparison:
    """A study's answer, with everything that it rests on and everything that is missing."""

    study: Study
    judged: Judged
    """The split of the figures: test, or validation for data that have no test split."""
    margin: float
    """The largest allowed difference of log perplexity."""
    rows: tuple[Row, ...]
    gaps: tuple[Gap, ...]
    ignored: tuple[Ignored, ...]
    mixed: dict[str, tuple[str, ...]]
    """What the runs' machines or versions differ in: their speeds are not comparable then."""
    unreadable: tuple[str, ...] = ()

    def reference(self, cell: Cell) -> Row:
        """Return the reference arm's row at a place on the axes."""
        return next(row for row in self.rows if row.arm == self.study.reference and row.cell == cell)


def compare_folder(study: Study, root: Path, margin: float = MARGIN) -> Comparison:
    """Compare the study's runs among all records below a folder; the other records are listed as ignored."""
    if not root.is_dir():
        raise UsageError(f"{root} is no folder, so no run of study {study.name!r} is there. Run it first.")
    found, bad = find_records(root)
    members, ignored = select(study, found)
    comparison = compare(study, members, margin)
    return replace(
        comparison,
        ignored=(*comparison.ignored, *ignored),
        unreadable=tuple(str(error) for error in bad),
    )


def select(study: Study, found: Iterable[Found]) -> tuple[list[Found], list[Ignored]]:
    """Part the records of the study's own runs from those of anything else."""
    departure = departure_from(study.runs())
    members: list[Found] = []
    ignored: list[Ignored] = []
    for directory, record in found:
        if differs := departure(record.spec):
            ignored.append(Ignored(directory, record.spec.arm, record.spec.seed, differs))
        else:
            members.append((directory, record))
    return members, ignored


def compare(study: Study, records: Iterable[Found], margin: float = MARGIN) -> Comparison:
    """Compare records that are all meant for this study.

    Raise IncomparableRuns if two of them differ in anything that the study does not declare as arm, axis or
    seed, in `numerics`, or in their data.
    """
    evidence = _assigned(study, records)
    check(study, evidence)
    kept, twins = _without_twins(study, evidence)
    results = [item.record.result for item in kept.values() if item.record.result]
    judged: Judged = "val" if results and all(result.test_loss is None for result in results) else "test"
    places = dict.fromkeys([*((run.arm, cell_of(study, run), run.seed) for run in study.runs()), *kept])
    states = {place: _state(kept.get(place), judged) for place in places}
    gaps = tuple(
        Gap(*place, state=state, evidence=kept.get(place)) for place, state in states.items() if state != "complete"
    )
    whole = {place: item for place, item in sorted(kept.items()) if states[place] == "complete"}
    arms = sorted((arm.name for arm in study.arms), key=lambda arm: arm != study.reference)
    cells = dict.fromkeys(cell for _, cell, _ in places)
    matrix = _Matrix(study.reference, judged, margin, whole, gaps)
    rows = tuple(matrix.row(arm, cell) for cell, arm in itertools.product(cells, arms))
    return Comparison(study, judged, margin, rows, gaps, twins, _mixed(whole.values()))


def _assigned(study: Study, records: Iterable[Found]) -> list[Evidence]:
    """Give every record the arm of the study's same run, whatever the record calls it, else its own name."""
    arms = {digest(meaning(run)): run.arm for run in study.runs()}
    known = [arm.name for arm in study.arms]
    assigned = []
    for directory, record in records:
        arm = arms.get(digest(meaning(record.spec)), record.spec.arm)
        if arm not in known:
            raise IncomparableRuns(
                f"{directory} is a run of {arm!r}, which is no arm of study {study.name!r} "
                f"({', '.join(known)}). Add it to arms=, or leave the record out."
            )
        assigned.append(Evidence(arm, directory, record))
    return assigned


def _without_twins(study: Study, evidence: Sequence[Evidence]) -> tuple[dict[Place, Evidence], tuple[Ignored, ...]]:
    """Keep one record per run, a complete one if there is any; the others are told."""
    kept: dict[Place, Evidence] = {}
    twins = []
    for item in sorted(evidence, key=lambda item: (item.record.status != "complete", item.directory)):
        first = kept.setdefault((item.arm, cell_of(study, item.spec), item.spec.seed), item)
        if first is not item:
            twins.append(Ignored(item.directory, item.arm, item.spec.seed, {}, twin=first.directory))
    return kept, tuple(twins)


def _loss(item: Evidence, judged: Judged) -> float | None:
    result = item.record.result
    if result is None:
        return None
    return result.test_loss if judged == "test" else result.val_loss


def _state(item: Evidence | None, judged: Judged) -> GapState | Literal["complete"]:
    if item is None:
        return "missing"
    if item.record.status != "complete":
        return item.record.status
    loss = _loss(item, judged)
    if loss is None:
        return "unmeasured"
    return "complete" if math.isfinite(loss) else "diverged"


@dataclass(frozen=True)
class _Matrix:
    """Everything a row is made from."""

    reference: str
    judged: Judged
    margin: float
    whole: dict[Place, Evidence]
    gaps: tuple[Gap, ...]

    def row(self, arm: str, cell: Cell) -> Row:
        own, other = self._losses(arm, cell), self._losses(self.reference, cell)
        pairs = [loss - other[seed] for seed, loss in own.items() if seed in other and arm != self.reference]
        difference = paired_difference(pairs, margin=self.margin) if pairs else None
        evidence = tuple(self.whole[arm, cell, seed] for seed in own)
        data = next((item.record.data for item in evidence), None)
        return Row(
            arm=arm,
            cell=cell,
            evidence=evidence,
            losses=tuple(own.values()),
            difference=difference,
            verdict=None if arm == self.reference else self._verdict(arm, cell, difference),
            floor=perplexity(data.floor[self.judged]) if data and self.judged in data.floor else None,
        )

    def _losses(self, arm: str, cell: Cell) -> dict[int, float]:
        return {
            place[2]: loss
            for place, item in self.whole.items()
            if place[:2] == (arm, cell) and (loss := _loss(item, self.judged)) is not None
        }

    def _verdict(self, arm: str, cell: Cell, difference: Difference | None) -> Verdict:
        """Judge an arm. Seeds lost to divergence are no random sample, so those that are left cannot pass."""
        lost = any(gap.arm in (arm, self.reference) and gap.cell == cell and gap.state in _LOST for gap in self.gaps)
        if difference is None or (lost and difference.verdict == "met"):
            return "undecided"
        return difference.verdict


def _mixed(evidence: Iterable[Evidence]) -> dict[str, tuple[str, ...]]:
    found = [item.record.environment for item in evidence]
    values = {
        field: tuple(sorted({str(getattr(environment, field)) for environment in found}))
        for field in ("device", "cores", "torch")
    }
    return {field: different for field, different in values.items() if len(different) > 1}
