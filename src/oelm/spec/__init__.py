"""Specs: methods, models, data, training, runs and studies as values. Nothing here needs torch.

All specs share this: they are always valid, they cannot change, and they know which of their fields matter. The words
for the identity of a run:

- The **meaning** of a spec is its fields as plain JSON data, without those marked `NoEffect` (names, folders, how often
  to save) and without those at their default.
- The **digest** of JSON data is the SHA-256 of its canonical text.
- The **fingerprint** of a run (`oelm.spec.run`) is the digest of its meaning: runs with the same fingerprint are the
  same experiment.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from functools import cache, wraps
from pathlib import PurePath
from typing import Annotated, Any, NoReturn, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from oelm.errors import InvalidSpec, UnknownName
from oelm.files import has_controls


class _NoEffect:
    """Mark a field that cannot change a run's numbers, so that the fingerprint leaves it out."""


_T = TypeVar("_T")
NoEffect = Annotated[_T, _NoEffect()]


def _refuse_controls(name: str) -> str:
    if has_controls(name):
        raise ValueError(f"{name!r} has a line break or a control character; use a name of one line without them")
    return name


def _has_surrogate(text: str) -> bool:
    """Whether a text has half of a character, as Python reads names of files that are not UTF-8."""
    return not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text)


Name = Annotated[str, AfterValidator(_refuse_controls)]
"""A text of one line. It becomes part of folder names, of batch scripts and of what a terminal shows."""


class FrozenDict(dict[Any, Any]):
    """A dict that cannot change and can be hashed. It keeps its order and equals a plain dict with the same items."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("A spec cannot be changed. Create a new one, for example with model_copy(update={...}).")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[Any, Any]]]:
        return FrozenDict, (dict(self),)  # copying and unpickling would otherwise set item by item


def _freeze(value: Any) -> Any:
    """Return the value with every dict, list and set inside it replaced by one that cannot change."""
    if isinstance(value, dict):
        return FrozenDict((key, _freeze(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(_freeze(inner) for inner in value)
    return frozenset(value) if isinstance(value, set) else value


def _freeze_fields(spec: BaseModel) -> None:
    fields = spec.__dict__  # a frozen model refuses setattr
    for name, value in fields.items():
        if isinstance(value, dict | list | tuple | set):
            fields[name] = _freeze(value)


class Spec(BaseModel):
    """An immutable, hashable value. Unknown fields are errors, so that a misspelt field is never silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_post_init(self, _context: Any, /) -> None:
        """Freeze the containers among the fields, and refuse text that no JSON file can hold."""
        for name, value in self.__dict__.items():
            if isinstance(value, str | PurePath) and _has_surrogate(str(value)):
                raise InvalidSpec(f"{name}={str(value)!r} is not valid Unicode, so it cannot be written. Rename it.")
        _freeze_fields(self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields replaced. Field names are checked; values are not validated, as in pydantic.

        Raises:
            UnknownName: there is no such field.

        """
        for name in update or ():
            if name not in type(self).model_fields:
                raise UnknownName(f"field of {type(self).__name__}", name, type(self).model_fields)
        copy = super().model_copy(update=update, deep=deep)
        _freeze_fields(copy)
        return copy

    def meaning(self) -> dict[str, Any]:
        """Return, as plain JSON data, the fields that can change a run's numbers and are not at their default.

        Defaults are left out so that a field added later does not change the fingerprint of any earlier run. Changing
        a default changes numbers, so it requires a new NUMERICS (a test pins the defaults).
        """
        found = {}
        for name, default, default_meaning in _effective_fields(type(self)):
            value = getattr(self, name)
            if value is default or value == default:
                continue
            if isinstance(value, Spec):
                inner: Any = value.meaning()
            elif isinstance(value, str | int | float):
                inner = value
            else:
                inner = self.model_dump(mode="json", include={name})[name]
            if default_meaning is None or inner != default_meaning:
                found[name] = inner
        return found


_Result = TypeVar("_Result")


def remember(function: Callable[[_T], _Result]) -> Callable[[_T], _Result]:
    """Compute a function once for each immutable value, and keep the result for as long as that value lives.

    Values are told apart by identity: 1 and 1.0 are equal, and have different texts and digests.
    """
    known: dict[int, tuple[weakref.ref[Any], _Result]] = {}

    @wraps(function)
    def remembered(value: _T) -> _Result:
        place = id(value)
        found = known.get(place)
        if found is None or found[0]() is not value:
            found = known[place] = weakref.ref(value, lambda _: known.pop(place, None)), function(value)
        return found[1]

    return remembered


@cache
def _effective_fields(spec: type[Spec]) -> tuple[tuple[str, Any, Any], ...]:
    """Return name and default of each field that can change numbers, and the meaning of the default if it is a spec."""
    return tuple(
        (name, field.default, field.default.meaning() if isinstance(field.default, Spec) else None)
        for name, field in spec.model_fields.items()
        if not any(isinstance(mark, _NoEffect) for mark in field.metadata)
    )


_BRANCH = re.compile(r"(constrained-)?(int|float|str|bool)|[\w-]+\[.*\]")
"""What pydantic appends to the name of a field with several types: `int`, `literal['epoch']`."""


_MOST_FIELDS = 5


def explain_validation(error: Exception) -> str:
    """Name each wrong field once, the first few of many, and say what is wrong. Other errors keep their own text.

    The text of pydantic is for programmers: it names classes and kinds of errors, with a link for each.
    """
    if not isinstance(error, ValidationError):
        return str(error)
    wrong: dict[str, list[ErrorDetails]] = {}
    for each in error.errors(include_url=False):
        field = ".".join(name for name in map(str, each["loc"]) if not _BRANCH.fullmatch(name))
        wrong.setdefault(field, []).append(each)
    found = [f"{field}: {_explain(them)}" if field else _explain(them) for field, them in wrong.items()]
    more = [f"and {len(found) - _MOST_FIELDS} more"] if len(found) > _MOST_FIELDS else []
    return "; ".join([*found[:_MOST_FIELDS], *more])


def _explain(wrong: list[ErrorDetails]) -> str:
    """Say what a field should be, and what was found."""
    first, *others = dict.fromkeys(each["msg"].removeprefix("Value error, ") for each in wrong)
    should = ", or ".join((first, *(other.removeprefix("Input ") for other in others)))
    kind, found = wrong[0]["type"], wrong[0]["input"]
    is_complete = kind in ("value_error", "missing", "json_invalid") or not isinstance(found, str | int | float | None)
    return should if is_complete else f"{should}, found {found!r:.80}"
