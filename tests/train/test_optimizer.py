"""AdamW over exactly what trains."""

import pytest
import torch
from torch import nn

from oelm.spec.run import TrainSpec
from oelm.train.loop import Optimizer


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def make(model, **fields):
    keeps = fields.pop("keeps_moments", False)
    factors = fields.pop("factors", {})
    names = {name: factors.get(name, 1.0) for name, _ in model.named_parameters()}
    return Optimizer(model, TrainSpec(**fields), names, keeps_moments=keeps)


def step(model, optimizer, rate=0.1):
    optimizer.backward(model(torch.ones(2, 3)).square().mean())
    optimizer.step(rate)


def test_one_step_equals_torchs_adamw():
    mine, theirs = two_layers(), two_layers()
    optimizer = make(mine, weight_decay=0.3, grad_clip=0.01)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.3)
    for _ in range(3):
        step(mine, optimizer)
        reference.zero_grad()
        theirs(torch.ones(2, 3)).square().mean().backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
        reference.step()
    for left, right in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(left, right, atol=1e-6)


@pytest.mark.parametrize("limit", [0.0, 0.1, 0.999999, 1.0, 1.0000005, 1.000001, 2.0, 100.0, float("nan")])
def test_gradients_are_clipped_to_the_bits_of_torch_and_left_alone_within_the_limit(limit):
    """The limit is in norms of the gradient; 0 means that there is none."""
    mine, theirs = two_layers(), two_layers()
    for model in (mine, theirs):
        model(torch.ones(2, 3)).square().mean().backward()
    norm = nn.utils.get_total_norm([p.grad for p in theirs.parameters()]).item()
    if limit != limit:  # noqa: PLR0124  (a gradient that is not finite)
        mine[0].weight.grad[0, 0] = theirs[0].weight.grad[0, 0] = limit
        limit = 1.0
    optimizer = make(mine, grad_clip=limit * norm)
    nn.utils.clip_grad_norm_(theirs.parameters(), limit * norm or float("inf"))
    versions = [p.grad._version for p in mine.parameters()]
    optimizer._clip()
    for left, right in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(left.grad.nan_to_num(7.0), right.grad.nan_to_num(7.0))
    if limit in (0.0, 2.0, 100.0):
        assert versions == [p.grad._version for p in mine.parameters()]


def test_freezing_drops_moments_and_unfreezing_starts_with_new_ones():
    model = two_layers()
    optimizer = make(model)
    step(model, optimizer)
    model[0].requires_grad_(False)
    optimizer.follow_freezing()
    assert model[0].weight not in optimizer.adam.state
    before = model[0].weight.clone()
    step(model, optimizer)
    assert torch.equal(model[0].weight, before)
    model[0].requires_grad_(True)
    optimizer.follow_freezing()
    step(model, optimizer)
    assert float(optimizer.adam.state[model[0].weight]["step"]) == 1
    assert float(optimizer.adam.state[model[1].weight]["step"]) == 3


def test_resting_weights_keep_their_moments():
    model = two_layers()
    optimizer = make(model, keeps_moments=True)
    step(model, optimizer)
    model[0].requires_grad_(False)
    optimizer.follow_freezing()
    step(model, optimizer)
    assert float(optimizer.adam.state[model[0].weight]["step"]) == 1
    assert "0.weight/exp_avg" in optimizer.state()[0]


def test_multipliers_scale_each_parameters_rate():
    model = two_layers()
    start = [parameter.clone() for parameter in model.parameters()]
    optimizer = make(model, weight_decay=0.0, factors={"0.weight": 0.5, "0.bias": 0.0625})
    step(model, optimizer)
    # Adam's first step moves every entry by the rate, whatever the gradient.
    moved = [
        float((parameter - before).detach().abs().max())
        for parameter, before in zip(model.parameters(), start, strict=True)
    ]
    assert moved == pytest.approx([0.05, 0.00625, 0.1, 0.1], rel=1e-3)


def test_saved_state_continues_as_if_nothing_happened():
    model, twin = two_layers(), two_layers()
    optimizer, other = make(model), make(twin)
    for _ in range(2):
        step(model, optimizer)
        step(twin, other)
    fresh = make(twin)
    tensors, scaler = other.state()
    fresh.load_state({name: tensor.clone() for name, tensor in tensors.items()}, scaler)
    step(model, optimizer)
    step(twin, fresh)
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(left, right)
