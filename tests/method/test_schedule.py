"""Which layers are frozen when, and how fast parameters learn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from oelm.errors import BadShape
from oelm.method.freeze import Timeline, layer_prefixes, multipliers, resolve_layers
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT
from oelm.spec.method import Change, FreezeSpec, MethodSpec, RatesSpec, ScheduleSpec, Sweep, named_method
from oelm.spec.run import GPT_SIZES

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


@pytest.fixture(scope="module")
def model():
    return GPT(GPT_SIZES["nano"])


def find_rates(model, **fields):
    names = [name for name, _ in model.named_parameters()]
    return multipliers(names, architecture_of(model).projections(model), RatesSpec(**fields))


def test_layers_are_found_by_the_names_of_what_is_in_them(model):
    assert layer_prefixes(architecture_of(model).projections(model)) == {"blocks.0": 0, "blocks.1": 1}


def test_by_default_every_parameter_has_the_same_rate(model):
    assert set(find_rates(model).values()) == {1.0}


def test_depth_decay_is_geometric_from_the_last_layer_down_to_the_embeddings(model):
    rates = find_rates(model, layer_decay=0.5)
    assert rates["norm.weight"] == rates["blocks.1.ffn_norm.weight"] == 1.0
    assert rates["blocks.0.attention.q.weight"] == 0.5
    assert rates["token_embedding.weight"] == rates["position_embedding.weight"] == 0.25


def test_roles_and_layers_multiply(model):
    rates = find_rates(model, roles={"q": 0.1}, layers={-1: 0.5})
    assert rates["blocks.1.attention.q.weight"] == pytest.approx(0.05)
    assert rates["blocks.0.attention.q.weight"] == pytest.approx(0.1)
    assert rates["blocks.1.attention.k.weight"] == 0.5


def test_a_rate_for_a_layer_that_does_not_exist_is_refused(model):
    with pytest.raises(BadShape, match="layer 7"):
        find_rates(model, layers={7: 0.5})


def test_one_layer_under_two_numbers_is_refused(model):
    with pytest.raises(BadShape, match=r"layer 1 twice: -1"):
        find_rates(model, layers={-1: 0.5, 1: 0.1})


def test_a_number_before_that_of_the_layer_is_ignored():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
    model = nn.Sequential(nn.Embedding(5, 8), encoder)
    prefixes = layer_prefixes(architecture_of(model).projections(model))
    assert prefixes == {"1.layers.0": 0, "1.layers.1": 1, "1.layers.2": 2}
