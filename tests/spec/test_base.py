"""What all specs share."""

import pytest
from pydantic import ValidationError

from oelm.spec.base import NoEffect, Spec, digest


class Inner(Spec):
    a: int = 1
    note: NoEffect[str] = ""


class Outer(Spec):
    inner: Inner = Inner()
    place: NoEffect[str | None] = None


def test_meaning_leaves_out_marked_fields_at_every_depth():
    assert Outer(place="x", inner=Inner(a=2, note="y")).meaning() == {"inner": {"a": 2}}


def test_meaning_leaves_out_what_is_at_its_default():
    assert Outer(inner=Inner(a=1, note="y")).meaning() == {}
    assert Outer().meaning() == {}


def test_unknown_fields_are_errors():
    with pytest.raises(ValidationError, match="b"):
        Inner(b=2)


def test_the_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [1.5, None]}) == digest({"b": [1.5, None], "a": 1}) != digest({"a": 1, "b": [1.5, 0]})
