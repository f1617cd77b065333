"""Fused families against an unfused computation."""

import pytest
import torch
import torch.nn.functional as F

import oelm
from oelm.models.families import architecture_of

transformers = pytest.importorskip("transformers")
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
IDS = torch.arange(3, 12)[None]


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4))


def gpt_neox():
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES))


def modernbert():
    return transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(
            **SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, attention_bias=True
        )
    )


def seen_by_attention(model, fused):
    """Return, for each layer, what the fused map read and the queries, keys and values that attention got."""
    inputs, heads = [], []

    def attend(module, queries, keys, values, *rest, **options):
        heads.append({"q": queries, "k": keys, "v": values})
        return sdpa(module, queries, keys, values, *rest, **options)

    sdpa = transformers.AttentionInterface._global_mapping["sdpa"]
    transformers.AttentionInterface.register("watched", attend)
    transformers.AttentionMaskInterface.register("watched", transformers.AttentionMaskInterface._global_mapping["sdpa"])
    model.set_attn_implementation("watched")
    hooks = [
        module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        for name, module in model.named_modules()
        if name.endswith(fused)
    ]
    with torch.no_grad():
        model.eval()(IDS)
    for hook in hooks:
        hook.remove()
    return list(zip(inputs, heads, strict=True))


@pytest.mark.parametrize("method", ["baseline", "frozen-as-is", "oelm-freeze", "orthogonal-trained"])
@pytest.mark.parametrize(("make", "fused"), [(gpt2, "c_attn"), (gpt_neox, "query_key_value"), (modernbert, "Wqkv")])
def test_each_head_is_the_product_with_its_own_block(make, fused, method):
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    oelm.apply(model, method)
    projections = {(each.role, each.layer): each for each in architecture_of(model).projections(model)}
    layers = seen_by_attention(model, fused)
    assert len(layers) == 2
    for layer, (x_BTD, heads) in enumerate(layers):
        for role in ("q", "k", "v"):
            each = projections[role, layer]
            bias = _bias_rows(each).view(1, 4, 8)
            # Rotary positions leave the first token as it is, so that it can be compared in every family.
            expected_BHK = torch.einsum("bi,hki->bhk", x_BTD[:, 0], each.read()) + bias
            assert torch.allclose(heads[role][:, :, 0], expected_BHK, atol=1e-5), (role, layer)


def _bias_rows(each):
    bias = each.bias.detach()
    return bias if bias.numel() == 32 else each.fused.take_apart(bias)[each.role]


@pytest.mark.parametrize("method", ["baseline", "oelm-freeze"])
def test_torchs_packed_attention_is_the_unpacked_computation(method):
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
    )
    oelm.apply(model, method)
    x_BTD = torch.randn(2, 5, 32)
    for layer, block in enumerate(model.layers):
        heads = {}
        for each in architecture_of(model).projections(model):
            if each.layer == layer and each.role in ("q", "k", "v"):
                heads[each.role] = torch.einsum("bti,hki->bhtk", x_BTD, each.read()) + _bias_rows(each).view(1, 4, 1, 8)
        mixed = F.scaled_dot_product_attention(heads["q"], heads["k"], heads["v"]).transpose(1, 2).flatten(2)
        expected = block.self_attn.out_proj(mixed)
        found, _ = block.self_attn(x_BTD, x_BTD, x_BTD)
        assert torch.allclose(found, expected, atol=1e-5)
