"""Repairs of the logits."""

import torch

from oelm.method.repair import KeyShift, Temperature


def test_key_shift_reads_the_key_before_in_the_chosen_heads_only():
    keys = torch.randn(2, 4, 5, 3)
    shifted = KeyShift(0.5, 4)(keys)
    assert torch.equal(shifted[:, :2, 1:], keys[:, :2, :-1])
    assert torch.equal(shifted[:, :2, 0], keys[:, :2, 0])
    assert torch.equal(shifted[:, 2:], keys[:, 2:])


def test_a_small_share_still_shifts_one_head():
    assert KeyShift(0.01, 8).shifted == 1


def test_temperature_starts_at_one_and_scales_each_head_by_its_own_factor():
    temperature = Temperature(2)
    queries = torch.randn(1, 2, 3, 4)
    assert torch.equal(temperature(queries), queries)
    with torch.no_grad():
        temperature.log_factor_H[1] = 1.0
    assert torch.allclose(temperature(queries)[:, 1], queries[:, 1] * torch.e)
    assert torch.equal(temperature(queries)[:, 0], queries[:, 0])
