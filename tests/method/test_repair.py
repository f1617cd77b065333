"""Repairs of the logits."""

import pytest
import torch

from oelm.method.repair import (
    FoldedRepair,
    KeyMix,
    KeyShift,
    PositionBias,
    PositionFeatures,
    QKNorm,
    Temperature,
    append_features,
    num_repair_parameters,
)


def test_key_shift_reads_the_key_before_in_the_chosen_heads_only():
    keys = torch.randn(2, 4, 5, 3)
    shifted = KeyShift(0.5, 4)(keys)
    assert torch.equal(shifted[:, :2, 1:], keys[:, :2, :-1])
    assert torch.equal(shifted[:, :2, 0], keys[:, :2, 0])
    assert torch.equal(shifted[:, 2:], keys[:, 2:])


@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_gradient_of_a_shift_is_that_of_finite_differences(length):
    keys = torch.randn(2, 3, length, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(KeyShift(0.6, 3), (keys,))


def test_appended_features_let_attention_write_what_the_output_projection_reads():
    content = torch.randn(2, 5, 3, 4).transpose(1, 2)  # heads that were cut from (B, T, H K)
    queries = append_features(content, torch.randn(3, 5, 4))
    mixed = torch.nn.functional.scaled_dot_product_attention(queries, queries, queries, is_causal=True)
    assert mixed.transpose(1, 2).is_contiguous()


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


def test_a_mixture_runs_from_the_key_itself_to_the_one_before_and_beyond():
    mix, keys = KeyMix(3), torch.randn(2, 3, 5, 4)
    assert torch.equal(mix(keys), keys)
    with torch.no_grad():
        mix.share_H.copy_(torch.tensor([0.0, 1.0, -0.5]))
    mixed, shifted = mix(keys), KeyShift(1.0, 3)(keys)
    assert torch.equal(mixed[:, 0], keys[:, 0])
    assert torch.allclose(mixed[:, 1], shifted[:, 1])
    assert torch.allclose(mixed[:, 2], 1.5 * keys[:, 2] - 0.5 * shifted[:, 2], atol=1e-6)


def test_a_norm_drops_the_scale_and_keeps_the_direction():
    x = torch.randn(1, 2, 3, 16)
    normed = QKNorm()(x)
    assert torch.allclose(normed.norm(dim=-1), torch.full((1, 2, 3), 4.0), atol=1e-4)
    assert torch.allclose(QKNorm()(100 * x), normed, atol=1e-4)
    assert torch.allclose(torch.cosine_similarity(normed, x, dim=-1), torch.ones(1, 2, 3))
    assert not QKNorm()(torch.zeros(1, 1, 1, 4)).isnan().any()


def test_a_bias_is_read_by_distance_and_hides_successors_for_any_number_of_new_tokens():
    bias = PositionBias(2, 8)
    with torch.no_grad():
        bias.bias_HT.copy_(torch.randn(2, 8))
    for new, seen in [(1, 1), (5, 5), (1, 8), (3, 7), (8, 8)]:
        found = bias(new, seen)
        assert found.shape == (2, new, seen)
        for row in range(new):
            here = seen - new + row
            for there in range(seen):
                expected = bias.bias_HT[:, here - there] if there <= here else torch.full((2,), -torch.inf)
                assert torch.equal(found[:, row, there], expected)


def test_a_fold_acts_on_the_weight_as_its_parts_would_on_the_input():
    weight, x = torch.randn(6, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    fold = FoldedRepair(2, weight, core=True, diagonal=True, rank=2).double()
    assert torch.equal(fold(weight), weight)
    with torch.no_grad():
        for parameter in fold.parameters():
            parameter.normal_()
    scaled = x * (1 + fold.diagonal_I)
    projected = (weight @ scaled + fold.outer_CR @ (fold.inner_RI @ scaled)).view(2, 3)
    expected = projected + torch.einsum("hjk,hk->hj", fold.core_HKK, projected)
    assert torch.allclose(fold(weight) @ x, expected.flatten())
    assert num_repair_parameters(fold) == 2 * 9 + 5 + 2 * (6 + 5)


@pytest.mark.parametrize(("key_heads", "new"), [(4, 6), (2, 6), (4, 2), (2, 3)])
def test_the_gradients_of_features_are_those_of_finite_differences(key_heads, new):
    features = PositionFeatures(4, key_heads, 3, 16).double()
    names = [name for name, _ in features.named_parameters()]
    values = [torch.randn_like(parameter).mul_(0.3).requires_grad_() for parameter in features.parameters()]

    def both(*parameters):
        return torch.func.functional_call(features, dict(zip(names, parameters, strict=True)), (new, 6, 0.7))

    assert torch.autograd.gradcheck(both, values)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_gradient_of_appended_features_is_summed_over_the_batch(batch):
    content = torch.randn(batch, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    features = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(append_features, (content, features))
