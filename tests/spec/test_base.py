"""What all specs share."""

import pytest
from pydantic import PositiveInt, ValidationError, model_validator

from oelm.spec.base import NoEffect, Spec, digest, in_words
from oelm.spec.method import Change
from oelm.spec.train import TrainSpec


class Inner(Spec):
    a: int = 1
    note: NoEffect[str] = ""


class Outer(Spec):
    inner: Inner = Inner()
    place: NoEffect[str | None] = None


class Pair(Spec):
    one: PositiveInt = 1
    other: PositiveInt = 1

    @model_validator(mode="after")
    def _differs(self):
        if self.one == self.other == 7:
            raise ValueError("both are 7")
        return self


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


@pytest.mark.parametrize(
    ("spec", "fields", "words"),
    [
        (Pair, {"one": 0}, "one: Input should be greater than 0, found 0"),
        (
            Pair,
            {"one": 0, "other": 0},
            "one: Input should be greater than 0, found 0; other: Input should be greater than 0, found 0",
        ),
        (Pair, {"one": 7, "other": 7}, "both are 7"),
        (Pair, {"three": 3}, "three: Extra inputs are not permitted, found 3"),
        (
            Outer,
            {"inner": {"a": -0.5}},
            "inner.a: Input should be a valid integer, got a number with a fractional part, found -0.5",
        ),
        (TrainSpec, {"eval_every": 0}, "eval_every: Input should be greater than 0, or should be 'epoch', found 0"),
        (Change, {"action": "freeze", "at": -1}, "at: Input should be greater than or equal to 0, found -1"),
        (
            Change,
            {"action": "freeze", "at": 30.0},
            "at: Input should be a valid integer, or should be less than or equal to 1, found 30.0",
        ),
        (Change, {"at": 0.5}, "action: Field required"),
    ],
)
def test_what_is_wrong_with_a_spec_is_a_sentence_for_each_field_and_what_was_found(spec, fields, words):
    with pytest.raises(ValidationError) as caught:
        spec(**fields)
    assert in_words(caught.value) == words


def test_the_words_of_any_other_error_are_its_own():
    assert in_words(KeyError("spec")) == "'spec'"
