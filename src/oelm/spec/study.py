"""A study: a base run, arms, axes and seeds, expanded to runs.

A study is a Python file that assigns a `Study` (or a `Listing`) to the name `study`, and perhaps more of them, such as
the same study at another size, to keys of the dict `scales`. An arm replaces the method and, for controls such as thin
Q/K, fields of the model. An axis replaces one field of the run by each of its values. Arms are compared in pairs of
runs with the same seed.
"""

from __future__ import annotations

import itertools
import math
import runpy
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from oelm.spec import Name, Spec, explain_validation, remember
from oelm.spec.method import POSITION_REPAIRS, ArmClass, FreezeSpec, MethodSpec, named_method
from oelm.spec.run import DataSpec, GPTSpec, RunSpec, branches_off, fingerprint, undo_resolve

# Content arms: the arms of a study that measure the value of attention by content. Among arms with the same position
# scheme (the same trained bias, or the same position features) these are
#
#     T  trained Q/K          F  frozen Q/K          P  position only: Q and K are absent
#
# The arms are found by their methods and not by name, unless a study declares them.

Scheme = tuple[bool, int | str]
"""The position repairs of a method: whether it has the bias, and the number of features."""

NEGLIGIBLE_LOGITS = 0.05
"""Content logits with this standard deviation or less hardly change attention: exp(0.05) is a factor of 1.05."""


class ContentSpec(Spec):
    """The content arms of a study that declares them by name."""

    trained: str
    """The arm with trained Q/K."""
    position: str
    """The arm that attends by position only."""
    frozen: tuple[str, ...] | None = None
    """The arms with frozen Q/K; None: every arm that freezes Q and K in all layers and has the scheme of `trained`."""


@dataclass(frozen=True)
class ContentArms:
    """The names of the arms with one position scheme."""

    trained: str
    position: str
    frozen: tuple[str, ...]
    scheme: Scheme
    is_exact: bool = True
    """Whether the position-only arm has no Q and K. False: they are frozen and too small to matter."""


def position_scheme(method: MethodSpec) -> Scheme:
    """Return the position repairs of a method."""
    return method.repair.position_bias, method.repair.position_features


def is_position_only(method: MethodSpec) -> bool:
    """Whether attention depends on positions alone: Q and K are absent, and a position repair is on."""
    return method.init.shape == "absent" and any(position_scheme(method)) and method.sites is None


def is_nearly_position_only(method: MethodSpec, width: int | None) -> bool:
    """Whether Q and K are frozen at a scale at which their logits hardly matter, and a position repair is on.

    For a normalised input of size D and entries of deviation s the logits have deviation D s^2 (0.04 for D = 96 and
    s = 0.02). Methods with repairs that could make them larger do not count.
    """
    deviation = method.init.deviation
    if width is None or deviation is None or not _freezes_all(method) or not any(position_scheme(method)):
        return False
    others = set(method.repair.active()) - POSITION_REPAIRS - {"key_shift", "key_mix"}
    return not others and width * (method.init.gain * deviation) ** 2 <= NEGLIGIBLE_LOGITS


def find_content_arms(
    methods: Mapping[str, MethodSpec], *, reference: str, width: int | None = None, declared: ContentSpec | None = None
) -> tuple[ContentArms, ...]:
    """Return the content arms of one model for each position scheme that has a T and a P; exact ones first.

    Of several candidates, T is the reference, otherwise the arm with the fewest other repairs. `width` is model_dim if
    it is known.
    """
    if declared is not None:
        scheme = position_scheme(methods[declared.trained])
        frozen = declared.frozen
        if frozen is None:
            frozen = tuple(name for name in frozen_arms(methods, scheme) if name != declared.position)
        return (ContentArms(declared.trained, declared.position, frozen, scheme),)
    found = []
    for scheme in dict.fromkeys(map(position_scheme, methods.values())):
        own = {name: method for name, method in methods.items() if position_scheme(method) == scheme}
        exact = [name for name, method in own.items() if is_position_only(method)]
        near = [name for name, method in own.items() if is_nearly_position_only(method, width)]
        trained = [name for name, method in own.items() if any(scheme) and _trains_all(method)]
        if (exact or near) and trained:
            best = min(trained, key=lambda name: (name != reference, len(own[name].repair.active())))
            position = (exact or near)[0]
            frozen = tuple(name for name in frozen_arms(own, scheme) if name != position)
            found.append(ContentArms(best, position, frozen, scheme, bool(exact)))
    return tuple(sorted(found, key=lambda arms: not arms.is_exact))


def missing_arms(methods: Mapping[str, MethodSpec]) -> tuple[str, ...]:
    """Return the arms to add if T or P is missing, preferring a position scheme that the study already has."""
    alone = [method for method in methods.values() if is_position_only(method)]
    has_bias, has_features = map(any, zip(*map(position_scheme, alone or methods.values()), strict=True))
    part, position_only = (
        ("bias", "position-only-bias") if has_bias and not has_features else ("features", "position-only")
    )

    def has_part(method: MethodSpec) -> bool:
        return bool(getattr(method.repair, f"position_{part}"))

    is_there = {
        position_only: any(map(has_part, alone)),
        f"baseline+{part}": any(_trains_all(method) and has_part(method) for method in methods.values()),
    }
    return tuple(name for name in is_there if not is_there[name])


def frozen_arms(methods: Mapping[str, MethodSpec], scheme: Scheme) -> tuple[str, ...]:
    """Return the names of the arms with a position scheme that freeze all of Q and K."""
    return tuple(name for name, method in methods.items() if position_scheme(method) == scheme and _freezes_all(method))


def _freezes_all(method: MethodSpec) -> bool:
    """Whether exactly Q and K are frozen, in every layer, from the first step to the last."""
    freeze = method.freeze
    whole = set(freeze.roles) == {"q", "k"} and freeze.layers is None and method.sites is None
    return whole and not method.schedule.changes and method.schedule.every is None


def _trains_all(method: MethodSpec) -> bool:
    """Whether every layer has Q and K and all of them train."""
    return method.freeze == FreezeSpec() and method.init.shape != "absent" and method.sites is None


Setting = Mapping[str, Any]
"""Dotted field of a run -> its value."""
SIZE = "size"
"""Name of the axis of a study's sizes."""
MOST_RUNS = 50_000
"""Most runs of a study. They are all expanded to find out which are due, so more would fill the memory."""
WIDTH_FIELD = "model.model_dim"
"""The field by which tuned values are transferred between sizes."""


def _refuse_bad_folder(name: str) -> str:
    if not name.strip() or name.startswith(".") or set(name) & set("/\\\0"):
        raise ValueError(
            f"the runs of a study go into a folder of its name, and {name!r} cannot be one; use a name that is not "
            "empty, does not begin with a dot and does not contain / or \\"
        )
    return name


StudyName = Annotated[Name, AfterValidator(_refuse_bad_folder)]


class Arm(Spec):
    """A method with its name in the study, and the fields of the model it replaces."""

    name: Name
    method: MethodSpec
    model: Mapping[str, Any] = {}


class Study(Spec):
    """The ablation as a value.

    Without `tuned`, the runs are one stage. With `tuned`, there are two: `tune` runs every arm on the same grid with
    its own seeds and judges on validation; `confirm` runs each arm at its best setting with fresh seeds and judges on
    test. With `tuned` and without `seeds` the study is a screen: it ranks the arms by validation and decides nothing.
    """

    name: StudyName
    question: str
    base: RunSpec
    arms: tuple[Arm, ...]
    reference: str = "baseline"
    """The arm that the others are compared with."""
    axes: Mapping[str, tuple[Any, ...]] = {}
    """Dotted field of the run -> its values. The arms are compared separately at each value."""
    sizes: Mapping[str, Setting] = {}
    """Name of a size -> the dotted fields that it sets together. The sizes are one axis, named "size", and all set the
    same fields."""
    size_seeds: Mapping[str, PositiveInt] = {}
    """Size -> its number of seeds, the first ones of `seeds`; other sizes have all of them."""
    held_back: tuple[str, ...] = ()
    """Sizes that are run last, after they have been predicted from the other sizes."""
    tuned: Mapping[str, tuple[Any, ...]] = {}
    """Dotted field of the run -> the grid on which every arm is tuned."""
    tuned_at: tuple[str, ...] = ()
    """The sizes that are tuned; the others take over the tuned values by the rule `transfer`. Empty: all are tuned."""
    checked_at: tuple[str, ...] = ()
    """Sizes at which the grid is run as well, only to check the transferred values."""
    transfer: Literal["nearest", "line"] | float = "nearest"
    """How a tuned value depends on model.model_dim: the value of the tuned size nearest in width, a straight line in
    logarithms through the tuned sizes, or a power of the width with this exponent through their geometric mean."""
    tuning_seeds: tuple[NonNegativeInt, ...] = ()
    seeds: tuple[NonNegativeInt, ...] = (0,)
    family: tuple[str, ...] | None = None
    """The arms that are corrected together for multiple comparisons; None: all but the reference."""
    margin: PositiveFloat | Literal["content"] | None = None
    """Non-inferiority margin, fixed before anything runs: percent of perplexity (None: 5) or points of accuracy
    (None: 1), in addition to 5 % of the accuracy. "content": half the lower 95 % confidence bound of the value of
    attention by content, estimated from the tuning runs and fixed when tuning ends."""
    content: ContentSpec | None = None
    """The arms that measure the value of content, as {"trained": ..., "position": ...}; None: found by method."""
    looks: tuple[PositiveInt, ...] = ()
    """Increasing numbers of seeds after which the study is judged; the last is all of them. Early looks have stricter
    bounds, so that all looks together are wrong in at most 5 % of studies. Empty: judged once, at the end."""
    prior: Mapping[ArmClass, tuple[PositiveFloat, PositiveFloat]] = {}
    """Class of arm -> degrees of freedom and standard deviation of paired differences (nats, or points of accuracy)
    known before the study, for example from `oelm plan --power`. For other classes the prior is estimated from the
    study's own arms."""

    @field_validator("arms", mode="before")
    @classmethod
    def _look_up_names(cls, arms: Any) -> Any:
        if isinstance(arms, str):  # its letters would be taken for names
            raise ValueError(  # noqa: TRY004  (pydantic reports only ValueErrors)
                f"{arms!r} is one name and not a tuple of names; a tuple of one needs a comma: ({arms!r},)"
            )
        if not isinstance(arms, Iterable):
            return arms  # pydantic says what is wrong with it
        return tuple(Arm(name=arm, method=named_method(arm)) if isinstance(arm, str) else arm for arm in arms)

    @field_validator("tuned")
    @classmethod
    def _refuse_tables(cls, tuned: Mapping[str, tuple[Any, ...]]) -> Mapping[str, tuple[Any, ...]]:
        tables = sorted(field for field, grid in tuned.items() if any(isinstance(one, dict | Spec) for one in grid))
        if tables:
            raise ValueError(f"{tables} would be tuned over tables instead of single values; make an arm of each")
        return tuned

    @model_validator(mode="after")
    def _refuse_bad_matrix(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"two arms share a name in {names}")
        if unknown := {self.reference, *(self.family or ())} - set(names):
            raise ValueError(f"reference or family names {sorted(unknown)}, which are none of the arms {names}")
        for field, values in {"seeds": self.seeds or self.tuning_seeds, **self.axes, **self.tuned}.items():
            if not values:
                raise ValueError(f"{field} is empty, so the study has no runs; give it at least one value")
        if bool(self.tuned) != bool(self.tuning_seeds):
            raise ValueError("tuned= and tuning_seeds= go together: a grid and the seeds to run it with")
        if shared := set(self.seeds) & set(self.tuning_seeds):
            raise ValueError(
                f"seeds {sorted(shared)} are in seeds= and tuning_seeds=; a setting must be confirmed with fresh seeds"
            )
        if both := set(self.axes) & set(self.tuned):
            raise ValueError(f"{sorted(both)} is an axis and tuned; an axis is reported, a tuned field is chosen")
        for arm in self.arms:
            own = {"model", *(f"model.{name}" for name in arm.model)} if arm.model else set()
            if overruled := own & {*self.varied, *self.tuned}:
                raise ValueError(
                    f"arm {arm.name!r} sets {sorted(overruled)}, which the study varies or tunes as well, so its runs "
                    "would not have the values that the arm sets; remove the field from one of them"
                )
        self._refuse_bad_content(names)
        return self

    @model_validator(mode="after")
    def _refuse_too_many_runs(self) -> Self:
        grids = [self.tuned, self.axes] if self.tuned else [self.axes]
        cells = math.prod(len(values) for grid in grids for values in grid.values()) * max(1, len(self.sizes))
        count = cells * len(self.arms) * max(len(self.seeds), len(self.tuning_seeds))
        if count > MOST_RUNS:
            raise ValueError(
                f"axes, grids, arms and seeds multiply to {count:,} runs, and a study has at most {MOST_RUNS:,}; "
                "remove values, or make several studies"
            )
        return self

    def _refuse_bad_content(self, names: list[str]) -> None:
        if self.content is not None:
            declared = [self.content.trained, self.content.position, *(self.content.frozen or ())]
            if unknown := sorted(set(declared) - set(names)):
                raise ValueError(f"content names {unknown}, which are not among the arms {names}")
            if len(set(declared)) != len(declared):
                raise ValueError(f"content gives one arm two roles: {declared}")
            if others := sorted(arm.name for arm in self.arms if arm.model and arm.name in declared):
                raise ValueError(
                    f"content names {others}, which change the model; the value of content is of one model"
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
                "margin='content' needs a confidence interval when tuning ends, which takes 2 tuning seeds, but "
                f"tuning_seeds={self.tuning_seeds}. Add seeds there, or give the margin as a number"
            )

    @property
    def is_language(self) -> bool:
        """Whether the study trains our GPT on text, judged by perplexity."""
        data = self.base.data
        return isinstance(data, DataSpec) and data.probe is None and isinstance(self.base.model, GPTSpec)

    @property
    def content_arms(self) -> tuple[ContentArms, ...]:
        """The arms that measure the value of content, for each position scheme that has them; language models only."""
        if not self.is_language or not isinstance(self.base.model, GPTSpec):
            return ()
        return find_content_arms(
            {arm.name: arm.method for arm in self.arms if not arm.model},
            reference=self.reference,
            width=self.base.model.model_dim,
            declared=self.content,
        )

    @model_validator(mode="after")
    def _refuse_bad_looks(self) -> Self:
        if self.looks and (list(self.looks) != sorted(set(self.looks)) or self.looks[-1] != len(self.seeds)):
            raise ValueError(
                f"looks={self.looks} are numbers of seeds after which the study is judged; they must increase and end "
                f"with all {len(self.seeds)} seeds"
            )
        return self

    @field_validator("sizes")
    @classmethod
    def _refuse_empty_sizes(cls, sizes: Mapping[str, Setting]) -> Mapping[str, Setting]:
        if empty := [name for name, fields in sizes.items() if not fields]:
            raise ValueError(f"size {empty[0]!r} sets no field; give every size the same fields")
        return sizes

    @model_validator(mode="after")
    def _refuse_bad_sizes(self) -> Self:
        first = next(iter(self.sizes), "")
        seen: dict[str, str] = {}
        for name, fields in self.sizes.items():
            for one, other in ((first, name), (name, first)):
                if only := sorted(set(self.sizes[one]) - set(self.sizes[other])):
                    raise ValueError(
                        f"size {one!r} sets {', '.join(only)} and size {other!r} does not; give every size the same "
                        "fields"
                    )
            if (twin := seen.setdefault(repr(sorted(fields.items())), name)) != name:
                raise ValueError(f"sizes {twin!r} and {name!r} are the same; remove one of them")
        named = {
            "size_seeds": self.size_seeds, "held_back": self.held_back,
            "tuned_at": self.tuned_at, "checked_at": self.checked_at,
        }  # fmt: skip
        for field, names in named.items():
            if unknown := sorted(set(names) - set(self.sizes)):
                raise ValueError(f"{field} names {unknown}, which are not among the sizes {list(self.sizes)}")
        if many := sorted(size for size, count in self.size_seeds.items() if count > len(self.seeds)):
            raise ValueError(f"size_seeds gives {many} more seeds than the {len(self.seeds)} of seeds=")
        if both := set(self._fields_of_sizes) & {*self.axes, *self.tuned}:
            raise ValueError(f"{sorted(both)} is set by sizes= and varied by axes= or tuned= as well; keep one of them")
        return self

    @model_validator(mode="after")
    def _refuse_bad_fields(self) -> Self:
        """Refuse fields that a run does not have, and values that do not fit it."""
        self._refuse_bad_transfer()
        first = {field: values[0] for field, values in {**self.axes, **self.tuned}.items()}
        for name, fields in self.sizes.items():
            try:
                replace_fields(self.base, {**fields, **first})
            except InvalidSpec as error:
                raise InvalidSpec(f"size {name!r} of study {self.name!r}: {error}") from error
        if not self.sizes:
            replace_fields(self.base, first)
        return self

    def _refuse_bad_transfer(self) -> None:
        if self.held_back and set(self.held_back) == set(self.sizes):
            raise ValueError("held_back names every size, so there is no run to predict them from")
        if self.held_back and not self.seeds:
            raise ValueError("a screen has no confirming runs to predict; leave held_back out")
        if self.tuned_at and not self.tuned:
            raise ValueError("tuned_at names sizes to tune, but tuned= gives no grid")
        if self.tuned_at and (held := sorted({*self.tuned_at, *self.checked_at} & set(self.held_back))):
            raise ValueError(f"{held} is tuned and held back; a size that was tuned can no longer be predicted")
        if self.held_back and self.tuned and not self.tuned_at:
            raise ValueError("a held-back size must not be tuned; name in tuned_at the sizes that are")
        if self.checked_at and (not self.tuned_at or set(self.tuned_at) & set(self.checked_at)):
            raise ValueError(
                "checked_at checks values that were tuned at the other sizes of tuned_at; found "
                f"checked_at={self.checked_at}, tuned_at={self.tuned_at}"
            )
        if self.transfer != "nearest" and any(
            isinstance(value, bool) or not isinstance(value, int | float) or value <= 0
            for grid in self.tuned.values() for value in grid
        ):  # fmt: skip
            raise ValueError(f"transfer={self.transfer!r} takes logarithms, but the grid has values without one")
        if self.transfer == "line" and len({self.sizes[size].get(WIDTH_FIELD) for size in self.tuned_at}) == 1:
            raise ValueError(f"transfer='line' needs tuned sizes of at least two values of {WIDTH_FIELD}")
        if self.tuned_at and self.transfer != "nearest" and WIDTH_FIELD not in self._fields_of_sizes:
            raise ValueError(f"transfer={self.transfer!r} depends on {WIDTH_FIELD}, which the sizes do not set")

    @property
    def is_tuned(self) -> bool:
        """Whether the grid has a choice: a grid of one value fixes it for all arms."""
        return any(len(values) > 1 for values in self.tuned.values())

    @property
    def is_screen(self) -> bool:
        """Whether the study tunes and confirms nothing."""
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
        """The names of the axes; the sizes come first."""
        return (*((SIZE,) if self.sizes else ()), *self.axes)

    def place(self, run: RunSpec) -> dict[str, Any]:
        """Return the value of each axis for a run, as JSON data; the size is None if the run has no declared size."""
        plain = run.model_dump(mode="json")
        size = {SIZE: self.size_of(run)} if self.sizes else {}
        return size | {axis: field_at(plain, axis) for axis in self.axes}

    def size_of(self, run: RunSpec) -> str | None:
        """Return the name of the size whose fields all have the values of the run; None if there is none."""
        own = undo_resolve(run)  # resolving fills fields in

        def fits(fields: Setting) -> bool:
            try:
                return replace_fields(own, fields) == own
            except InvalidSpec:  # the fields of another size need not fit the rest of this run
                return False

        return next((name for name, fields in self.sizes.items() if fits(fields)), None)

    def cells(self) -> list[Setting]:
        """Return every combination of sizes and axis values; one empty combination if there are none."""
        return [{**size, **point} for size in self.sizes.values() or [{}] for point in _product(self.axes)]

    def size_in(self, cell: Setting) -> str | None:
        """Return the size of a cell; None if the study has no sizes."""
        return next((name for name, fields in self.sizes.items() if fields.items() <= cell.items()), None)

    def run_at(self, cell: Setting) -> RunSpec:
        """Return the base run in a cell."""
        return replace_fields(self.base, cell)

    def seeds_in(self, cell: Setting) -> tuple[int, ...]:
        """Return the seeds of the confirming runs in a cell."""
        return self.seeds[: self.size_seeds.get(self.size_in(cell) or "", len(self.seeds))]

    def tuning(self, cell: Setting, grid: Mapping[str, Sequence[Any]]) -> list[RunSpec]:
        """Return the tuning runs in one cell: arms within grid points within tuning seeds."""
        return [
            self._run(arm, {**cell, **point}, seed, scores_test=False)
            for seed in self.tuning_seeds
            for point in _product(grid)
            for arm in self.arms
        ]

    def confirming(self, chosen: Callable[[Setting, Arm], Setting]) -> list[RunSpec]:
        """Return the confirming runs, each arm at its chosen setting.

        Their order is arms within cells within seeds, so that an early stop leaves complete pairs.
        """
        runs: list[RunSpec] = []
        valid: dict[tuple[int, str], RunSpec] = {}
        for seed in self.seeds:
            for number, cell in enumerate(self.cells()):
                for arm in self.arms if seed in self.seeds_in(cell) else ():
                    place = number, arm.name
                    if place not in valid:  # other seeds change nothing that could be invalid
                        valid[place] = self._run(arm, {**cell, **chosen(cell, arm)}, seed)
                    runs.append(valid[place].model_copy(update={"seed": seed}))
        return keep_branch_checkpoints(runs)

    def runs(self) -> list[RunSpec]:
        """Return the runs of a study that tunes nothing. A run that is declared twice is an error."""
        if self.tuned:
            raise InvalidSpec(
                f"Study {self.name!r} tunes {', '.join(self.tuned)}, so its confirming runs depend on the results of "
                "tuning. Use its stages (oelm.record.stages) instead."
            )
        return list(_expand(self))

    def _run(self, arm: Arm, values: Setting, seed: int, *, scores_test: bool = True) -> RunSpec:
        own = {"arm": arm.name, "method": arm.method, "seed": seed, "scores_test": scores_test}
        run = self.base.model_copy(update=own)
        return replace_fields(run, {**{f"model.{name}": value for name, value in arm.model.items()}, **values})


@remember
def _expand(study: Study) -> list[RunSpec]:
    """Return the runs of a study that tunes nothing. A report needs them several times."""
    return refuse_duplicates(study.name, study.confirming(lambda _cell, _arm: {}))


class Listing(Spec):
    """Runs that are listed one by one, for a study that is not a product of arms and axes."""

    name: StudyName
    question: str
    listed: tuple[RunSpec, ...]

    @model_validator(mode="after")
    def _refuse_missing_labels(self) -> Self:
        labels = [run.label for run in self.listed]
        if not labels or None in labels or len(set(labels)) != len(labels):
            raise ValueError(f"listed= needs runs, each with a label of its own; found the labels {labels}")
        return self

    def runs(self) -> list[RunSpec]:
        """Return the runs. A run that is declared twice is an error."""
        return refuse_duplicates(self.name, self.listed)


AnyStudy = Study | Listing


def refuse_duplicates(study: str, runs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return the runs. Refuse two with the same fingerprint, and fields that only resolving a run may fill in."""
    seen: dict[str, RunSpec] = {}
    for run in runs:
        _refuse_resolved(study, run)
        twin = seen.setdefault(fingerprint(run), run)
        if twin is not run:
            raise InvalidSpec(
                f"Study {study!r} declares one run twice: {twin.label or twin.arm!r} and {run.label or run.arm!r} "
                f"with seed {run.seed} have the same fingerprint. Remove one of them."
            )
    return list(seen.values())


def _refuse_resolved(study: str, run: RunSpec) -> None:
    declared = undo_resolve(run)
    for field in ("data.checksum", "model.checksum", "train.chose_precision", "train.steps"):
        value = field_at(run, field)
        if value == field_at(declared, field):
            continue
        why = "which is filled in when the run is resolved. Leave it out."
        if field == "train.steps":
            why = (
                f"in addition to train.epochs={run.train.epochs}, from which steps are derived. Leave one of them out."
            )
        raise InvalidSpec(f"Study {study!r} declares {run.label or run.arm!r} with {field}={value!r}, {why}")


def keep_branch_checkpoints(runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Make every warm-up-stable-decay run keep the checkpoints from which shorter runs of the study can branch off."""
    if all(run.train.decay != "wsd" for run in runs):
        return list(runs)
    kept = []
    for run in runs:
        steps = sorted({other.train.decay_start for other in runs if branches_off(other, run)})
        kept.append(replace_fields(run, {"train.branch_at": tuple(steps)}) if steps else run)
    return kept


def _product(values: Mapping[str, Sequence[Any]]) -> list[Setting]:
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def replace_fields(run: RunSpec, fields: Setting) -> RunSpec:
    """Return the run with some dotted fields replaced, all at once, because one may be valid only with another."""
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
        given = ", ".join(f"{field}={value!r}" for field, value in fields.items())
        raise InvalidSpec(f"{given} does not fit the run: {explain_validation(error)}") from error


def field_at(holder: Any, field: str) -> Any:
    """Return the value of a dotted field of a run or of its JSON data; None if there is no such field."""
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
    """Run a study file and return its `study`, or the named one of its `scales`."""
    if not path.is_file():
        raise UsageError(
            f"There is no study file {path}. A study is a Python file that contains `study = Study(...)`; "
            "`oelm new study NAME` writes one."
        )
    try:
        names = runpy.run_path(str(path))
    except ValidationError as error:
        raise InvalidSpec(
            f"{_place(path, error)} does not declare a valid study: {explain_validation(error)}"
        ) from error
    except OelmError as error:
        error.args = (f"{_place(path, error)}: {error}",)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the file raises, also SystemExit: it is someone else's code
        raise UsageError(f"{_place(path, error)} raised {type(error).__name__} while it was read: {error}") from error
    scales = names.get("scales", {})
    if scale is not None and not scales:
        raise UsageError(f"--scale {scale} was given, but {path} declares one study and no scales. Leave it out.")
    if scale is not None and scale not in scales:
        raise UnknownName(f"scale of {path}", scale, scales)
    study = names.get("study") if scale is None else scales[scale]
    if not isinstance(study, Study | Listing):
        raise UsageError(
            f"{path} does not define `study` (found {type(study).__name__}). Add `study = oelm.Study(...)`."
        )
    return study


def _place(path: Path, error: BaseException) -> str:
    """Return the line of the study file that led to an error, or only the file if none did."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]} of {path}" if lines else str(path)
