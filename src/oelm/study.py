"""A study: a base run, some arms and some axes, expanded to runs.

Studies are Python files that bind a `Study` (or a `Listing`) to the name `study`, and further ones, such as the same at
another size, to keys of the mapping `scales`. An arm replaces the method and, for controls such as thin Q/K, fields of
the model; an axis replaces one field of the run by each of its values; seeds pair the arms.
"""

from __future__ import annotations

import itertools
import runpy
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from oelm.errors import InvalidSpec, OelmError, UnknownName, UsageError
from oelm.spec.base import Spec, in_words
from oelm.spec.content import ContentArms, ContentSpec, find_content_arms, missing_arms
from oelm.spec.data import DataSpec
from oelm.spec.method import ArmClass, MethodSpec
from oelm.spec.model import ForeignSpec, GPTSpec
from oelm.spec.named import named_method
from oelm.spec.run import RunSpec, branches_off, declared, fingerprint

Setting = dict[str, Any]
"""Dotted field of a run -> the value it takes."""
SIZE = "size"
"""Name of the axis that a study's sizes are."""
WIDTH = "model.model_dim"
"""The field along which tuned values are transferred from size to size."""


def _named_as_one_folder(name: str) -> str:
    if not name.strip() or name.startswith(".") or set(name) & set("/\\\0"):
        raise ValueError(
            f"the runs of a study go into a folder of its name, and {name!r} cannot be one: take a name that is not "
            "empty, begins with no dot and has no / or \\ in it"
        )
    return name


StudyName = Annotated[str, AfterValidator(_named_as_one_folder)]


class Arm(Spec):
    """A method under the name the study gives it, with the model fields it replaces."""

    name: str
    method: MethodSpec
    model: dict[str, Any] = {}


class Study(Spec):
    """The ablation as a value.

    Without `tuned` its runs are one stage. With it there are two: `tune` tries every arm on the same grid with seeds
    of its own, judged on validation; `confirm` runs each arm at its own best setting with fresh seeds, judged on test.
    With `tuned` and no `seeds` it is a screen: it ranks its arms by validation and decides nothing.
    """

    name: StudyName
    question: str
    base: RunSpec
    arms: tuple[Arm, ...]
    reference: str = "baseline"
    """The arm that the others are compared with."""
    axes: dict[str, tuple[Any, ...]] = {}
    """Dotted field of the run -> the values it takes, each a comparison of its own."""
    sizes: dict[str, Setting] = {}
    """Name of a size -> the dotted fields that it sets, varied together: one axis, named "size". Every size sets the
    same fields."""
    size_seeds: dict[str, PositiveInt] = {}
    """Size -> how many of `seeds` it has, the first ones; a size that is not named here has all of them."""
    held_back: tuple[str, ...] = ()
    """Sizes that are run last, after a prediction of them from the other sizes has been written."""
    tuned: dict[str, tuple[Any, ...]] = {}
    """Dotted field of the run -> the grid that every arm is tuned on."""
    tuned_at: tuple[str, ...] = ()
    """The sizes that are tuned; the others take over the tuned values by the rule `transfer`. Empty: each size is."""
    checked_at: tuple[str, ...] = ()
    """Sizes at which the grid is tried as well, to check the transferred values and not to choose them."""
    transfer: Literal["nearest", "line"] | float = "nearest"
    """How a tuned value follows model.model_dim: the value of the tuned size that is nearest in width, a straight line
    in logarithms through the tuned sizes, or a power of the width with this exponent through their geometric mean."""
    tuning_seeds: tuple[NonNegativeInt, ...] = ()
    seeds: tuple[NonNegativeInt, ...] = (0,)
    family: tuple[str, ...] | None = None
    """The arms whose comparisons are corrected together for being several; None: all but the reference."""
    margin: PositiveFloat | Literal["content"] | None = None
    """What an arm may lose, said before anything runs: percent of perplexity (None: 5) or points of accuracy
    (None: 1), in addition to 5 % of the accuracy. "content": half the lower 95 % bound of what attending by
    content is worth, estimated from the tuning runs and fixed when tuning ends."""
    content: ContentSpec | None = None
    """The arms that measure what content is worth, as {"trained": ..., "position": ...}; None: found by their methods
    (oelm.spec.content)."""
    looks: tuple[PositiveInt, ...] = ()
    """Numbers of seeds, in the order of `seeds`, after which the study is judged: increasing, the last is all of them.
    Early looks have stricter bounds, so that all looks together are wrong in at most 5 %. (): judged once, at the end.
    """
    prior: dict[ArmClass, tuple[PositiveFloat, PositiveFloat]] = {}
    """Class of arm -> degrees of freedom and standard deviation of paired differences (nats, or points of accuracy)
    known before the study, for example from `oelm plan --power`. A class without one takes its prior from the study's
    own arms."""

    @field_validator("arms", mode="before")
    @classmethod
    def _names_become_arms(cls, arms: Any) -> Any:
        if isinstance(arms, str):  # whose letters would be taken for names
            raise ValueError(  # noqa: TRY004  (pydantic tells people of ValueErrors alone)
                f"{arms!r} is one name and no tuple of them; a tuple of one has a comma: ({arms!r},)"
            )
        return tuple(Arm(name=arm, method=named_method(arm)) if isinstance(arm, str) else arm for arm in arms)

    @field_validator("tuned")
    @classmethod
    def _has_points(cls, tuned: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        tables = sorted(field for field, grid in tuned.items() if any(isinstance(one, dict | Spec) for one in grid))
        if tables:
            raise ValueError(f"{tables} would be tuned over tables of values, which are no points; make an arm of each")
        return tuned

    @model_validator(mode="after")
    def _is_a_matrix(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"two arms share a name in {names}")
        if unknown := {self.reference, *(self.family or ())} - set(names):
            raise ValueError(f"reference or family names {sorted(unknown)}, which is none of the arms {names}")
        for what, values in {"seeds": self.seeds or self.tuning_seeds, **self.axes, **self.tuned}.items():
            if not values:
                raise ValueError(f"{what} is empty, so the study has no runs; give it at least one value")
        if bool(self.tuned) != bool(self.tuning_seeds):
            raise ValueError("tuned= and tuning_seeds= go together: a grid, and the seeds it is tried with")
        if shared := set(self.seeds) & set(self.tuning_seeds):
            raise ValueError(f"seeds {sorted(shared)} tune and confirm; a setting must be confirmed by fresh seeds")
        if both := set(self.axes) & set(self.tuned):
            raise ValueError(f"{sorted(both)} is an axis and tuned; an axis is reported, a tuned field chosen")
        for arm in self.arms:
            own = {"model", *(f"model.{name}" for name in arm.model)} if arm.model else set()
            if overruled := own & {*self.varied, *self.tuned}:
                raise ValueError(
                    f"arm {arm.name!r} sets {sorted(overruled)}, which the study varies or tunes: its runs would not "
                    "be what it is called; take the field from one of them"
                )
        self._has_what_content_needs(names)
        return self

    def _has_what_content_needs(self, names: list[str]) -> None:
        if self.content is not None:
            declared = [self.content.trained, self.content.position, *(self.content.frozen or ())]
            if unknown := sorted(set(declared) - set(names)):
                raise ValueError(f"content names {unknown}, which are not among the arms {names}")
            if len(set(declared)) != len(declared):
                raise ValueError(f"content gives one arm two roles: {declared}")
            if others := sorted(arm.name for arm in self.arms if arm.model and arm.name in declared):
                raise ValueError(
                    f"content names {others}, which change the model: what content is worth is of one model"
                )
        if self.margin != "content":
            return
        if not self.is_language:
            raise ValueError("margin='content' is for language models trained on text; give a number here")
        if not self.content_arms:
            arms = missing_arms({arm.name: arm.method for arm in self.arms if not arm.model})
            raise ValueError(
                "margin='content' needs an arm with trained Q/K and one that attends by position only, both with the "
                f"same position scheme. Add {' and '.join(map(repr, arms))}, or name the arms in content="
            )
        if len(self.tuning_seeds) < 2:
            raise ValueError(
                "margin='content' needs an interval of what content is worth when tuning ends, which takes 2 tuning "
                f"seeds, and tuning_seeds={self.tuning_seeds}. Add seeds there, or give the margin as a number"
            )

    @property
    def is_language(self) -> bool:
        """Whether it trains our GPT on text, judged by perplexity."""
        data = self.base.data
        return isinstance(data, DataSpec) and data.probe is None and isinstance(self.base.model, GPTSpec)

    @property
    def content_arms(self) -> tuple[ContentArms, ...]:
        """The arms that measure what content is worth, for each position scheme that has them; language models only."""
        if not self.is_language or not isinstance(self.base.model, GPTSpec):
            return ()
        return find_content_arms(
            {arm.name: arm.method for arm in self.arms if not arm.model},
            reference=self.reference,
            width=self.base.model.model_dim,
            declared=self.content,
        )

    @model_validator(mode="after")
    def _looks_at_seeds(self) -> Self:
        if self.looks and (list(self.looks) != sorted(set(self.looks)) or self.looks[-1] != len(self.seeds)):
            raise ValueError(
                f"looks={self.looks} must increase and end with the number of seeds, {len(self.seeds)}: each is the "
                "number of seeds after which the study is judged"
            )
        return self

    @field_validator("sizes")
    @classmethod
    def _set_something(cls, sizes: dict[str, Setting]) -> dict[str, Setting]:
        if empty := [name for name, fields in sizes.items() if not fields]:
            raise ValueError(f"size {empty[0]!r} sets no field, so nothing would tell it from another")
        return sizes

    @model_validator(mode="after")
    def _has_like_sizes(self) -> Self:
        first = next(iter(self.sizes), "")
        seen: dict[str, str] = {}
        for name, fields in self.sizes.items():
            for one, other in ((first, name), (name, first)):
                if only := sorted(set(self.sizes[one]) - set(self.sizes[other])):
                    raise ValueError(
                        f"size {one!r} sets {', '.join(only)} and size {other!r} does not; sizes are varied together, "
                        "so give every size the same fields"
                    )
            if (twin := seen.setdefault(repr(sorted(fields.items())), name)) != name:
                raise ValueError(f"sizes {twin!r} and {name!r} are the same; remove one of them")
        named = {
            "size_seeds": self.size_seeds, "held_back": self.held_back,
            "tuned_at": self.tuned_at, "checked_at": self.checked_at,
        }  # fmt: skip
        for what, names in named.items():
            if unknown := sorted(set(names) - set(self.sizes)):
                raise ValueError(f"{what} names {unknown}, which is not one of the sizes {list(self.sizes)}")
        if many := sorted(size for size, count in self.size_seeds.items() if count > len(self.seeds)):
            raise ValueError(f"size_seeds gives {many} more seeds than the {len(self.seeds)} of seeds=")
        if both := set(self._fields_of_sizes) & {*self.axes, *self.tuned}:
            raise ValueError(f"{sorted(both)} is set by sizes= and varied by axes= or tuned= as well; keep one of them")
        return self

    @model_validator(mode="after")
    def _has_runs(self) -> Self:
        """Refuse a field that no run has, with the nearest name, and values that do not fit the run."""
        self._refuse_impossible_transfer()
        first = {field: values[0] for field, values in {**self.axes, **self.tuned}.items()}
        for name, fields in self.sizes.items():
            try:
                replaced(self.base, {**fields, **first})
            except InvalidSpec as error:
                raise InvalidSpec(f"size {name!r} of study {self.name!r}: {error}") from error
        if not self.sizes:
            replaced(self.base, first)
        return self

    def _refuse_impossible_transfer(self) -> None:
        if self.held_back and set(self.held_back) == set(self.sizes):
            raise ValueError("held_back names every size, so no run is left to predict them from")
        if self.held_back and not self.seeds:
            raise ValueError("a screen confirms nothing, so it has nothing to predict: leave held_back out")
        if self.tuned_at and not self.tuned:
            raise ValueError("tuned_at names sizes to tune, and tuned= gives no grid")
        if self.tuned_at and (held := sorted({*self.tuned_at, *self.checked_at} & set(self.held_back))):
            raise ValueError(f"{held} is tuned and held back; a size that was tuned is not a prediction any more")
        if self.held_back and self.tuned and not self.tuned_at:
            raise ValueError("a held-back size must not be tuned: name in tuned_at the sizes that are")
        if self.checked_at and (not self.tuned_at or set(self.tuned_at) & set(self.checked_at)):
            raise ValueError(
                "checked_at checks what tuned_at has chosen at other sizes; found "
                f"checked_at={self.checked_at}, tuned_at={self.tuned_at}"
            )
        if self.transfer != "nearest" and any(
            isinstance(value, bool) or not isinstance(value, int | float) or value <= 0
            for grid in self.tuned.values() for value in grid
        ):  # fmt: skip
            raise ValueError(f"transfer={self.transfer!r} takes logarithms, and the grid has values without one")
        if self.transfer == "line" and len({self.sizes[size].get(WIDTH) for size in self.tuned_at}) == 1:
            raise ValueError(f"transfer='line' needs tuned sizes of at least two values of {WIDTH}")
        if self.tuned_at and self.transfer != "nearest" and WIDTH not in self._fields_of_sizes:
            raise ValueError(f"transfer={self.transfer!r} follows {WIDTH}, which the sizes do not set")

    @property
    def is_tuned(self) -> bool:
        """Whether every arm had a choice: a grid of one value fixes it for all."""
        return any(len(values) > 1 for values in self.tuned.values())

    @property
    def is_screen(self) -> bool:
        """Whether it tunes and confirms nothing."""
        return not self.seeds

    @property
    def _fields_of_sizes(self) -> tuple[str, ...]:
        return tuple(next(iter(self.sizes.values()), ()))

    @property
    def varied(self) -> tuple[str, ...]:
        """The dotted fields that sizes and axes set."""
        return (*self._fields_of_sizes, *self.axes)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes, of which the sizes are the first."""
        return (*((SIZE,) if self.sizes else ()), *self.axes)

    def place(self, run: RunSpec) -> dict[str, Any]:
        """Return where a run is on the axes, axis by axis, as JSON data; a run of no declared size has size None."""
        plain = run.model_dump(mode="json")
        size = {SIZE: self.size_of(run)} if self.sizes else {}
        return size | {axis: at(plain, axis) for axis in self.axes}

    def size_of(self, run: RunSpec) -> str | None:
        """Return the name of a run's size: the one whose every field the run has; None if there is none."""
        own = declared(run)  # binding to data fills fields in

        def fits(fields: Setting) -> bool:
            try:
                return replaced(own, fields) == own
            except InvalidSpec:  # the fields of another size need not fit the rest of this run
                return False

        return next((name for name, fields in self.sizes.items() if fits(fields)), None)

    def cells(self) -> list[Setting]:
        """Return every combination of the sizes and the axes' values; one empty one where there are none."""
        return [{**size, **point} for size in self.sizes.values() or [{}] for point in _product(self.axes)]

    def size_in(self, cell: Setting) -> str | None:
        """Return the size of a cell; None where the study has no sizes."""
        return next((name for name, fields in self.sizes.items() if fields.items() <= cell.items()), None)

    def run_at(self, cell: Setting) -> RunSpec:
        """Return the base run in a cell."""
        return replaced(self.base, cell)

    def seeds_in(self, cell: Setting) -> tuple[int, ...]:
        """Return the seeds that a cell is confirmed with."""
        return self.seeds[: self.size_seeds.get(self.size_in(cell) or "", len(self.seeds))]

    def tuning(self, cell: Setting, grid: Mapping[str, Sequence[Any]]) -> list[RunSpec]:
        """Expand the first stage in one cell: arms within grid points within tuning seeds."""
        return [
            self._run(arm, {**cell, **point}, seed, scores_test=False)
            for seed in self.tuning_seeds
            for point in _product(grid)
            for arm in self.arms
        ]

    def confirming(self, chosen: Callable[[Setting, Arm], Setting]) -> list[RunSpec]:
        """Expand the second stage, each arm at its chosen setting.

        Arms within cells within seeds, so that an early stop leaves whole pairs.
        """
        runs = [
            self._run(arm, {**cell, **chosen(cell, arm)}, seed)
            for seed in self.seeds
            for cell in self.cells()
            if seed in self.seeds_in(cell)
            for arm in self.arms
        ]
        return keeping_branches(runs)

    def runs(self) -> list[RunSpec]:
        """Expand a study that tunes nothing; refuse one run declared twice."""
        if self.tuned:
            raise InvalidSpec(
                f"study {self.name!r} tunes {', '.join(self.tuned)}, so which runs confirm it depends on how tuning "
                "ends; ask for its stages (oelm.record.stages) instead."
            )
        return distinct(self.name, self.confirming(lambda _cell, _arm: {}))

    def _run(self, arm: Arm, values: Setting, seed: int, *, scores_test: bool = True) -> RunSpec:
        own = {"arm": arm.name, "method": arm.method, "seed": seed, "scores_test": scores_test}
        run = self.base.model_copy(update=own)
        return replaced(run, {**{f"model.{name}": value for name, value in arm.model.items()}, **values})


class Listing(Spec):
    """Runs named one by one: for a study that is no matrix, as the published one."""

    name: StudyName
    question: str
    listed: tuple[RunSpec, ...]

    @model_validator(mode="after")
    def _names_every_run(self) -> Self:
        labels = [run.label for run in self.listed]
        if not labels or None in labels or len(set(labels)) != len(labels):
            raise ValueError(f"each listed run needs a label of its own, and there must be some; found {labels}")
        return self

    def runs(self) -> list[RunSpec]:
        """Return the runs; refuse one declared twice."""
        return distinct(self.name, self.listed)


AnyStudy = Study | Listing


def distinct(study: str, runs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return the runs, or refuse two with one fingerprint, or one that its record would not be known by."""
    seen: dict[str, RunSpec] = {}
    for run in runs:
        _refuse_what_binding_fills_in(study, run)
        twin = seen.setdefault(fingerprint(run), run)
        if twin is not run:
            raise InvalidSpec(
                f"study {study!r} declares one run twice: {twin.label or twin.arm!r} and {run.label or run.arm!r} "
                f"with seed {run.seed} have the same fingerprint. Remove one of them."
            )
    return list(seen.values())


def _refuse_what_binding_fills_in(study: str, run: RunSpec) -> None:
    found = None
    if run.data.checksum is not None:
        found = f"data.checksum={run.data.checksum!r}, which is filled in when a run is bound to its data: leave it out"
    elif isinstance(run.model, ForeignSpec) and run.model.checksum is not None:
        found = f"model.checksum={run.model.checksum!r}, which is filled in as well: leave it out"
    elif run.train.chose_precision:
        found = "train.chose_precision, which is filled in for train.precision='auto': leave it out"
    elif run != declared(run):
        found = (
            f"train.steps={run.train.steps} beside train.epochs={run.train.epochs}, from which steps are derived when "
            "a run is bound to its data: leave one of the two out"
        )
    if found:
        raise InvalidSpec(f"study {study!r} declares {run.label or run.arm!r} with {found}.")


def keeping_branches(runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Let every warm-up-stable-decay run keep the checkpoints that shorter runs of the study can branch off."""
    if all(run.train.decay != "wsd" for run in runs):
        return list(runs)
    kept = []
    for run in runs:
        steps = sorted({other.train.decay_start for other in runs if branches_off(other, run)})
        kept.append(replaced(run, {"train.branch_at": tuple(steps)}) if steps else run)
    return kept


def _product(values: Mapping[str, Sequence[Any]]) -> list[Setting]:
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def replaced(run: RunSpec, fields: Setting) -> RunSpec:
    """Return the run with some dotted fields replaced, all at once: one may fit only with another."""
    plain = run.model_dump(mode="python")
    for field, value in fields.items():
        *path, last = field.split(".")
        inner = plain
        for name in path:
            inner = _descend(inner, name, field)
        _descend(inner, last, field)
        inner[last] = value
    try:
        return RunSpec.model_validate(plain)
    except ValidationError as error:
        wish = ", ".join(f"{field}={value!r}" for field, value in fields.items())
        raise InvalidSpec(f"{wish} does not fit the run: {in_words(error)}") from error


def at(holder: Any, field: str) -> Any:
    """Return the value of a dotted field of a run, or of its plain form; None where there is no such field."""
    for name in field.split("."):
        holder = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
    return holder


def _descend(inner: Any, name: str, field: str) -> Any:
    if not isinstance(inner, dict) or name not in inner:
        known = inner if isinstance(inner, dict) else ()
        raise UnknownName(
            "field of a run",
            field.rpartition(name)[0] + name,
            [field.rpartition(name)[0] + option for option in known],
        )
    return inner[name]


def load_study(path: Path, scale: str | None = None) -> AnyStudy:
    """Read the `study` that a Python file declares, or the one of its `scales` that is asked for."""
    if not path.is_file():
        raise UsageError(
            f"there is no study file {path}. A study is a Python file that binds `study = Study(...)`; "
            "studies/demo.py is one to start from."
        )
    try:
        names = runpy.run_path(str(path))
    except ValidationError as error:
        raise InvalidSpec(f"{_place(path, error)} does not declare a valid study: {in_words(error)}") from error
    except OelmError as error:
        error.args = (f"{_place(path, error)}: {error}",)
        raise
    except Exception as error:
        raise UsageError(f"{_place(path, error)} raised {type(error).__name__} while it was read: {error}") from error
    scales = names.get("scales", {})
    if scale is not None and not scales:
        raise UsageError(f"--scale {scale} was given, and {path} declares one study and no scales. Leave it out.")
    if scale is not None and scale not in scales:
        raise UnknownName(f"scale of {path}", scale, scales)
    study = names.get("study") if scale is None else scales[scale]
    if not isinstance(study, Study | Listing):
        raise UsageError(f"{path} binds no `study`: found {type(study).__name__}. Add `study = oelm.Study(...)`.")
    return study


def _place(path: Path, error: Exception) -> str:
    """Name the line of a study file that an error comes from, however deep it was raised; else the file alone."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]} of {path}" if lines else str(path)
