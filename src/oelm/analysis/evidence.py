"""A record as evidence: which arm it is of, where it stands on a study's axes, and what it means, field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from oelm.record.schema import RunRecord
from oelm.spec.base import NoEffect, Spec
from oelm.spec.model import ForeignSpec
from oelm.spec.run import RunSpec, declared
from oelm.study import Study

MACHINE = ("device", "cores", "platform", "torch")
"""What of an environment makes runs faster or slower: seconds and bytes are compared where all of it is the same."""
BOUND_LATER, WEIGHTS = "data.checksum", "model.checksum"
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


def cell_of(study: Study, run: RunSpec) -> Cell:
    """Return where a run stands on the study's axes."""
    return tuple((axis, shown(value)) for axis, value in study.place(run).items())


def shown(value: Any) -> str:
    """Write a field's value as in JSON, so that text and numbers cannot be confused."""
    return json.dumps(value, ensure_ascii=False)


def meaning(run: RunSpec) -> dict[str, Any]:
    """Return dotted field -> value of all that can change a run's numbers but checksums.

    Unlike `Spec.meaning`, which is made for hashing, fields at their default are in it: a reader who is told
    that two runs differ wants to see both values.
    """
    fields = dict(_telling(declared(run)))
    return {field: value for field, value in fields.items() if field not in (BOUND_LATER, WEIGHTS)}


def bytes_of(run: RunSpec) -> dict[str, str | None]:
    """Return the checksums that a run got when it was bound: of its data, and of weights in a directory."""
    weights = {WEIGHTS: run.model.checksum} if isinstance(run.model, ForeignSpec) else {}
    return {BOUND_LATER: run.data.checksum, **weights}


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
    """Return a function that tells where a run departs from the most similar of `runs`: nowhere if it is one."""
    known = [meaning(run) for run in runs]

    def departure(spec: RunSpec) -> Differences:
        own = meaning(spec)
        candidates = (differences(own, other) for other in known)
        return min(candidates, key=len, default={"study": ("this run", "no run at all")})

    return departure
