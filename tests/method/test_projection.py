"""One projection, whatever tensor hides it."""

import pytest
import torch
from torch import nn

from oelm.errors import UnusableWeight
from oelm.method.projection import Projection
from oelm.method.split import Fused


def test_reading_and_writing_are_inverse_and_see_heads_as_blocks_of_rows():
    layer = nn.Linear(6, 4, bias=True)
    projection = Projection("q", 0, "q", layer, num_heads=2)
    assert projection.shape == (2, 2, 6)
    assert torch.equal(projection.read()[1], layer.weight[2:4])
    fresh = torch.randn(2, 2, 6)
    projection.write(fresh)
    assert torch.equal(projection.read(), fresh)


def test_writing_keeps_the_weights_dtype_and_gradient_wish():
    layer = nn.Linear(6, 4, dtype=torch.bfloat16)
    Projection("q", 0, "q", layer).write(torch.ones(1, 4, 6, dtype=torch.float64))
    assert layer.weight.dtype == torch.bfloat16
    assert layer.weight.requires_grad


def test_biases_belong_to_a_projection_only_when_asked_for():
    projection = Projection("q", 0, "layer.q", nn.Linear(2, 2))
    assert [name for name, _ in projection.parameters(biases=True)] == ["layer.q.weight", "layer.q.bias"]
    assert [name for name, _ in projection.parameters(biases=False)] == ["layer.q.weight"]


def test_a_weight_on_the_meta_device_is_refused():
    with pytest.raises(UnusableWeight, match="meta device"):
        Projection("q", 0, "q", nn.Linear(2, 2, device="meta")).refuse_unusable()


def test_a_quantised_weight_is_refused():
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UnusableWeight, match="quantised"):
        Projection("q", 0, "q", layer).refuse_unusable()


def fused_projections(groups, *, transposed):
    layer = nn.Linear(6, 12)
    if transposed:
        layer.weight = nn.Parameter(layer.weight.detach().T.contiguous())
    fused = Fused((("q", 4), ("k", 4), ("v", 4)), groups=groups, transposed=transposed)
    return layer, [Projection(role, 0, f"layer.{role}", layer, 2, transposed=transposed, fused=fused) for role in "qkv"]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("split", [False, True])
def test_a_fused_role_is_read_and_written_as_if_it_stood_alone(groups, transposed, split):
    layer, (query, key, value) = fused_projections(groups, transposed=transposed)
    before = {each.role: each.read().clone() for each in (query, key, value)}
    if split:
        query.split(biases=True)
    assert all(torch.equal(each.read(), before[each.role]) for each in (query, key, value))
    fresh = torch.randn(2, 2, 6)
    key.write(fresh)
    assert torch.equal(key.read(), fresh)
    assert torch.equal(query.read(), before["q"])
    assert torch.equal(value.read(), before["v"])
    whole = layer.weight.detach().T if transposed else layer.weight.detach()
    first_key_row = 4 if groups == 1 else 2
    assert torch.equal(torch.as_tensor(whole[first_key_row]), fresh[0, 0])


def test_a_fused_role_has_no_parameters_of_its_own_before_it_is_split():
    _, (query, _, value) = fused_projections(1, transposed=False)
    assert not query.separate
    with pytest.raises(UnusableWeight, match="shares its tensor"):
        list(query.parameters(biases=True))
    query.split(biases=True)
    assert [name for name, _ in query.parameters(biases=True)] == ["layer.q.weight", "layer.q.bias"]
    assert value.separate
    query.zero()
    assert not query.read().any()
    assert value.read().any()


def test_biases_stay_whole_on_wish():
    layer, (query, *_) = fused_projections(1, transposed=False)
    query.split(biases=False)
    assert query.bias is layer.bias
    assert set(dict(layer.named_parameters())) == {"bias", "q.weight", "k.weight", "v.weight"}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_weights_of_one_byte_are_refused(dtype):
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(torch.zeros(2, 2).to(dtype), requires_grad=False)
    with pytest.raises(UnusableWeight, match="quantised"):
        Projection("q", 0, "q", layer).refuse_unusable()
