"""Learning-rate multipliers."""

import pytest
from torch import nn

from oelm.errors import BadShape
from oelm.method.rates import layer_prefixes, multipliers
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT
from oelm.spec.method import RatesSpec
from oelm.spec.model import GPT_SIZES


@pytest.fixture(scope="module")
def model():
    return GPT(GPT_SIZES["nano"])


def rated(model, **fields):
    names = [name for name, _ in model.named_parameters()]
    return multipliers(names, architecture_of(model).projections(model), RatesSpec(**fields))


def test_layers_are_found_by_the_names_of_what_is_in_them(model):
    assert layer_prefixes(architecture_of(model).projections(model)) == {"blocks.0": 0, "blocks.1": 1}


def test_by_default_every_parameter_has_the_same_rate(model):
    assert set(rated(model).values()) == {1.0}


def test_depth_decay_is_geometric_from_the_last_layer_down_to_the_embeddings(model):
    rates = rated(model, layer_decay=0.5)
    assert rates["norm.weight"] == rates["blocks.1.ffn_norm.weight"] == 1.0
    assert rates["blocks.0.attention.q.weight"] == 0.5
    assert rates["token_embedding.weight"] == rates["position_embedding.weight"] == 0.25


def test_roles_and_layers_multiply(model):
    rates = rated(model, roles={"q": 0.1}, layers={-1: 0.5})
    assert rates["blocks.1.attention.q.weight"] == pytest.approx(0.05)
    assert rates["blocks.0.attention.q.weight"] == pytest.approx(0.1)
    assert rates["blocks.1.attention.k.weight"] == 0.5


def test_a_layer_that_does_not_exist_is_refused(model):
    with pytest.raises(BadShape, match="layer 7"):
        rated(model, layers={7: 0.5})


def test_one_layer_under_two_numbers_is_refused(model):
    with pytest.raises(BadShape, match=r"layer 1 twice: -1"):
        rated(model, layers={-1: 0.5, 1: 0.1})


def test_a_number_before_that_of_the_layer_is_no_layer():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
    model = nn.Sequential(nn.Embedding(5, 8), encoder)
    prefixes = layer_prefixes(architecture_of(model).projections(model))
    assert prefixes == {"1.layers.0": 0, "1.layers.1": 1, "1.layers.2": 2}
