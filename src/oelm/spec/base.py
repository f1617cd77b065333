"""What all specs share: values that cannot be invalid, cannot change, and know which fields matter."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict


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


def digest(value: Any) -> str:
    """Hash plain JSON data by its one canonical text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
