"""What all specs share."""

import copy
import pickle

import pytest
from pydantic import PositiveInt, ValidationError, model_validator

from oelm.errors import UnknownName
from oelm.files import digest
from oelm.spec import NoEffect, Spec, explain_validation
from oelm.spec.method import Change, MethodSpec, RatesSpec
from oelm.spec.run import GPTSpec, RunSpec, TrainSpec, fingerprint
from oelm.spec.study import Arm, Study


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


RATES = RatesSpec(roles={"v": 0.5, "q": 2}, layers={3: 0.5, 0: 2.0, -1: 1})


@pytest.mark.parametrize(
    "change",
    [
        lambda roles: roles.__setitem__("q", 5),
        lambda roles: roles.__delitem__("q"),
        lambda roles: roles.__ior__({"q": 5}),
        lambda roles: roles.update(q=5),
        lambda roles: roles.setdefault("k", 5),
        lambda roles: roles.pop("q"),
        lambda roles: roles.popitem(),
        lambda roles: roles.clear(),
    ],
)
def test_a_mapping_inside_a_spec_cannot_be_changed_so_a_fingerprint_stays(change):
    run = RunSpec(model=GPTSpec(), method=MethodSpec(rates=RATES))
    for rates in (run.method.rates, RATES.model_copy(update={"roles": {"q": 2.0}}), copy.deepcopy(RATES)):
        with pytest.raises(TypeError, match="cannot be changed"):
            change(rates.roles)
    with pytest.raises(TypeError, match="cannot be changed"):
        change(MethodSpec().rates.roles)
    assert fingerprint(run) == "a53a860c6a881c05"


def test_equal_specs_have_equal_hashes_whatever_the_order_of_their_mappings():
    other = RatesSpec(roles={"q": 2, "v": 0.5}, layers={-1: 1, 3: 0.5, 0: 2.0})
    assert (other, hash(other)) == (RATES, hash(RATES))
    assert {MethodSpec(rates=RATES): "found"}[MethodSpec(rates=other)] == "found"


def test_specs_are_frozen_at_every_depth_and_survive_json_pickle_and_copies():
    values = [{"rates": {"roles": {"q": 2.0}}}, {"rates": {"layers": [1, {"deep": [2]}]}}]
    arm = Arm(name="a", method=MethodSpec(), model={"any": values})
    study = Study(name="s", question="?", base=RunSpec(model=GPTSpec()), arms=("baseline", arm))
    assert isinstance(hash(study), int)
    again = Study.model_validate_json(study.model_dump_json())
    for twin in (again, pickle.loads(pickle.dumps(study)), copy.deepcopy(study), study.model_copy(deep=True)):  # noqa: S301
        assert (twin, hash(twin), twin.model_dump_json()) == (study, hash(study), study.model_dump_json())
    assert study.arms[1].model == {
        "any": ({"rates": {"roles": {"q": 2.0}}}, {"rates": {"layers": (1, {"deep": (2,)})}})
    }
    values[0]["rates"]["roles"]["q"] = 3.0
    assert study == again


def test_a_copy_with_a_misspelt_field_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownName, match="no field of RatesSpec named 'rolls'. Did you mean 'roles'"):
        RATES.model_copy(update={"rolls": {}})
    assert RATES.model_copy(update={"layers": {}}).layers == {}


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
    assert explain_validation(caught.value) == words


def test_the_words_of_any_other_error_are_its_own():
    assert explain_validation(KeyError("spec")) == "'spec'"
