"""Our GPT against transformers' GPT-2 and against itself."""

import pytest
import torch

import oelm
from oelm.errors import BadShape, InvalidSpec
from oelm.models.gpt import GPT
from oelm.spec.run import GPT_SIZES, GPTSpec

NANO = GPT_SIZES["nano"]
VARIANTS = {
    "plain": NANO,
    "rope": NANO.model_copy(update={"positions": "rope"}),
    "rms": NANO.model_copy(update={"norm": "rms"}),
    "grouped": NANO.model_copy(update={"num_key_heads": 2}),
    "thin": NANO.model_copy(update={"qk_head_size": 4}),
}


def some_ids(length=20, batch=3):
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(1))


def as_gpt2(model: GPT):
    """Write our weights into transformers' GPT-2: an independent implementation of the same mathematics."""
    from transformers import GPT2Config, GPT2LMHeadModel

    spec = model.spec
    config = GPT2Config(
        vocab_size=spec.vocab_size,
        n_positions=spec.context,
        n_embd=spec.model_dim,
        n_layer=spec.num_layers,
        n_head=spec.num_heads,
        n_inner=spec.hidden_dim,
        activation_function="gelu",
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        attn_implementation="eager",
    )
    theirs = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        theirs.transformer.wte.weight.copy_(model.token_embedding.weight)
        theirs.transformer.wpe.weight.copy_(model.position_embedding.weight)
        theirs.transformer.ln_f.load_state_dict(model.norm.state_dict())
        for block, hf in zip(model.blocks, theirs.transformer.h, strict=True):
            hf.ln_1.load_state_dict(block.attention_norm.state_dict())
            hf.ln_2.load_state_dict(block.ffn_norm.state_dict())
            attention = block.attention
            hf.attn.c_attn.weight.copy_(torch.cat([attention.q.weight, attention.k.weight, attention.v.weight]).T)
            hf.attn.c_proj.weight.copy_(attention.o.weight.T)
            hf.mlp.c_fc.weight.copy_(block.ffn.up.weight.T)
            hf.mlp.c_fc.bias.copy_(block.ffn.up.bias)
            hf.mlp.c_proj.weight.copy_(block.ffn.down.weight.T)
            hf.mlp.c_proj.bias.copy_(block.ffn.down.bias)
            for bias in (hf.attn.c_attn.bias, hf.attn.c_proj.bias):
                bias.zero_()
    return theirs


def test_logits_and_loss_equal_transformers_gpt2_with_the_same_weights():
    model = GPT(NANO, seed=3)
    with torch.no_grad():  # large weights, so that a wrong activation or scale cannot hide in the rounding
        for parameter in model.parameters():
            parameter.mul_(5).add_(0.01)
    theirs = as_gpt2(model)
    ids = some_ids()
    with torch.no_grad():
        ours, expected = model(ids), theirs(ids).logits
        assert torch.allclose(ours, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)
        loss = model(ids[:, :-1], ids[:, 1:])
        assert torch.allclose(loss, theirs(ids, labels=ids).loss, rtol=1e-5)


def test_medium_512_has_the_published_number_of_parameters():
    model = GPT(GPT_SIZES["medium-512"], device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == 44_896_768


@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
def test_no_token_sees_its_successors(spec):
    model = GPT(spec)
    ids = some_ids()
    changed = ids.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 97
    with torch.no_grad():
        assert torch.allclose(model(ids)[:, :12], model(changed)[:, :12], atol=1e-6)
        assert not torch.allclose(model(ids)[:, 12:], model(changed)[:, 12:], atol=1e-3)


@pytest.mark.parametrize("method", ["baseline", "oelm-shift", "uniform", "oelm-slice"])
@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
def test_a_cache_gives_the_logits_of_the_whole_text(spec, method):
    model = GPT(spec).eval()
    oelm.apply(model, method)
    ids = some_ids()
    with torch.no_grad():
        whole = model.hidden(ids)
        cache = model.empty_cache()
        parts = [model.hidden(part, cache) for part in ids.split([7, 1, 1, 5, 6], dim=1)]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


def test_rope_knows_order_without_position_embeddings():
    model = GPT(VARIANTS["rope"])
    assert model.position_embedding is None
    with torch.no_grad():
        for block in model.blocks:
            block.attention.q.weight.mul_(20)
        ids = some_ids()
        swapped = ids[:, [1, 0, *range(2, ids.shape[1])]]
        assert not torch.allclose(model(ids)[:, -1], model(swapped)[:, -1], atol=1e-5)


def test_rope_logits_depend_on_distance_alone():
    from oelm.models.gpt import rotate

    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    near = rotate(q, 5) @ rotate(k, 3).mT
    far = rotate(q, 105) @ rotate(k, 103).mT
    assert torch.allclose(near, far, atol=1e-4)
    assert not torch.allclose(near, rotate(q, 5) @ rotate(k, 4).mT, atol=1e-3)


def test_the_initial_value_of_a_parameter_does_not_depend_on_other_parameters():
    plain, thin = GPT(NANO, seed=5), GPT(VARIANTS["thin"], seed=5)
    other = dict(thin.named_parameters())
    for name, parameter in plain.named_parameters():
        if ".q." not in name and ".k." not in name:
            assert torch.equal(parameter, other[name])
    assert not torch.equal(plain.blocks[0].attention.v.weight, GPT(NANO, seed=6).blocks[0].attention.v.weight)


def test_matrices_start_with_the_published_deviation_and_the_rest_neutral():
    model = GPT(GPT_SIZES["mini"].model_copy(update={"vocab_size": 500}))
    assert float(model.blocks[1].ffn.up.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert not model.blocks[0].ffn.up.bias.any()
    assert (model.norm.weight == 1).all()


def test_dropout_acts_in_training_only():
    model = GPT(NANO.model_copy(update={"dropout": 0.5}))
    ids = some_ids()
    with torch.no_grad():
        assert not torch.equal(model.train()(ids), model(ids))
        assert torch.equal(model.eval()(ids), model(ids))


@pytest.mark.parametrize("key_heads", [None, 2])
def test_uniform_attention_drops_weights_as_all_other_attention_does(key_heads):
    torch.manual_seed(0)
    model = GPT(NANO.model_copy(update={"dropout": 0.5, "num_key_heads": key_heads}))
    oelm.apply(model, "uniform")
    attention = model.blocks[0].attention
    values = torch.randn(64, model.spec.key_heads, 16, model.spec.head_size)
    plain = attention.eval()._average(values, 16)
    dropped = torch.stack([attention.train()._average(values, 16) for _ in range(400)])
    assert torch.allclose(dropped.mean(0), plain, atol=0.6)
    # The first token sees itself alone: with its weight dropped nothing is left, else twice of it.
    first = dropped[:, :, :, 0].abs().sum(-1)
    assert (first == 0).float().mean() == pytest.approx(0.5, abs=0.02)
    assert attention._average(values, 3).shape[2] == 3, "of new tokens after a past"


def test_a_text_longer_than_the_context_is_refused():
    with pytest.raises(BadShape, match="33 tokens do not fit the context of 32"):
        GPT(NANO)(some_ids(33))


def test_a_model_without_a_vocabulary_is_refused():
    with pytest.raises(InvalidSpec, match="vocab_size"):
        GPT(GPTSpec())


def test_shifted_heads_attend_by_the_keys_of_the_tokens_before():
    model = GPT(NANO).eval()
    oelm.apply(model, "oelm-shift")
    attention = model.blocks[0].attention
    x = torch.randn(2, 6, 32)
    with torch.no_grad():
        q, k, v = (getattr(attention, role)(x).view(2, 6, 4, 8) for role in ("q", "k", "v"))
        mixed = torch.zeros(2, 6, 4, 8)
        for head in range(4):
            for t in range(6):  # token by token, as one would explain it
                keys = [k[:, max(s - 1, 0) if head < 2 else s, head] for s in range(t + 1)]
                scores = torch.stack([(q[:, t, head] * key).sum(-1) / 8**0.5 for key in keys], -1)
                mixed[:, t, head] = (scores.softmax(-1)[..., None] * v[:, : t + 1, head]).sum(1)
        assert torch.allclose(attention(x), attention.o(mixed.flatten(2)), atol=1e-5)


def test_the_initial_deviation_follows_width_and_depth_by_the_declared_rule():
    spec = GPTSpec(vocab_size=512, context=16, model_dim=128, num_layers=3, num_heads=4, initial_deviation="width")
    drawn = {name: parameter.std().item() for name, parameter in GPT(spec).named_parameters() if parameter.ndim > 1}
    narrow, added = 128**-0.5, 6**-0.5
    expected = {"q": narrow, "k": narrow, "v": narrow, "o": narrow * added, "up": narrow, "down": narrow / 2 * added}
    for name, deviation in drawn.items():
        role = name.split(".")[-2]
        assert deviation == pytest.approx(expected.get(role, narrow), rel=0.05), name


def test_a_number_is_the_deviation_of_every_matrix_and_the_usual_one_changes_nothing():
    spec = GPTSpec(vocab_size=97, context=16, model_dim=64, num_layers=2, num_heads=4)
    same, other = (GPT(spec.model_copy(update={"initial_deviation": value})) for value in (0.02, 0.04))
    for (name, one), two, three in zip(
        GPT(spec).named_parameters(), same.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(one, two), name
        if one.ndim > 1:
            assert torch.allclose(2 * one, three), name
    assert spec.model_copy(update={"initial_deviation": 0.02}).meaning() == spec.meaning()
    assert GPTSpec(initial_deviation="width").meaning() == {"initial_deviation": "width"}
