"""What all specs share: values that cannot be invalid, cannot change, and know which fields matter."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails


class _NoEffect:
    """Mark a field that cannot change a run's numbers, so that the fingerprint leaves it out."""


T = TypeVar("T")
NoEffect = Annotated[T, _NoEffect()]


class Spec(BaseModel):
    """A frozen value. Unknown fields are errors, so that a misspelt wish is never silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def meaning(self) -> dict[str, Any]:
        """Return, as plain JSON data, the fields that can change a run's numbers and are not at their default.

        What is at its default is left out, so that a field added later leaves every earlier run what it was.
        Changing a default is a change of numbers: it needs a new NUMERICS (a test holds the defaults fast).
        """
        found = {}
        for name, default, plain_default in _telling(type(self)):
            value = getattr(self, name)
            if value is default or value == default:
                continue
            if isinstance(value, Spec):
                inner: Any = value.meaning()
            elif isinstance(value, str | int | float):
                inner = value
            else:
                inner = self.model_dump(mode="json", include={name})[name]
            if plain_default is None or inner != plain_default:
                found[name] = inner
        return found


@cache
def _telling(spec: type[Spec]) -> tuple[tuple[str, Any, Any], ...]:
    """Return the fields that can change numbers, with their defaults, and with the meaning of those that are specs."""
    return tuple(
        (name, field.default, field.default.meaning() if isinstance(field.default, Spec) else None)
        for name, field in spec.model_fields.items()
        if not any(isinstance(mark, _NoEffect) for mark in field.metadata)
    )


_BRANCH = re.compile(r"(constrained-)?(int|float|str|bool)|[\w-]+\[.*\]")
"""What pydantic puts behind the name of a field that may be one of several things: `int`, `literal['epoch']`."""


def in_words(error: Exception) -> str:
    """Name each field that is wrong, if one alone is, and why: once, however many things it may be.

    pydantic's own text is for programmers: it names classes and types of errors, with an address for each. What any
    other error says is left as it is.
    """
    if not isinstance(error, ValidationError):
        return str(error)
    wrong: dict[str, list[ErrorDetails]] = {}
    for each in error.errors(include_url=False):
        field = ".".join(name for name in map(str, each["loc"]) if not _BRANCH.fullmatch(name))
        wrong.setdefault(field, []).append(each)
    return "; ".join(f"{field}: {_reason(them)}" if field else _reason(them) for field, them in wrong.items())


def _reason(wrong: list[ErrorDetails]) -> str:
    """Say what a field should be, and what it was."""
    first, *others = dict.fromkeys(each["msg"].removeprefix("Value error, ") for each in wrong)
    should = ", or ".join((first, *(other.removeprefix("Input ") for other in others)))
    kind, found = wrong[0]["type"], wrong[0]["input"]
    own_words = kind in ("value_error", "missing") or not isinstance(found, str | int | float | None)
    return should if own_words else f"{should}, found {found!r}"


def digest(value: Any) -> str:
    """Hash plain JSON data by its one canonical text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
