"""What all specs share: values that cannot be invalid, cannot change, and know which fields matter."""

from __future__ import annotations

import hashlib
import json
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
        plain = self.model_dump(mode="json")
        found = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if any(isinstance(mark, _NoEffect) for mark in field.metadata) or value == field.default:
                continue
            inner = value.meaning() if isinstance(value, Spec) else plain[name]
            if not (isinstance(field.default, Spec) and inner == field.default.meaning()):
                found[name] = inner
        return found


def digest(value: Any) -> str:
    """Hash plain JSON data by its one canonical text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
