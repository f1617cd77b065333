"""Position features in the head's own coordinates, on our GPT."""

import math

import pytest
import torch
import torch.nn.functional as F

import oelm
from oelm.errors import BadShape
from oelm.method.repair import PositionFeatures
from oelm.models.gpt import GPT
from oelm.spec.run import GPT_SIZES

NANO = GPT_SIZES["nano"].model_copy(update={"positions": "rope"})


def trained(model, seed=3):
    """Give features the values that training might have made of them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, PositionFeatures):
                for parameter in module.parameters():
                    parameter.normal_(0, 0.5, generator=generator)
    return model


def explicit_bias(features, length):
    """The bias of the features, head by head and distance by distance, in float64."""
    frequency_HM = features.frequencies().repeat_interleave(features.groups, 0)
    positions = torch.arange(length, dtype=torch.float64)
    angles_HTTM = (positions[:, None] - positions)[None, :, :, None] * frequency_HM[:, None, None]
    cosine, sine = (each.double()[:, None, None] for each in (features.cosine_HM, features.sine_HM))
    return (cosine * angles_HTTM.cos() + sine * angles_HTTM.sin()).sum(-1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_feature_logits_are_the_explicit_bias_at_every_distance(dtype, tolerance, key_heads):
    features = trained(PositionFeatures(4, key_heads, 8, 512)).to(dtype)
    with torch.no_grad():
        features.cosine_HM.mul_(0.2)
        features.sine_HM.mul_(0.2)
        queries, keys = features(512, 512)
        logits = queries.double() @ keys.double().repeat_interleave(features.groups, 0).mT
        assert (logits - explicit_bias(features, 512)).abs().max() < tolerance


@pytest.mark.parametrize("method", ["baseline+features", "oelm+features", "oelm-slice+features=1", "position-only"])
@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_attention_is_that_of_the_content_with_the_explicit_bias_as_a_mask(method, positions):
    model = GPT(NANO.model_copy(update={"positions": positions}))
    oelm.apply(model, method)
    attention = trained(model).double().blocks[0].attention
    x, length = torch.randn(2, 30, 32, dtype=torch.float64), 30
    with torch.no_grad():
        ours = attention(x)
        features, attention.position_features = attention.position_features, None
        content = attention.queries_and_keys(x)
        later = torch.full((length, length), -torch.inf).triu(1)
        values = attention.v(x).view(2, length, 4, 8).transpose(1, 2)
        mask = explicit_bias(features, length) + later
        scale = attention.content_size**-0.5 if attention.content_size else 1.0
        mixed = F.scaled_dot_product_attention(*content, values, attn_mask=mask, scale=scale)
        assert torch.allclose(ours, attention.o(mixed.transpose(1, 2).flatten(2)), atol=1e-12)


def test_attention_stays_one_fused_call_without_a_mask(monkeypatch):
    calls = []
    real = F.scaled_dot_product_attention

    def watched(*args, **options):
        calls.append((args[3] if len(args) > 3 else options.get("attn_mask"), options["is_causal"]))
        return real(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    model = trained(GPT(NANO))
    oelm.apply(model, "oelm-slice+features")
    model(torch.zeros(1, 8, dtype=torch.long))
    assert len(calls) == NANO.num_layers
    assert all(mask is None and is_causal for mask, is_causal in calls)


def test_features_take_the_place_of_coordinates_and_do_not_enlarge_the_head():
    model = GPT(NANO)
    oelm.apply(model, "oelm+features")
    attention = model.blocks[0].attention
    assert attention.q.weight.shape == attention.k.weight.shape == (4 * 4, 32)
    assert [each.shape[-1] for each in attention.queries_and_keys(torch.randn(1, 5, 32))] == [8, 8]
    heads = attention.q.weight.view(4, 4, 32)
    assert torch.allclose(heads @ heads.mT, torch.eye(4).expand(4, 4, 4), atol=1e-6)


def test_a_baseline_with_features_keeps_the_first_rows_of_the_plain_baseline():
    plain, model = GPT(NANO, 4), GPT(NANO, 4)
    oelm.apply(model, "baseline+features=1", seed=4)
    rows = plain.blocks[1].attention.q.weight.view(4, 8, 32)[:, :6].flatten(0, 1)
    assert torch.equal(model.blocks[1].attention.q.weight, rows)
    assert model.blocks[1].attention.q.weight.requires_grad


def test_frequencies_start_geometric_from_pi_to_one_turn_per_context():
    frequencies = PositionFeatures(4, 4, 5, 128).frequencies()[0]
    assert frequencies[0].item() == pytest.approx(math.pi)
    assert frequencies[-1].item() == pytest.approx(2 * math.pi / 128)
    ratios = frequencies[1:] / frequencies[:-1]
    assert torch.allclose(ratios, ratios[0].expand(4))


@pytest.mark.parametrize("method", ["oelm+features", "position-only"])
def test_features_go_on_past_the_context_where_nothing_else_ends_there(method):
    model = GPT(NANO)
    oelm.apply(model, method)
    trained(model).eval()
    ids = torch.randint(0, 97, (1, 3 * NANO.context))
    with torch.no_grad():
        whole, cache = model.hidden(ids), model.empty_cache()
        pieces = [model.hidden(piece, cache) for piece in ids.split([40, 1, 1, 54], dim=1)]
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=2e-5)
    with pytest.raises(BadShape, match="do not fit the context"):
        GPT(NANO.model_copy(update={"positions": "learned"})).hidden(ids)


@pytest.mark.parametrize("method", ["oelm+features=4", "oelm+features=99", "position-only+features"])
def test_features_that_do_not_fit_are_refused_and_the_model_is_untouched(method):
    model = GPT(NANO)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises((BadShape, oelm.errors.InvalidSpec), match=r"at least one must be left|is there twice"):
        oelm.apply(model, method)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_head_too_small_for_a_quarter_is_refused():
    tiny = GPT(NANO.model_copy(update={"model_dim": 8, "positions": "learned"}))
    with pytest.raises(BadShape, match="needs 2 coordinates of each head, but heads have 2"):
        oelm.apply(tiny, "oelm+features")


def test_heads_that_look_for_the_same_token_find_it_at_any_distance():
    # Layer 0 of oelm-fast without features: equal tokens have equal logits wherever they are.
    model = GPT(NANO.model_copy(update={"positions": "rope"}))
    oelm.apply(model, "oelm-fast")
    attention = model.blocks[0].attention
    word, other = torch.randn(2, 32)
    x = torch.stack([word, other, other, word, other, other, other, word])[None]
    queries, keys = (each[..., : attention.content_size] for each in attention.queries_and_keys(x))
    logits = (queries @ keys.mT)[0]
    # The key at a position is that of the token before it: what followed an earlier `word` has the logit of `word`.
    own = (word[attention.k.places] ** 2).view(4, -1).sum(-1)
    assert torch.allclose(logits[:2, 7, 1], own[:2], atol=1e-5)
    assert torch.allclose(logits[:2, 7, 4], own[:2], atol=1e-5)
    assert not torch.allclose(logits[2:, 7, 1], logits[2:, 7, 4], atol=1e-3)


def test_position_only_sees_positions_and_no_content():
    model = GPT(NANO)
    oelm.apply(model, "position-only")
    attention = trained(model).blocks[0].attention
    assert attention.q is attention.k is None
    one, two = (attention.queries_and_keys(torch.randn(1, 6, 32)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_position_only_by_a_table_is_the_softmax_of_the_table():
    model = GPT(NANO)
    oelm.apply(model, "position-only-bias")
    attention = model.blocks[0].attention
    with torch.no_grad():
        attention.position_bias.bias_HT.normal_()
        x = torch.randn(2, 9, 32)
        values = attention.v(x).view(2, 9, 4, 8).transpose(1, 2)
        mixed = attention.position_bias(9, 9).softmax(-1) @ values
        assert torch.allclose(attention(x), attention.o(mixed.transpose(1, 2).flatten(2)), atol=1e-6)
