"""Whether runs may stand in one table: they differ in what the study declares, and in nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from oelm.analysis.evidence import BOUND_LATER, WEIGHTS, Evidence, cell_of, differences, meaning, shown
from oelm.errors import IncomparableRuns
from oelm.spec.model import ForeignSpec
from oelm.spec.run import RunSpec
from oelm.study import Arm, Study

PRECISION = "train.precision"


def check(
    study: Study,
    runs: Sequence[RunSpec],
    evidence: Sequence[Evidence],
    tuning: Sequence[Evidence] = (),
    *,
    gathered: bool = False,
) -> None:
    """Raise IncomparableRuns, naming the field and both values, unless the runs are fair to one another.

    `runs` are the study's own at its stage: each arm at the setting that it was tuned to. A study that was `gathered`
    from the runs is nobody's declaration, so that nobody can add to it: what helps is other runs, a study, or force.
    """
    for complaint in complaints(study, runs, evidence, tuning, gathered=gathered):
        way_out = " `oelm compare --force` compares them all the same, and says what is unfair." if gathered else ""
        raise IncomparableRuns(complaint + way_out)


def complaints(
    study: Study,
    runs: Sequence[RunSpec],
    evidence: Sequence[Evidence],
    tuning: Sequence[Evidence] = (),
    *,
    gathered: bool = False,
) -> Iterator[str]:
    """Say everything that makes the runs unfair to one another, a sentence per field."""
    arms = {arm.name: arm for arm in study.arms}
    yield from _of_declared(study, runs, arms, evidence)
    yield from _of_undeclared(study, arms, evidence, gathered=gathered)
    complete = [item for item in evidence if item.record.status == "complete"]
    yield from _of_unequal(
        "numerics",
        [(item, item.record.numerics) for item in complete],
        "Results changed between these versions of the program: run the older ones again, or keep them in a "
        "folder of their own.",
    )
    complete += [item for item in tuning if item.record.status == "complete"]
    # The bytes of labelled text are those that its model reads, so they go with the model, too.
    if not covers((*study.varied, *study.tuned), PRECISION):
        yield from _of_unequal(
            PRECISION,
            [(item, item.spec.train.precision) for item in complete],
            "They were computed in different number formats. Say train.precision='fp32' or 'bf16' in the base run "
            "instead of 'auto', and run the others again.",
        )
    data_vary = covers(("data", "model"), *study.varied)
    for cell in sorted({cell_of(study, item.spec) for item in complete}) if data_vary else [None]:
        yield from _of_unequal(
            BOUND_LATER,
            [(item, item.spec.data.checksum) for item in complete if cell in (None, cell_of(study, item.spec))],
            "They were trained on different bytes: prepare the data once and run the others again.",
        )
    by_model: dict[str, list[tuple[Evidence, Any]]] = {}
    for item in complete:
        if isinstance(item.spec.model, ForeignSpec):
            by_model.setdefault(item.spec.model.name, []).append((item, item.spec.model.checksum))
    for values in by_model.values():
        yield from _of_unequal(WEIGHTS, values, "The files of their model were changed between them: run them again.")


def _of_declared(
    study: Study, runs: Sequence[RunSpec], arms: Mapping[str, Arm], evidence: Sequence[Evidence]
) -> Iterator[str]:
    """Check that what an arm declares, and what it was tuned to, has the arm's values in each of its runs."""
    expected = {(run.arm, cell_of(study, run)): meaning(run) for run in reversed(runs)}
    by_arm = {arm: meant for (arm, _), meant in expected.items()}
    for item in evidence:
        meant = expected.get((item.arm, cell_of(study, item.spec))) or by_arm.get(item.arm)
        own = (*declared_by(arms[item.arm]), *study.tuned)
        for field, (found, wanted) in differences(meaning(item.spec), meant).items() if meant else ():
            if covers(own, field) and not covers(study.varied, field):
                yield (
                    f"a run of {item.arm!r} has {field} {shown(found)}, and this study's arm of that name "
                    f"has {shown(wanted)}. Give the other one an arm of its own. ({item.directory})"
                )


def _of_undeclared(
    study: Study, arms: Mapping[str, Arm], evidence: Sequence[Evidence], *, gathered: bool
) -> Iterator[str]:
    """Check that every other field has one value over all runs whose arm does not declare it."""
    by_field: dict[str, list[tuple[Evidence, Any]]] = {}
    for item in sorted(evidence, key=lambda item: item.arm != study.reference):
        own = (*declared_by(arms[item.arm]), *study.varied, *study.tuned, "seed")
        for field, value in meaning(item.spec).items():
            if field != PRECISION and not covers(own, field):  # the one that was used counts, not the one declared
                by_field.setdefault(field, []).append((item, value))
    why = ", which no study declares" if gathered else ", which this study does not declare"
    for field, values in by_field.items():
        yield from _of_unequal(field, values, _advice(field, gathered=gathered), why=why)


def _advice(field: str, *, gathered: bool) -> str:
    """Say how to make a difference fair: training settings are tuned, everything else is an axis of its own."""
    place = "tuned= with a shared grid" if field.startswith("train.") else "axes= with its values"
    if gathered:
        return f"Give runs that agree in it, or the file of a study that has it in {place}."
    return f"Add it to {place}, or fix it in the base run."


def _of_unequal(field: str, values: Sequence[tuple[Evidence, Any]], advice: str, why: str = "") -> Iterator[str]:
    for item, value in values:
        first, known = values[0]
        if value != known:
            both = f"{shown(value)}, {shown(known)}"
            yield f"{_names(item, first)} differ in {field} ({both}){why}. {advice}"
            return


def _names(one: Evidence, other: Evidence) -> str:
    if one.arm != other.arm:
        return f"{one.arm!r} and {other.arm!r}"
    return f"{one.arm!r} with seed {one.spec.seed} and {other.arm!r} with seed {other.spec.seed}"


def declared_by(arm: Arm) -> tuple[str, ...]:
    """Name the fields that an arm sets by itself."""
    return ("method", *(f"model.{name}" for name in arm.model))


def covers(declared: Iterable[str], *fields: str) -> bool:
    """Whether a declared field is one of these or contains it."""
    return any(field == name or field.startswith(f"{name}.") for name in declared for field in fields)
