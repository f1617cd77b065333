"""Compare the records of a study: check that runs are comparable, pair arms with the reference by seed, judge them.

Nothing is dropped silently: a run without a figure is a `Gap`, a record that does not belong to the study is `Ignored`,
an unreadable file is reported, and all of them are part of the `Comparison`. `gather` compares runs without a study.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from oelm.analysis.content import content_margin
from oelm.analysis.evidence import (
    BOUND_LATER,
    LOST,
    MACHINE,
    WEIGHTS,
    Cell,
    Evidence,
    JudgedSplit,
    Matrix,
    Measure,
    Row,
    RowPlace,
    bytes_of,
    cell_of,
    differing_fields,
    find_departure,
    format_value,
    list_meaning,
    margin_of,
    measure_of,
)
from oelm.errors import BadRecord, IncomparableRuns, UsageError
from oelm.record.archive import ARCHIVE
from oelm.record.folder import RECORD, STUDY, find_records, read_record, read_study
from oelm.record.record import RunRecord
from oelm.record.registration import Registration, read_registration, registration_of
from oelm.record.stages import Stage, index_by_declaration, index_by_key, is_settled, sort_by_precedence, stage_of
from oelm.spec.method import MethodSpec
from oelm.spec.run import NUMERICS, DataSpec, HuggingFaceSpec, RunSpec, declared_fingerprint, fingerprint, undo_resolve
from oelm.spec.study import AnyStudy, Arm, Study, field_at, load_study

# Fairness: runs in one comparison may differ only in what the study declares.

PRECISION = "train.precision"


def _list_complaints(
    study: Study,
    runs: Sequence[RunSpec],
    evidence: Sequence[Evidence],
    tuning: Sequence[Evidence],
    *,
    gathered: bool,
) -> Iterator[str]:
    """Yield everything that makes the comparison unfair, one message per field with both values.

    `runs` are the study's own at its stage: each arm at the setting that it was tuned to.
    """
    arms = {arm.name: arm for arm in study.arms}
    yield from _check_declared(study, runs, arms, evidence)
    yield from _check_undeclared(study, arms, evidence, gathered=gathered)
    complete = [item for item in evidence if item.record.status == "complete"]
    yield from _find_unequal(
        "numerics",
        [(item, item.record.numerics) for item in complete],
        "These versions of the program compute different results: run the older ones again, or keep them in another "
        "folder.",
    )
    complete += [item for item in tuning if item.record.status == "complete"]
    if not covers((*study.varied, *study.tuned), PRECISION):
        yield from _find_unequal(
            PRECISION,
            [(item, item.spec.train.precision) for item in complete],
            "They were computed in different number formats. Set train.precision to 'fp32' or 'bf16' in the base run "
            "instead of 'auto', and run the others again.",
        )
    # The bytes of labelled text depend on the model's tokenizer, so they may differ between models.
    data_vary = covers(("data", "model"), *study.varied)
    for cell in sorted({cell_of(study, item.spec) for item in complete}) if data_vary else [None]:
        yield from _find_unequal(
            BOUND_LATER,
            [(item, item.spec.data.checksum) for item in complete if cell in (None, cell_of(study, item.spec))],
            "They were trained on different bytes: prepare the data once and run the others again.",
        )
    by_model: dict[str, list[tuple[Evidence, Any]]] = {}
    for item in complete:
        if isinstance(item.spec.model, HuggingFaceSpec):
            by_model.setdefault(item.spec.model.name, []).append((item, item.spec.model.checksum))
    for values in by_model.values():
        yield from _find_unequal(
            WEIGHTS, values, "The files of their model changed between these runs: run them again."
        )


def _check_declared(
    study: Study, runs: Sequence[RunSpec], arms: Mapping[str, Arm], evidence: Sequence[Evidence]
) -> Iterator[str]:
    """Check that each run of an arm has the values that the arm declares or was tuned to."""
    expected = {(run.arm, cell_of(study, run)): run for run in reversed(runs)}
    by_arm = {arm: meant for (arm, _), meant in expected.items()}
    for item in evidence:
        meant = expected.get((item.arm, cell_of(study, item.spec))) or by_arm.get(item.arm)
        if meant is None:
            continue
        own = (*declared_by(arms[item.arm]), *study.tuned)
        for field, (found, wanted) in differing_fields(list_meaning(item.spec), list_meaning(meant)).items():
            if covers(own, field) and not covers(study.varied, field):
                yield (
                    f"a run of {item.arm!r} has {field} {format_value(found)}, but this study's arm of that name "
                    f"has {format_value(wanted)}. Give the run an arm of its own. ({item.directory})"
                )


def _check_undeclared(
    study: Study, arms: Mapping[str, Arm], evidence: Sequence[Evidence], *, gathered: bool
) -> Iterator[str]:
    """Check that every other field has the same value in all runs whose arm does not declare it."""
    by_field: dict[str, list[tuple[Evidence, Any]]] = {}

    @cache
    def may_vary(arm: str, field: str) -> bool:
        own = (*declared_by(arms[arm]), *study.varied, *study.tuned, "seed")
        return field == PRECISION or covers(own, field)  # the precision that was used is checked instead

    for item in sorted(evidence, key=lambda item: item.arm != study.reference):
        for field, value in list_meaning(item.spec).items():
            if not may_vary(item.arm, field):
                by_field.setdefault(field, []).append((item, value))
    why = ", which no study declares" if gathered else ", which this study does not declare"
    for field, values in by_field.items():
        yield from _find_unequal(field, values, _advice(field, gathered=gathered), why=why)


def _advice(field: str, *, gathered: bool) -> str:
    """Suggest how to make a difference fair: training settings are tuned, everything else is an axis."""
    place = "tuned= with a shared grid" if field.startswith("train.") else "axes= with its values"
    if gathered:
        return f"Give runs that agree in it, or the file of a study that has it in {place}."
    return f"Add it to {place}, or fix it in the base run."


def _find_unequal(field: str, values: Sequence[tuple[Evidence, Any]], advice: str, why: str = "") -> Iterator[str]:
    for item, value in values:
        first, known = values[0]
        if value != known:
            both = f"{format_value(value)}, {format_value(known)}"
            yield f"{_names(item, first)} differ in {field} ({both}){why}. {advice}"
            return


def _names(one: Evidence, other: Evidence) -> str:
    if one.arm != other.arm:
        return f"{one.arm!r} and {other.arm!r}"
    return f"{one.arm!r} with seed {one.spec.seed} and {other.arm!r} with seed {other.spec.seed}"


def declared_by(arm: Arm) -> tuple[str, ...]:
    """Return the fields that an arm sets."""
    return ("method", *(f"model.{name}" for name in arm.model))


def covers(declared: Iterable[str], *fields: str) -> bool:
    """Whether one of the declared fields equals or contains one of `fields`."""
    return any(field == name or field.startswith(f"{name}.") for name in declared for field in fields)


Found = tuple[Path, RunRecord]
GapState = Literal["missing", "running", "interrupted", "failed", "diverged", "unmeasured"]


@dataclass(frozen=True)
class Gap:
    """A run of the study without a figure, and why. `evidence` is None if there is no record."""

    arm: str
    cell: Cell
    """Place on the axes and, for a tuning run, on the grid."""
    seed: int
    state: GapState
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Ignored:
    """A record that does not count: it differs from the study's nearest run, or repeats a run in another folder."""

    directory: Path
    arm: str
    seed: int
    differs: dict[str, tuple[Any, Any]]
    """Field -> the record's value and the study's value."""
    twin: Path | None = None
    """The folder that counts instead, for a repeated run."""


@dataclass(frozen=True)
class Comparison:
    """A study's answer, with all its evidence and everything that is missing."""

    study: Study
    stage: Stage
    measure: Measure
    margin: float
    """The largest allowed difference of cost; NaN before tuning has fixed it (margin="content")."""
    rows: tuple[Row, ...]
    gaps: tuple[Gap, ...]
    ignored: tuple[Ignored, ...]
    tuning: tuple[Evidence, ...]
    """The records of the first stage."""
    mixed: dict[str, tuple[str, ...]]
    """Fields of the environment in which the runs differ, and their values: speeds are not comparable then."""
    unfair: tuple[str, ...] = ()
    """Why the comparison is unfair, if it was forced."""
    unreadable: tuple[str, ...] = ()
    registration: Registration | None = None
    """What was declared before the first confirming run; None for runs outside a study's folder."""
    waiting: frozenset[RowPlace] = frozenset()
    """Declared confirming runs that are not complete: verdicts wait for them."""

    @property
    def judged(self) -> JudgedSplit:
        """The split of the figures: test, or validation for data without a test split."""
        return self.measure.judged

    @property
    def cells(self) -> list[Cell]:
        """The places on the axes."""
        return list(dict.fromkeys(row.cell for row in self.rows))

    @property
    def is_probe(self) -> bool:
        """Whether the data are a probe, which says nothing about text or labels."""
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


def compare_folder(
    study: Study, root: Path, *, force: bool = False, read: tuple[Sequence[Found], Sequence[BadRecord]] | None = None
) -> Comparison:
    """Compare the study's runs among all records below a folder; other records are listed as ignored.

    `read` are these records, and the errors of those that cannot be read, if the caller has read them already.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder, so it has no run of study {study.name!r}. Run the study first.")
    found, bad = read or find_records(root)
    members, ignored = select(study, found)
    known = read_registration(root)
    comparison = compare_records(
        study, members, force=force, registered_margin=known.margin_resolved if known else None
    )
    return replace(
        comparison,
        registration=registration_of(root, study, comparison.stage.choice, comparison.confirming),
        ignored=(*comparison.ignored, *ignored),
        unreadable=tuple(str(error) for error in bad),
    )


def select(study: Study, found: Iterable[Found]) -> tuple[list[Found], list[Ignored]]:
    """Separate the records of the study's own runs, of either stage, from other records."""
    found = list(found)
    departure = find_departure(stage_of(study, index_by_declaration(record for _, record in found)).runs)
    members: list[Found] = []
    ignored: list[Ignored] = []
    for directory, record in found:
        if differs := departure(record.spec):
            ignored.append(Ignored(directory, record.spec.arm, record.spec.seed, differs))
        else:
            members.append((directory, record))
    return members, ignored


def compare_records(
    study: Study,
    records: Iterable[Found],
    *,
    force: bool = False,
    gathered: bool = False,
    registered_margin: float | None = None,
) -> Comparison:
    """Compare records that all belong to this study, or that it was `gathered` from.

    `registered_margin` is the margin that tuning fixed for `margin="content"`, in percent; None: compute it from the
    tuning records.

    Raise IncomparableRuns if two records differ in a field that the study does not declare as arm, axis, tuned or seed,
    in `numerics`, or in their data. With `force` the reasons are kept in the comparison instead.
    """
    records = list(records)
    stage = stage_of(study, index_by_declaration(record for _, record in records))
    found, everything = _assign(study, stage, records)
    tuning, repeated = _drop_repeated_tuning(found)
    evidence, outdated = _drop_outdated(everything)
    unfair = tuple(_list_complaints(study, stage.confirm, evidence, tuning, gathered=gathered))
    if unfair and not force:  # a gathered study has no file that could be changed
        way_out = " `oelm compare --force` compares them anyway, and says what is unfair." if gathered else ""
        raise IncomparableRuns(unfair[0] + way_out)
    kept, twins = _drop_twins(study, evidence)
    # A run that has not been scored yet does not show whether its data have a test split.
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
    # The seeds of a gathered study are not declared, so it waits for none.
    waiting = frozenset((gap.arm, gap.cell, gap.seed) for gap in gaps if gap.state not in LOST and not gathered)
    matrix = Matrix(study, measure, margin, whole, lost, waiting)
    rows = tuple(row for cell in cells for row in matrix.rows(arms, cell))
    return Comparison(
        study, stage, measure, margin, rows, (*_tuning_gaps(study, stage, tuning), *gaps),
        (*twins, *repeated, *outdated), tuple(tuning),
        _find_mixed(whole.values()), unfair, waiting=waiting,
    )  # fmt: skip


def _margin(
    study: Study, measure: Measure, stage: Stage, tuning: Sequence[RunRecord], registered: float | None
) -> float:
    if study.margin != "content":
        return margin_of(measure, study.margin)
    if registered is None and stage.choice is None:
        return math.nan
    return margin_of(measure, content_margin(study, tuning) if registered is None else registered)


def _assign(study: Study, stage: Stage, records: Iterable[Found]) -> tuple[list[Evidence], list[Evidence]]:
    """Assign each record to an arm by its fingerprint, else by its own arm's name. Return tuning and other records."""
    tune = {fingerprint(run): run.arm for run in stage.tune}
    confirm = {fingerprint(run): run.arm for run in stage.confirm}
    known = [arm.name for arm in study.arms]
    tuning, rest = [], []
    for directory, record in records:
        key = declared_fingerprint(record.spec)
        if key in tune:
            tuning.append(Evidence(tune[key], directory, record))
            continue
        arm = confirm.get(key, record.spec.arm)
        if arm not in known:
            raise IncomparableRuns(
                f"{directory} is a run of {arm!r}, which is not an arm of study {study.name!r} "
                f"({', '.join(known)}). Add it to arms=, or leave the record out."
            )
        rest.append(Evidence(arm, directory, record))
    return tuning, rest


def _drop_repeated_tuning(found: Sequence[Evidence]) -> tuple[list[Evidence], list[Ignored]]:
    """Keep the one record of each tuning run that the choice of settings used; list the others."""
    keys = [declared_fingerprint(item.spec) for item in found]
    of_run = index_by_key(zip(keys, (item.record for item in found), strict=True))
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


def _drop_outdated(evidence: Sequence[Evidence]) -> tuple[list[Evidence], list[Ignored]]:
    """Drop runs on other data than the newest record of the same run, which was repeated after new preparation."""
    settled = [item for item in evidence if is_settled(item.record) and item.record.numerics == NUMERICS]
    newest = {declared_fingerprint(item.spec): item for item in sort_by_precedence(settled, lambda item: item.record)}
    kept, outdated = [], []
    for item in evidence:
        last = newest.get(declared_fingerprint(item.spec), item)
        other = differing_fields(bytes_of(item.spec), bytes_of(last.spec))
        if item.record.numerics != NUMERICS or not other:
            kept.append(item)
        else:
            outdated.append(Ignored(item.directory, item.arm, item.spec.seed, other))
    return kept, outdated


def _drop_twins(study: Study, evidence: Sequence[Evidence]) -> tuple[dict[RowPlace, Evidence], tuple[Ignored, ...]]:
    """Keep the one record of each run that counts; list the others."""
    kept: dict[RowPlace, Evidence] = {}
    twins = []
    for item in reversed(sort_by_precedence(evidence, lambda item: item.record)):
        first = kept.setdefault((item.arm, cell_of(study, item.spec), item.spec.seed), item)
        if first is not item:
            differs = differing_fields(list_meaning(item.spec), list_meaning(first.spec))
            twin = None if differs else first.directory
            twins.append(Ignored(item.directory, item.arm, item.spec.seed, differs, twin=twin))
    return kept, tuple(twins)


def _tuning_gaps(study: Study, stage: Stage, tuning: Iterable[Evidence]) -> list[Gap]:
    found = {declared_fingerprint(item.spec): item for item in tuning}
    gaps = []
    for run in stage.tune:
        item = found.get(fingerprint(run))
        state = _state(item, measure_of(run.data, [item.record.result if item else None]))
        if state != "complete":
            point = tuple((field, format_value(field_at(run.model_dump(mode="json"), field))) for field in study.tuned)
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
    return "complete" if math.isfinite(cost) else "diverged"


def _find_mixed(evidence: Iterable[Evidence]) -> dict[str, tuple[str, ...]]:
    found = [item.record.environment for item in evidence]
    values = {field: tuple(sorted({str(getattr(environment, field)) for environment in found})) for field in MACHINE}
    return {field: different for field, different in values.items() if len(different) > 1}


# Runs without a study: one comparison per corpus, with the runs' methods as arms.


@dataclass(frozen=True)
class Gathering:
    """The comparisons of some runs, and messages about runs that could not be compared."""

    comparisons: tuple[Comparison, ...]
    alone: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    root: Path | None = None
    """The folder of the study's runs, if a study declares them."""


def find_runs(paths: Sequence[Path]) -> tuple[list[Found], list[str]]:
    """Read the records of run folders, and of all runs below other folders."""
    found: list[Found] = []
    unreadable: list[str] = []
    for path in paths:
        if (path / RECORD).exists():
            found.append((path, read_record(path)))
            continue
        if not path.is_dir():
            raise UsageError(f"{path} cannot be compared: there is no such folder. Give folders of runs.")
        below, bad = find_records(path)
        if not below and not bad:
            raise UsageError(f"{path} cannot be compared: there is no {RECORD} in it or below. Give folders of runs.")
        found += below
        unreadable += map(str, bad)
    unique = {directory.resolve(): (directory, record) for directory, record in found}
    return list(unique.values()), unreadable


def gather(found: Iterable[Found], *, force: bool = False, unreadable: Sequence[str] = ()) -> Gathering:
    """Compare runs corpus by corpus.

    Raise IncomparableRuns if runs on one corpus differ in more than method and seed, unless `force` is set, and if no
    corpus has two arms.
    """
    comparisons: list[Comparison] = []
    alone: list[str] = []
    for corpus, members in by_data(found).items():
        methods = methods_of(members)
        if len(methods) > 1:
            comparisons.append(_compare_gathered(corpus, members, methods, force=force))
            continue
        arms = ", ".join(sorted({record.spec.arm for _, record in members}))
        alone.append(f"{arms} is the only arm on data.corpus {corpus}: there is nothing to compare it with.")
    if not comparisons:
        raise IncomparableRuns(
            f"no two of these runs can be compared. {' '.join(alone) or 'There are none.'} Give runs of at least two "
            "methods on the same corpus."
        )
    return Gathering(tuple(comparisons), tuple(alone), tuple(unreadable))


def by_data(found: Iterable[Found]) -> dict[str, list[Found]]:
    """Group runs by their training data: by corpus and, if one corpus has several groups, by what else differs."""
    groups: dict[str, list[Found]] = {}
    for directory, record in found:
        data = undo_resolve(record.spec).data
        key = json.dumps(data.meaning() | {"corpus": data.corpus, "kind": data.kind}, sort_keys=True)
        groups.setdefault(key, []).append((directory, record))
    corpora = Counter(json.loads(key)["corpus"] for key in groups)
    kinds = Counter(corpus for corpus, _ in {(plain["corpus"], plain["kind"]) for plain in map(json.loads, groups)})
    named = {}
    for key, members in groups.items():
        plain = json.loads(key)
        corpus = plain.pop("corpus")
        apart = plain if kinds[corpus] > 1 else {field: value for field, value in plain.items() if field != "kind"}
        rest = ", ".join(f"{field} {value}" for field, value in apart.items())
        named[corpus if corpora[corpus] == 1 else f"{corpus} ({rest or 'as it is'})"] = members
    return named


def methods_of(members: Sequence[Found]) -> dict[str, MethodSpec]:
    """Name the methods by the runs' arms, with a number if two methods share an arm's name."""
    names: dict[str, MethodSpec] = {}
    for _, record in members:
        if record.spec.method in names.values():
            continue
        name, number = record.spec.arm, 2
        while name in names:
            name, number = f"{record.spec.arm} ({number})", number + 1
        names[name] = record.spec.method
    return names


def _compare_gathered(
    corpus: str, members: Sequence[Found], methods: dict[str, MethodSpec], *, force: bool
) -> Comparison:
    reference = min(methods, key=lambda name: (bool(methods[name].freeze.roles), methods[name].touches))
    base = next(record.spec for _, record in members if record.spec.method == methods[reference])
    study = Study(
        name="gathered",
        question=f"How do these runs on {corpus} compare?",
        base=undo_resolve(base),
        arms=tuple(Arm(name=name, method=method) for name, method in methods.items()),
        reference=reference,
        seeds=tuple(sorted({record.spec.seed for _, record in members})),
    )
    # The corpus is the title. It (owner/name) may not be a valid study name, but nothing is written for this study.
    study = study.model_copy(update={"name": corpus})
    own = [(path, _as_arm(record, methods)) for path, record in members]
    return compare_records(study, own, force=force, gathered=True)


def _as_arm(record: RunRecord, methods: dict[str, MethodSpec]) -> RunRecord:
    name = next(name for name, method in methods.items() if method == record.spec.method)
    return record.model_copy(update={"spec": record.spec.model_copy(update={"arm": name})})


# The folder of a study's runs.


def find_study(study: AnyStudy | Path, runs: Path, scale: str | None = None) -> tuple[AnyStudy, Path]:
    """Find a study and the folder with its runs, from its declaration, its file or that folder."""
    if isinstance(study, Path):
        folder = study.parent if study.name == ARCHIVE else study
        if folder.is_dir():
            return read_study(folder), folder
    declared = load_study(study, scale) if isinstance(study, Path) else study
    root = next((folder for folder in (runs / declared.name, runs) if _has_runs_of(folder, declared)), None)
    if root is None:
        start = f"`oelm run {study}`" if isinstance(study, Path) else "oelm.run(study)"
        raise UsageError(
            f"no run of {declared.name!r} is in {runs}. Start it with {start}, or give the folder with its runs "
            "as --runs."
        )
    return declared, root


def _has_runs_of(folder: Path, study: AnyStudy) -> bool:
    """Whether a folder has the runs of a study: by the declaration in it or, without one, by the runs themselves."""
    if (folder / STUDY).exists():
        return read_study(folder).name == study.name
    if any(folder.glob(f"*/{STUDY}")) or not any(folder.glob(f"*/{RECORD}")):
        return False
    found, _ = find_records(folder)
    known = index_by_declaration(record for _, record in found)
    return any(fingerprint(run) in known for run in stage_of(study, known).runs)
