"""What heads look at."""

import math

import pytest
import torch

import oelm
from oelm.models.gpt import GPT, attention_summary, logit_variances
from oelm.spec.run import GPT_SIZES

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
    from oelm.models.gpt import _weights

    values = torch.eye(8).expand(1, 2, 8, 8)
    computed = attention._attend(*attention.queries_and_keys(x), values)
    assert torch.allclose(computed, _weights(attention, x), atol=1e-6)


def slow_variances(attention, x_BTD, *, source):
    """Take every logit of the module's own weights one by one, in float64; return variances over keys by head."""
    spec, length = attention.spec, x_BTD.shape[1]
    queries, keys = attention.queries_and_keys(x_BTD)
    size = attention.content_size if attention.q is not None else 0
    places = range(size) if source == "content" else range(size, queries.shape[-1])
    found = []
    for head in range(spec.num_heads):
        rows = []
        for text in range(x_BTD.shape[0]):
            for query in range(1, length):
                logits = []
                for key in range(query + 1):
                    key_head = head * spec.key_heads // spec.num_heads
                    logit = sum(
                        float(queries[text, head, query, n]) * float(keys[text, key_head, key, n]) for n in places
                    )
                    logit *= attention.logit_scale
                    if source == "position" and attention.position_bias is not None:
                        logit += float(attention.position_bias.bias_HT[head, query - key])
                    logits.append(logit)
                mean = sum(logits) / len(logits)
                rows.append(sum((logit - mean) ** 2 for logit in logits) / len(logits))
        found.append(sum(rows) / len(rows))
    return found


@pytest.mark.parametrize("method", ["baseline+features", "oelm-bias", "position-only", "oelm-fast", "uniform"])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_variances_of_logits_are_those_of_explicit_logits(method, key_heads):
    model = GPT(NANO.model_copy(update={"num_key_heads": key_heads, "positions": "rope"})).double().eval()
    oelm.apply(model, method)
    model.double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "position" in name or "bias" in name:  # repairs start at zero
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    found = logit_variances(model, IDS[:, :9])
    inputs = {}
    block = model.blocks[1]
    hook = block.attention.register_forward_hook(lambda _module, given, _output: inputs.setdefault("x", given[0]))
    with torch.no_grad():
        model.hidden(IDS[:, :9])
        hook.remove()
        for source, values in (("content", found.content), ("position", found.position)):
            assert values[1] == pytest.approx(slow_variances(block.attention, inputs["x"], source=source), rel=1e-4)


def test_content_and_position_add_up_to_what_softmax_sees():
    from oelm.models.gpt import _logits_by_source, _weights

    model = GPT(NANO).eval()
    oelm.apply(model, "oelm-freeze+features+bias")
    attention, x = model.blocks[0].attention, torch.randn(2, 8, 32)
    with torch.no_grad():
        for parameter in attention.position_features.parameters():
            parameter.add_(0.3)
        attention.position_bias.bias_HT.add_(torch.randn(attention.position_bias.bias_HT.shape))
        content, position = _logits_by_source(attention, x)
        later = torch.ones(8, 8).triu(1).bool()
        assert torch.allclose(
            (content + position).masked_fill(later, -math.inf).softmax(-1), _weights(attention, x), atol=1e-6
        )
