"""The method as a value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from oelm.spec.method import METHODS, Change, FreezeSpec, InitSpec, MethodSpec, RepairSpec, ScheduleSpec, Sweep

inits = st.sampled_from([method.init for method in METHODS.values()])
freezes = st.builds(
    FreezeSpec,
    roles=st.lists(st.sampled_from(["q", "k", "v", "o", "ffn"]), unique=True).map(tuple),
    layers=st.none() | st.lists(st.integers(-3, 3), max_size=3).map(tuple),
    biases=st.booleans(),
)
moments = st.integers(0, 1000) | st.floats(0, 1)
changes = st.builds(Change, action=st.sampled_from(["freeze", "unfreeze"]), at=moments)
repairs = st.builds(RepairSpec, key_shift=st.floats(0, 1), temperature=st.booleans(), low_rank=st.integers(0, 4))


@given(inits, freezes, st.lists(changes, max_size=2), repairs, st.none() | st.integers(2, 50))
def test_every_valid_method_survives_the_round_trip_through_json(init, freeze, changes, repair, every):
    try:
        method = MethodSpec(
            init=init,
            freeze=freeze,
            repair=repair,
            schedule=ScheduleSpec(changes=tuple(changes), every=every),
        )
    except ValidationError:
        return
    again = MethodSpec.model_validate_json(method.model_dump_json())
    assert again == method
    assert again.meaning() == method.meaning()


def test_a_moment_written_as_an_integer_is_a_step_and_as_a_float_a_fraction():
    one = Change(action="freeze", at=1)
    whole = Change.model_validate_json(Change(action="freeze", at=1.0).model_dump_json())
    assert isinstance(one.at, int)
    assert isinstance(whole.at, float)


@pytest.mark.parametrize(
    "build",
    [
        lambda: InitSpec(shape="normal"),
        lambda: InitSpec(shape="normal", matched=True, deviation=0.1),
        lambda: InitSpec(shape="orthogonal", matched=True),
        lambda: InitSpec(shape="slice", source="current"),
        lambda: InitSpec(shape="hadamard", scope="global"),
        lambda: InitSpec(shape="absent", gain=2.0),
        lambda: InitSpec(shape="host", correlation=0.5),
        lambda: InitSpec(shape="slice", correlation=0.5),
        lambda: InitSpec(shape="orthogonal", scope="global", correlation=0.5),
        lambda: InitSpec(shape="orthogonal", source="current", correlation=0.5),
        lambda: InitSpec(shape="orthogonal", gain=float("nan")),
        lambda: FreezeSpec(roles=("q", "q")),
        lambda: FreezeSpec(roles=("w",)),
        lambda: Sweep(action="freeze", start=1, stop=0.5),
        lambda: Change(action="freeze", at=1.5),
        lambda: Change(action="freeze", at=30.0),
        lambda: ScheduleSpec(every=1),
        lambda: MethodSpec(schedule=ScheduleSpec(every=2)),
        lambda: MethodSpec(init=InitSpec(shape="absent"), freeze=FreezeSpec(roles=("q",))),
        lambda: MethodSpec(init=InitSpec(shape="absent"), repair=RepairSpec(temperature=True)),
        lambda: MethodSpec(init=InitSpec(gain=2.0), repair=RepairSpec(qk_norm=True)),
        lambda: MethodSpec(freezing=FreezeSpec()),
    ],
)
def test_a_method_that_means_nothing_cannot_exist(build):
    with pytest.raises(ValidationError):
        build()


def test_specs_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        METHODS["baseline"].sites = ("self",)


def test_a_schedule_in_steps_and_fractions_is_refused_because_its_order_is_unknown():
    later = Change(action="freeze", at=500)
    with pytest.raises(ValidationError, match="which is first depends on how long training is"):
        ScheduleSpec(changes=(Change(action="unfreeze", at=0.1), later))
    assert ScheduleSpec(changes=(Change(action="unfreeze", at=0), later)).changes[1] == later
    assert ScheduleSpec(changes=(Change(action="unfreeze", at=0), Change(action="freeze", at=0.5))).moves


def test_nothing_is_on_by_default_and_what_is_on_is_named():
    assert RepairSpec().active() == ()
    assert RepairSpec(core=True, low_rank=2, key_shift=0.5).active() == ("key_shift", "core", "low_rank")


def test_two_trained_factors_on_one_head_cannot_be_asked_for():
    with pytest.raises(ValidationError, match="leave temperature off"):
        RepairSpec(qk_norm=True, temperature=True)


def test_a_negative_rank_cannot_be_asked_for():
    with pytest.raises(ValidationError):
        RepairSpec(low_rank=-1)
