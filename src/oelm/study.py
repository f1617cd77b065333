"""A study: a base run, some arms and some axes, expanded to runs.

Studies are Python files that bind one `Study` to the name `study`. An arm replaces the method and, for controls
such as thin Q/K, fields of the model; an axis replaces one field of the run by each of its values; seeds pair
the arms.
"""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path
from typing import Any, Self

from pydantic import NonNegativeInt, ValidationError, field_validator, model_validator

from oelm.errors import InvalidSpec, OelmError, UnknownName, UsageError
from oelm.spec.base import Spec
from oelm.spec.method import MethodSpec, named_method
from oelm.spec.run import RunSpec, fingerprint


class Arm(Spec):
    """A method under the name the study gives it, with the model fields it replaces."""

    name: str
    method: MethodSpec
    model: dict[str, Any] = {}


class Study(Spec):
    """The ablation as a value."""

    name: str
    question: str
    base: RunSpec
    arms: tuple[Arm, ...]
    reference: str = "baseline"
    """The arm that the others are compared with."""
    axes: dict[str, tuple[Any, ...]] = {}
    """Dotted field of the run -> the values it takes."""
    seeds: tuple[NonNegativeInt, ...] = (0,)

    @field_validator("arms", mode="before")
    @classmethod
    def _names_become_arms(cls, arms: Any) -> Any:
        return tuple(Arm(name=arm, method=named_method(arm)) if isinstance(arm, str) else arm for arm in arms)

    @model_validator(mode="after")
    def _is_a_matrix(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"two arms share a name in {names}")
        if self.reference not in names:
            raise ValueError(f"reference={self.reference!r} is none of the arms {names}")
        for what, values in {"seeds": self.seeds, **self.axes}.items():
            if not values:
                raise ValueError(f"{what} is empty, so the study has no runs; give it at least one value")
        return self

    def runs(self) -> list[RunSpec]:
        """Expand to runs: arms within axis values within seeds, so that an early stop leaves whole pairs."""
        runs = [
            self._run(arm, dict(zip(self.axes, values, strict=True)), seed)
            for seed in self.seeds
            for values in itertools.product(*self.axes.values())
            for arm in self.arms
        ]
        seen: dict[str, RunSpec] = {}
        for run in runs:
            twin = seen.setdefault(fingerprint(run), run)
            if twin is not run:
                raise InvalidSpec(
                    f"study {self.name!r} declares one run twice: arms {twin.arm!r} and {run.arm!r} "
                    f"with seed {run.seed} have the same fingerprint. Remove one of them."
                )
        return runs

    def _run(self, arm: Arm, values: dict[str, Any], seed: int) -> RunSpec:
        run = self.base.model_copy(update={"arm": arm.name, "method": arm.method, "seed": seed})
        for field, value in {
            **{f"model.{name}": value for name, value in arm.model.items()},
            **values,
        }.items():
            run = replaced(run, field, value)
        return run


def replaced(run: RunSpec, field: str, value: Any) -> RunSpec:
    """Return the run with one dotted field replaced, validated anew."""
    plain = run.model_dump(mode="python")
    *path, last = field.split(".")
    inner = plain
    for name in path:
        inner = _descend(inner, name, field)
    _descend(inner, last, field)
    inner[last] = value
    try:
        return RunSpec.model_validate(plain)
    except ValidationError as error:
        raise InvalidSpec(f"{field}={value!r} does not fit the run: {_in_words(error)}") from error


def _descend(inner: Any, name: str, field: str) -> Any:
    if not isinstance(inner, dict) or name not in inner:
        known = inner if isinstance(inner, dict) else ()
        raise UnknownName(
            "field of a run",
            field.rpartition(name)[0] + name,
            [field.rpartition(name)[0] + option for option in known],
        )
    return inner[name]


def _in_words(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())


def load_study(path: Path) -> Study:
    """Read the `study` that a Python file declares."""
    if not path.is_file():
        raise UsageError(
            f"there is no study file {path}. A study is a Python file that binds `study = Study(...)`; "
            "studies/demo.py is one to start from."
        )
    try:
        names = runpy.run_path(str(path))
    except ValidationError as error:
        raise InvalidSpec(f"{path} does not declare a valid study: {_in_words(error)}") from error
    except OelmError:
        raise
    except Exception as error:
        raise UsageError(f"{path} raised {type(error).__name__} while it was read: {error}") from error
    study = names.get("study")
    if not isinstance(study, Study):
        raise UsageError(f"{path} binds no `study`: found {type(study).__name__}. Add `study = oelm.Study(...)`.")
    return study
