"""What heads look at."""

import math

import pytest
import torch

import oelm
from oelm.models.attention import attention_summary
from oelm.models.gpt import GPT
from oelm.spec.model import GPT_SIZES

NANO = GPT_SIZES["nano"]
IDS = torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(0))


def test_uniform_attention_has_the_entropy_and_distance_of_an_average():
    model = GPT(NANO)
    oelm.apply(model, "uniform")
    summary = attention_summary(model, IDS)
    entropy = sum(math.log(t) for t in range(1, 17)) / 16
    distance = sum((t - 1) / 2 for t in range(1, 17)) / 16
    for layer in range(2):
        assert summary.entropy[layer] == pytest.approx([entropy] * 4, abs=1e-5)
        assert summary.distance[layer] == pytest.approx([distance] * 4, abs=1e-5)


def test_a_head_made_to_look_at_one_token_has_no_entropy():
    model = GPT(NANO)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.k.weight.copy_(block.attention.q.weight.mul_(1000))
    summary = attention_summary(model, IDS)
    assert max(summary.entropy[0]) < 0.5


def test_the_summary_agrees_with_the_attention_that_is_computed():
    # With values equal to one-hot positions the output of sdpa is the attention matrix itself.
    model = GPT(NANO.model_copy(update={"num_key_heads": 2})).eval()
    oelm.apply(model, "oelm-shift")
    attention = model.blocks[0].attention
    x = torch.randn(1, 8, 32)
    from oelm.models.attention import _weights

    values = torch.eye(8).expand(1, 2, 8, 8)
    computed = attention._attend(*attention.queries_and_keys(x), values)
    assert torch.allclose(computed, _weights(attention, x), atol=1e-6)
