"""One projection, whatever tensor hides it."""

import pytest
import torch
from torch import nn

from oelm.errors import UnusableWeight
from oelm.method.projection import Projection


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
