"""Whether runs may stand in one table: they differ in what the study declares, and in nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from oelm.errors import IncomparableRuns
from oelm.record.schema import RunRecord
from oelm.spec.base import NoEffect, Spec
from oelm.spec.run import RunSpec
from oelm.study import Arm, Study

BOUND_LATER = "data.checksum"
"""None in a study's runs, filled in when a run is bound to its data."""

(_NO_EFFECT,) = get_args(NoEffect)[1:]

Differences = dict[str, tuple[Any, Any]]
"""Dotted field -> both values; None stands for a field that one side lacks."""

Cell = tuple[tuple[str, str], ...]
"""Axis and value, the value as JSON: one combination of a study's axes. Empty where it has none."""


@dataclass(frozen=True)
class Evidence:
    """A record, where it lies, and the arm of the study that it belongs to."""

    arm: str
    directory: Path
    record: RunRecord

    @property
    def spec(self) -> RunSpec:
        """The run's spec."""
        return self.record.spec


def check(study: Study, evidence: Sequence[Evidence]) -> None:
    """Raise IncomparableRuns, naming the field and both values, unless the runs are fair to one another."""
    arms = {arm.name: arm for arm in study.arms}
    _check_declared(study, arms, evidence)
    _check_undeclared(study, arms, evidence)
    complete = [item for item in evidence if item.record.status == "complete"]
    _check_equal(
        "numerics",
        [(item, item.record.numerics) for item in complete],
        "Results changed between these versions of the program: run the older ones again, or keep them in a "
        "folder of their own.",
    )
    data_vary = covers(("data",), *study.axes)
    for cell in sorted({cell_of(study, item.spec) for item in complete}) if data_vary else [None]:
        _check_equal(
            BOUND_LATER,
            [(item, item.spec.data.checksum) for item in complete if cell in (None, cell_of(study, item.spec))],
            "They were trained on different bytes: prepare the data once and run the others again.",
        )


def _check_declared(study: Study, arms: Mapping[str, Arm], evidence: Sequence[Evidence]) -> None:
    """Check that what an arm declares has the arm's values in each of its runs."""
    expected = {run.arm: meaning(run) for run in reversed(study.runs())}
    for item in evidence:
        for field, (found, meant) in differences(meaning(item.spec), expected[item.arm]).items():
            if covers(declared_by(arms[item.arm]), field) and not covers(study.axes, field):
                raise IncomparableRuns(
                    f"a run of {item.arm!r} has {field} {shown(found)}, and this study's arm of that name "
                    f"has {shown(meant)}. Give the other one an arm of its own. ({item.directory})"
                )


def _check_undeclared(study: Study, arms: Mapping[str, Arm], evidence: Sequence[Evidence]) -> None:
    """Check that every other field has one value over all runs whose arm does not declare it."""
    by_field: dict[str, list[tuple[Evidence, Any]]] = {}
    for item in sorted(evidence, key=lambda item: item.arm != study.reference):
        own = (*declared_by(arms[item.arm]), *study.axes, "seed")
        for field, value in meaning(item.spec).items():
            if not covers(own, field):
                by_field.setdefault(field, []).append((item, value))
    for field, values in by_field.items():
        _check_equal(
            field,
            values,
            "Add it to axes= with its values, or fix it in the base run.",
            why=", which this study does not declare",
        )


def _check_equal(field: str, values: Sequence[tuple[Evidence, Any]], advice: str, why: str = "") -> None:
    for item, value in values:
        first, known = values[0]
        if value != known:
            both = f"{shown(value)}, {shown(known)}"
            raise IncomparableRuns(f"{_names(item, first)} differ in {field} ({both}){why}. {advice}")


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


def meaning(run: RunSpec) -> dict[str, Any]:
    """Return dotted field -> value of all that can change a run's numbers but the checksum of its data.

    Unlike `Spec.meaning`, which is made for hashing, fields at their default are in it: a reader who is told
    that two runs differ wants to see both values.
    """
    fields = dict(_telling(run))
    del fields[BOUND_LATER]
    return fields


def _telling(spec: Spec, prefix: str = "") -> Iterator[tuple[str, Any]]:
    plain = spec.model_dump(mode="json")
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if _NO_EFFECT in field.metadata:
            continue
        if isinstance(value, Spec):
            yield from _telling(value, f"{prefix}{name}.")
        elif isinstance(value, dict) and value:
            yield from ((f"{prefix}{name}.{key}", inner) for key, inner in plain[name].items())
        else:
            yield f"{prefix}{name}", plain[name]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Differences:
    """Return the fields in which two meanings differ."""
    return {
        field: (one.get(field), other.get(field)) for field in {**one, **other} if one.get(field) != other.get(field)
    }


def departure_from(runs: Sequence[RunSpec]) -> Callable[[RunSpec], Differences]:
    """Return a function that tells where a run departs from the most similar of `runs`: nowhere if it is one.

    The checksum of the data counts only against a run that has been bound to its data.
    """
    known = [(meaning(run), run.data.checksum) for run in runs]

    def departure(spec: RunSpec) -> Differences:
        own, checksum = meaning(spec), spec.data.checksum
        candidates = (
            {
                **differences(own, other),
                **({BOUND_LATER: (checksum, bound)} if bound not in (None, checksum) else {}),
            }
            for other, bound in known
        )
        return min(candidates, key=len)

    return departure


def cell_of(study: Study, run: RunSpec) -> Cell:
    """Return where a run stands on the study's axes."""
    plain = run.model_dump(mode="json")
    return tuple((axis, shown(_at(plain, axis))) for axis in study.axes)


def _at(plain: Any, path: str) -> Any:
    for name in path.split("."):
        plain = plain.get(name) if isinstance(plain, dict) else None
    return plain


def shown(value: Any) -> str:
    """Write a field's value as in JSON, so that text and numbers cannot be confused."""
    return json.dumps(value, ensure_ascii=False)
