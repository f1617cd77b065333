"""Models as values."""

import pytest
from pydantic import TypeAdapter, ValidationError

from oelm.errors import UnknownName
from oelm.spec.run import GPT_SIZES, GPTSpec, HuggingFaceSpec, ModelSpec, named_size


def test_sizes_that_are_left_out_are_derived():
    spec = GPTSpec(model_dim=96, num_heads=6)
    assert (spec.key_heads, spec.head_size, spec.qk_size, spec.hidden_dim) == (6, 16, 16, 384)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_dim": 10, "num_heads": 4},
        {"num_heads": 8, "num_key_heads": 3},
        {"positions": "rope", "qk_head_size": 3},
        {"dropout": 1.0},
        {"num_layers": 0},
    ],
)
def test_sizes_that_do_not_fit_cannot_exist(fields):
    with pytest.raises(ValidationError):
        GPTSpec(**fields)


def test_the_kind_tells_models_apart_in_json():
    adapter = TypeAdapter(ModelSpec)
    for spec in (GPT_SIZES["nano"], HuggingFaceSpec(name="bert-base", labels=3)):
        assert adapter.validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("name", GPT_SIZES)
def test_a_named_size_takes_the_vocabulary_of_the_data(name):
    assert named_size(name) == GPT_SIZES[name].model_copy(update={"vocab_size": None})


def test_an_unknown_size_suggests_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'mini'"):
        named_size("minni")
