"""The GELU that keeps one tensor."""

import pytest
import torch
import torch.nn.functional as F

from oelm.models.linear import gelu_linear


def tensors():
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 8), (4, 8), (4,))
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


def test_value_and_gradients_equal_the_plain_composition():
    before, weight, bias = tensors()
    out = torch.randn(2, 3, 4, dtype=torch.float64)
    plain = F.linear(F.gelu(before), weight, bias)
    assert torch.equal(gelu_linear(before, weight, bias), plain)
    mine = torch.autograd.grad(gelu_linear(before, weight, bias), (before, weight, bias), out)
    for left, right in zip(mine, torch.autograd.grad(plain, (before, weight, bias), out), strict=True):
        assert torch.allclose(left, right, rtol=1e-12)


def test_the_gradient_is_that_of_finite_differences():
    assert torch.autograd.gradcheck(gelu_linear, tuple(tensors()))


@pytest.mark.parametrize("frozen", [1, 2])
def test_what_is_frozen_gets_no_gradient(frozen):
    inputs = tensors()
    inputs[frozen].requires_grad_(False)
    gelu_linear(*inputs).sum().backward()
    assert [tensor.grad is None for tensor in inputs] == [number == frozen for number in range(3)]


def test_the_activation_after_the_gelu_is_not_kept():
    before, weight, bias = tensors()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda _: None):
        gelu_linear(before, weight, bias)
    assert sorted(kept) == sorted([before.numel(), weight.numel()])
