"""Reading coordinates instead of multiplying."""

import pytest
import torch
from torch import nn

from oelm.method.orthogonal import coordinate_slices
from oelm.models.linear import SlicedLinear
from oelm.spec.run import stream


@pytest.mark.parametrize("shape", [(4, 8, 32), (2, 4, 32), (4, 8, 20)], ids=["all", "some", "round the end"])
@pytest.mark.parametrize("first", [0, 8, 17])
def test_it_equals_the_dense_product_forward_and_backward(shape, first):
    heads, size, inputs = shape
    weight = coordinate_slices(heads, size, inputs, first, stream(0, "t")).flatten(0, 1).float()
    dense = nn.Linear(inputs, heads * size, bias=False)
    dense.weight = nn.Parameter(weight, requires_grad=False)
    sliced = SlicedLinear(dense)
    x = torch.randn(2, 5, inputs, requires_grad=True)
    out = torch.randn(2, 5, heads * size)
    assert torch.equal(sliced(x), dense(x))
    mine = torch.autograd.grad(sliced(x), x, out)[0]
    assert torch.allclose(mine, torch.autograd.grad(dense(x), x, out)[0], atol=1e-6)


def test_once_unfrozen_it_multiplies_by_its_weight():
    dense = nn.Linear(8, 8, bias=False)
    dense.weight = nn.Parameter(torch.eye(8), requires_grad=False)
    sliced = SlicedLinear(dense)
    sliced.weight.requires_grad_(True)
    sliced(torch.randn(2, 8)).sum().backward()
    assert sliced.weight.grad is not None


def test_a_dense_weight_is_refused():
    with pytest.raises(ValueError, match="multiples of unit vectors"):
        SlicedLinear(nn.Linear(8, 8, bias=False))


def test_once_trained_it_multiplies_by_its_weight_though_it_is_frozen_again():
    dense = nn.Linear(8, 8, bias=False)
    dense.weight = nn.Parameter(torch.eye(8), requires_grad=False)
    sliced, x = SlicedLinear(dense), torch.randn(2, 8)
    sliced.weight.requires_grad_(True)
    sliced(x).sum().backward()
    with torch.no_grad():
        sliced.weight.add_(0.1)
    sliced.weight.requires_grad_(False)
    assert torch.equal(sliced(x), x @ sliced.weight.T)
