"""Models of unknown families, by the names of their modules."""

import pytest
import torch

import oelm
from oelm.errors import BadShape, InvalidSpec, NotCarriedOut, UnknownName
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
NAMES = {"q": "q_proj", "k": "k_proj"}
IDS = torch.arange(3, 12)[None]


def starcoder(**changes):
    config = transformers.Starcoder2Config(**{**SIZES, "num_key_value_heads": 2, **changes})
    return transformers.Starcoder2ForCausalLM(config)


def test_named_projections_are_drawn_frozen_saved_and_loaded_with_their_names(tmp_path):
    model = starcoder()
    audit = oelm.apply(model, "oelm-qk-ffn", **NAMES, v="v_proj", o="o_proj", ffn=("c_fc", "c_proj"))
    assert audit.max_departure < 1e-6
    assert {(row.role, row.layer) for row in audit.projections if row.frozen} == {
        (role, layer) for role in ("q", "k", "ffn") for layer in (0, 1)
    }
    assert {row.shape for row in audit.projections if row.role == "k"} == {(2, 8, 32)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    model(IDS).logits.square().mean().backward()
    optimizer.step()
    model.save_pretrained(tmp_path)
    back = oelm.load(tmp_path)
    assert oelm.verify_frozen(back) == oelm.verify_frozen(model)
    assert oelm.audit(back).architecture == "named"
    with torch.no_grad():
        plain = type(model).from_pretrained(tmp_path)
        assert torch.equal(plain.eval()(IDS).logits, model.eval()(IDS).logits)


def test_the_draw_is_that_of_a_row_because_only_names_and_seed_matter():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    named, known = transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM(config)
    oelm.apply(named, "oelm-freeze", **NAMES)
    oelm.apply(known, "oelm-freeze")
    assert oelm.verify_frozen(named) == oelm.verify_frozen(known)


def test_stacks_are_numbered_from_zero_and_feed_forwards_belong_to_the_layer_around_them():
    config = transformers.PegasusConfig(
        vocab_size=61, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
    )  # fmt: skip
    model = transformers.PegasusModel(config)
    oelm.apply(model, "oelm-freeze", **NAMES, ffn="fc1")
    found = {each.name: each.layer for each in architecture_of(model).projections(model)}
    assert found["decoder.layers.1.encoder_attn.q_proj"] == 1
    assert found["encoder.layers.0.self_attn.k_proj"] == 0
    assert found["decoder.layers.1.fc1"] == 1
    assert len(found) == 2 * 2 + 2 * 4 + 4


def test_each_part_of_a_model_has_the_heads_of_its_own_configuration():
    part = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 48}
    config = transformers.CLIPConfig(
        text_config={**part, "vocab_size": 61, "num_attention_heads": 2},
        vision_config={**part, "image_size": 16, "patch_size": 4, "num_attention_heads": 8},
    )
    for names in ({}, NAMES):
        audit = oelm.apply(transformers.CLIPModel(config), "oelm-freeze", **names)
        heads = {row.name.partition("_")[0]: row.shape[0] for row in audit.projections if row.role == "q"}
        assert heads == {"text": 2, "vision": 8}


WRONG = [
    ({"q": "qproj", "k": "k_proj"}, UnknownName, "Did you mean 'q_proj'"),
    ({**NAMES, "ffn": ("fc9",)}, UnknownName, "for ffn"),
    ({"q": "qkv", "k": "qkv"}, InvalidSpec, "Fused"),
    ({"q": "q_proj"}, InvalidSpec, "k: Field required"),
    ({**NAMES, "wrong": 1}, InvalidSpec, "wrong"),
    ({**NAMES, "heads": 3}, BadShape, "Give heads= and key_heads="),
    ({**NAMES, "heads": 4, "key_heads": 4}, BadShape, "4 key heads"),
    ({**NAMES, "o": "c_fc"}, BadShape, "same prefix"),
    ({"q": "input_layernorm", "k": "post_attention_layernorm"}, NotCarriedOut, "not a linear map"),
]


@pytest.mark.parametrize(("names", "error", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_wrong_names_are_refused_and_leave_the_model_untouched(names, error, words):
    model = starcoder()
    with pytest.raises(error, match=words):
        oelm.apply(model, "oelm-freeze", **names)
    assert all(parameter.requires_grad for parameter in model.parameters())
    oelm.apply(model, "oelm-freeze", **NAMES)


def test_shapes_that_contradict_the_configuration_are_refused():
    # Queries with a gate have twice the rows, which would pass for heads of twice the size.
    model = starcoder(num_key_value_heads=4, head_dim=8)
    for layer in model.model.layers:
        layer.self_attn.q_proj = torch.nn.Linear(32, 64)
    with pytest.raises(BadShape, match="not 4 query heads"):
        oelm.apply(model, "oelm-freeze", **NAMES)


def test_what_is_not_known_of_a_named_model_is_refused():
    with pytest.raises(NotCarriedOut, match="named"):
        oelm.apply(starcoder(), "oelm-bias", **NAMES)
    with pytest.raises(NotCarriedOut, match="not uniform"):
        oelm.apply(starcoder(), "uniform", **NAMES)


def test_a_type_that_cannot_wear_a_method_says_why_and_an_unknown_one_what_to_do():
    config = transformers.MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1, state_size=4)
    with pytest.raises(NotCarriedOut, match="has no attention"):
        oelm.apply(transformers.MambaModel(config), "oelm-freeze")
    with pytest.raises(UnknownName, match="q='q_proj'"):
        oelm.apply(starcoder(), "oelm-freeze")
