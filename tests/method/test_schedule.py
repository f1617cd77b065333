"""When which layers are frozen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.errors import BadShape
from oelm.method.schedule import Timeline, resolve_layers
from oelm.spec.method import Change, FreezeSpec, MethodSpec, ScheduleSpec, Sweep
from oelm.spec.named import named_method

QK = FreezeSpec(roles=("q", "k"))


def timeline(*changes, every=None, layers=4, steps=100, freeze=QK):
    return Timeline(MethodSpec(freeze=freeze, schedule=ScheduleSpec(changes=changes, every=every)), layers, steps)


def test_without_a_schedule_everything_named_is_frozen_for_ever():
    line = timeline()
    assert line.frozen_layers(0) == line.frozen_layers(10**9) == {0, 1, 2, 3}


def test_without_roles_nothing_is_frozen():
    assert timeline(freeze=FreezeSpec()).frozen_layers(0) == frozenset()


def test_unfreezing_midway_releases_exactly_the_layers_it_names():
    line = timeline(Change(action="unfreeze", at=0.5, layers=(-1,)))
    assert line.frozen_layers(49) == {0, 1, 2, 3}
    assert line.frozen_layers(50) == {0, 1, 2}


def test_what_freezes_first_has_trained_before():
    line = timeline(Change(action="freeze", at=30))
    assert line.frozen_layers(29) == frozenset()
    assert line.frozen_layers(30) == {0, 1, 2, 3}


def test_a_layer_may_freeze_and_thaw_again():
    line = timeline(Change(action="freeze", at=10, layers=(1,)), Change(action="unfreeze", at=20, layers=(1,)))
    assert [1 in line.frozen_layers(step) for step in (0, 10, 19, 20)] == [False, True, True, False]


@pytest.mark.parametrize(("order", "first"), [("last-to-first", 3), ("first-to-last", 0)])
def test_a_sweep_goes_evenly_through_the_layers_in_its_order(order, first):
    line = timeline(Sweep(action="unfreeze", start=0.2, stop=0.8, order=order))
    counts = [len(line.frozen_layers(step)) for step in (19, 20, 40, 60, 80)]
    assert counts == [4, 3, 2, 1, 0]
    assert first not in line.frozen_layers(20)


def test_every_tenth_step_updates_and_the_nine_before_do_not():
    line = Timeline(named_method("oelm-every:10"), 2, 100)
    assert [step for step in range(40) if not line.frozen_layers(step)] == [9, 19, 29, 39]


def test_partial_trains_its_layers_from_the_first_step():
    assert Timeline(named_method("oelm-partial:-1,-2"), 6, 10).frozen_layers(0) == {0, 1, 2, 3}


@pytest.mark.parametrize("layers", [(4,), (-5,)])
def test_a_layer_that_does_not_exist_is_refused_with_the_ones_that_do(layers):
    with pytest.raises(BadShape, match="4 layers, numbered 0 to 3"):
        timeline(Change(action="freeze", at=1, layers=layers))


def test_a_schedule_for_layers_the_method_never_freezes_is_refused():
    with pytest.raises(BadShape, match=r"changes layers \[3\]"):
        timeline(Change(action="unfreeze", at=1, layers=(3,)), freeze=FreezeSpec(roles=("q",), layers=(0, 1)))


@given(st.lists(st.integers(-6, 5)), st.just(6))
def test_negative_layers_count_from_the_end(layers, num_layers):
    assert resolve_layers(tuple(layers), num_layers) == sorted({list(range(num_layers))[layer] for layer in layers})
