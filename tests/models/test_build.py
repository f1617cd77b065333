"""Models from their specs."""

import json

import pytest
import torch

import oelm
from oelm.errors import BadData, InvalidSpec, UnknownName
from oelm.models.build import CONFIGS, build, parse_model_name
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT
from oelm.spec.run import GPTSpec, HuggingFaceSpec


def test_our_sizes_are_built_without_transformers_and_get_a_vocabulary():
    assert isinstance(build(parse_model_name("nano")), GPT)
    assert parse_model_name("mini").vocab_size == 50257


@pytest.mark.parametrize("name", CONFIGS)
def test_every_named_configuration_is_of_a_known_family(name):
    transformers = pytest.importorskip("transformers")
    named = CONFIGS[name]
    config = getattr(transformers, named.config)(**named.fields)
    with torch.device("meta"):
        model = getattr(transformers, named.head).from_config(config)
    projections = architecture_of(model).projections(model)
    assert {each.role for each in projections} == {"q", "k", "v", "o", "ffn"}
    assert all(heads * size <= 4 * width for heads, size, width in (each.shape for each in projections))


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("bert-base", 109_514_298),
        ("gpt2", 124_439_808),
        ("roberta-base", 124_697_433),
        ("t5-small", 60_506_624),
        ("bart-base", 139_420_416),
        ("distilbert", 66_985_530),
        ("vit-base", 85_800_194),
        ("pythia-70m", 70_426_624),
        ("opt-125m", 125_239_296),
        ("modernbert-base", 149_655_232),
    ],
)
def test_named_configurations_have_the_published_sizes(name, total):
    transformers = pytest.importorskip("transformers")
    named = CONFIGS[name]
    with torch.device("meta"):
        model = getattr(transformers, named.head).from_config(getattr(transformers, named.config)(**named.fields))
    assert sum(parameter.numel() for parameter in model.parameters()) == total


def test_the_seed_decides_the_draw_and_the_global_generator_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    spec = HuggingFaceSpec(name="bert-tiny", labels=3, pretrained=False)
    one, two, three = build(spec, seed=4), build(spec, seed=4), build(spec, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    weights = [model.bert.encoder.layer[0].attention.self.query.weight for model in (one, two, three)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert one.classifier.out_features == 3


def test_a_saved_directory_is_read_with_its_head_or_with_a_new_one(tmp_path):
    model = build(HuggingFaceSpec(name="bert-tiny", pretrained=False))
    model.save_pretrained(tmp_path)
    back = build(HuggingFaceSpec(name=str(tmp_path)))
    assert type(back) is type(model)
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in model.state_dict().items())
    labelled = build(HuggingFaceSpec(name=str(tmp_path), labels=5))
    assert labelled.classifier.out_features == 5
    fresh = build(HuggingFaceSpec(name=str(tmp_path), pretrained=False), seed=9)
    assert not torch.equal(fresh.bert.embeddings.word_embeddings.weight, model.bert.embeddings.word_embeddings.weight)


@pytest.mark.parametrize("pretrained", [True, False])
def test_weights_are_float32_whatever_they_are_stored_in(tmp_path, pretrained):
    build(HuggingFaceSpec(name="bert-tiny", pretrained=False)).half().save_pretrained(tmp_path)
    model = build(HuggingFaceSpec(name=str(tmp_path), labels=2, pretrained=pretrained))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_saved_image_model_which_has_no_vocabulary_is_read_and_keeps_its_labels(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, num_labels=3
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    assert build(HuggingFaceSpec(name=str(tmp_path))).classifier.out_features == 3
    with pytest.raises(InvalidSpec, match="a classifier with 3 labels"):
        build(HuggingFaceSpec(name=str(tmp_path), labels=5))


def test_a_model_that_counts_positions_from_its_padding_takes_no_trained_vocabulary():
    with pytest.raises(InvalidSpec, match="counts positions from the number of its padding token"):
        build(HuggingFaceSpec(name="roberta-base", pretrained=False, labels=2), vocab_size=300)


def test_a_saved_model_whose_repairs_would_be_lost_is_refused(tmp_path):
    model = build(HuggingFaceSpec(name="bert-tiny", pretrained=False))
    oelm.apply(model, "baseline-shift")
    model.save_pretrained(tmp_path)
    with pytest.raises(InvalidSpec, match=r"key_shift.*oelm\.load"):
        build(HuggingFaceSpec(name=str(tmp_path)))


@pytest.mark.parametrize("entry", ["x", {"method": {"repair": {"of a later version": 1}}}])
def test_an_entry_that_cannot_be_read_is_refused_in_words(tmp_path, entry):
    build(HuggingFaceSpec(name="bert-tiny", pretrained=False)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"oelm": entry}))
    with pytest.raises(BadData, match="'oelm' entry"):
        build(HuggingFaceSpec(name=str(tmp_path)))


def test_a_saved_model_that_was_only_frozen_is_built(tmp_path):
    model = build(HuggingFaceSpec(name="bert-tiny", pretrained=False))
    oelm.apply(model, "oelm-freeze")
    model.save_pretrained(tmp_path)
    assert build(HuggingFaceSpec(name=str(tmp_path))) is not None


def test_weights_of_a_configuration_that_has_none_are_refused():
    with pytest.raises(InvalidSpec, match="google-bert/bert-base-uncased"):
        build(HuggingFaceSpec(name="bert-base"))


def test_what_cannot_be_read_is_refused_in_words(tmp_path):
    with pytest.raises(BadData, match="could not be read"):
        build(HuggingFaceSpec(name=str(tmp_path)))
    build(HuggingFaceSpec(name="bert-tiny", pretrained=False)).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])  # a download that broke off
    with pytest.raises(BadData, match="could not be read"):
        build(HuggingFaceSpec(name=str(tmp_path)))
    with pytest.raises(UnknownName, match="Did you mean 'bert-base'"):
        parse_model_name("bert-bas")
    assert parse_model_name("nano", labels=2).labels == 2
    assert isinstance(parse_model_name("medium-512"), GPTSpec)
