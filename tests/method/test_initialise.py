"""What is drawn, in the places where it belongs."""

import pytest
import torch

import oelm
from oelm.errors import BadShape, InvalidSpec
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT
from oelm.spec.method import InitSpec, MethodSpec
from oelm.spec.run import GPT_SIZES

NANO = GPT_SIZES["nano"]


def pairs(model):
    """Return queries and keys of each layer, the keys once per query head."""
    found = architecture_of(model).projections(model)
    queries = [p.read().double() for p in found if p.role == "q"]
    keys = [p.read().double() for p in found if p.role == "k"]
    return [(q, k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)) for q, k in zip(queries, keys, strict=True)]


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_every_query_head_correlates_with_the_key_head_it_is_compared_with(key_heads):
    model = GPT(NANO.model_copy(update={"num_key_heads": key_heads}))
    oelm.apply(model, "oelm+correlated=0.6")
    for queries, keys in pairs(model):
        expected = 0.6 * torch.eye(8, dtype=torch.float64).expand(4, 8, 8)
        assert torch.allclose(queries @ keys.mT, expected, atol=1e-6)
        if key_heads < 4:  # heads of a group share their keys and nothing else
            assert (queries[0] - queries[1]).abs().max() > 0.1


def test_keys_are_those_of_the_arm_without_correlation():
    plain, correlated = GPT(NANO), GPT(NANO)
    oelm.apply(plain, "oelm-freeze")
    oelm.apply(correlated, "oelm-correlated")
    for (q, k), (other_q, other_k) in zip(pairs(plain), pairs(correlated), strict=True):
        assert torch.equal(k, other_k)
        assert not torch.allclose(q, other_q, atol=0.1)


def test_at_one_queries_are_the_keys_even_in_heads_as_wide_as_their_input():
    model = GPT(NANO.model_copy(update={"num_heads": 1}))
    with pytest.raises(BadShape, match="heads of size 16 or less"):
        oelm.apply(model, "oelm-correlated")
    oelm.apply(model, "oelm+correlated=1")
    assert all(torch.allclose(q, k, atol=1e-6) for q, k in pairs(model))


def test_a_foreign_model_with_grouped_keys_is_drawn_alike():
    from oelm.models.build import build, parse_model_name

    model = build(parse_model_name("llama-tiny"))
    oelm.apply(model, "oelm-correlated")
    for queries, keys in pairs(model):
        assert torch.allclose(queries @ keys.mT, 0.5 * torch.eye(32, dtype=torch.float64).expand(4, 32, 32), atol=1e-6)


def test_a_gain_scales_the_baselines_own_weights_and_nothing_else():
    plain, scaled = GPT(NANO), GPT(NANO)
    oelm.apply(scaled, MethodSpec(init=InitSpec(gain=3.0)))
    other = dict(scaled.named_parameters())
    for name, parameter in plain.named_parameters():
        factor = 3 if name.endswith(("attention.q.weight", "attention.k.weight")) else 1
        assert torch.allclose(other[name], factor * parameter, rtol=1e-6)
        assert other[name].requires_grad


def test_a_gain_on_frozen_weights_is_its_square_on_the_logits():
    plain, scaled = GPT(NANO), GPT(NANO)
    oelm.apply(plain, "oelm-freeze")
    oelm.apply(scaled, "oelm+gain=2")
    x = torch.randn(1, 5, 32)

    def logits(model):
        queries, keys = model.blocks[0].attention.project(x)
        return queries @ keys.mT

    assert torch.allclose(logits(scaled), 4 * logits(plain), rtol=1e-5)


@pytest.mark.parametrize("key_heads", [4, 2])
def test_slices_never_compare_a_coordinate_with_itself_whoever_shares_the_keys(key_heads):
    model = GPT(NANO.model_copy(update={"num_key_heads": key_heads}))
    oelm.apply(model, "oelm-slice")
    for queries, keys in pairs(model):
        assert not (queries.abs().sum(1) * keys.abs().sum(1)).any()


@pytest.mark.parametrize("key_heads", [4, 2])
def test_same_heads_read_the_same_coordinates_and_the_others_coordinates_of_their_own(key_heads):
    model = GPT(NANO.model_copy(update={"num_key_heads": key_heads}))
    oelm.apply(model, "oelm-slice+same=0.5+features")
    queries, keys = pairs(model)[0]
    same = 2
    assert torch.equal(queries[:same], keys[:same])
    reads = lambda heads: set(heads.abs().sum((0, 1)).nonzero().flatten().tolist())  # noqa: E731
    assert not reads(queries[same:]) & reads(keys[same:])
    assert torch.equal(queries @ queries.mT, torch.eye(4).expand(4, 4, 4))


def test_same_heads_are_refused_where_nothing_is_sliced():
    with pytest.raises(InvalidSpec, match="goes with 'slice', not 'orthogonal'"):
        oelm.named_method("oelm+same")
