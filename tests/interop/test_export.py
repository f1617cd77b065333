"""Our GPT as a model of transformers with the same logits."""

import json
import subprocess
import sys

import pytest
import torch

import oelm
from oelm.errors import CheckpointError, NotCarriedOut, UsageError
from oelm.interop.export import as_gpt2, as_hugging_face, export
from oelm.method.repair import Repair
from oelm.models.gpt import GPT, generate_tokens
from oelm.spec.method import METHODS
from oelm.spec.run import GPT_SIZES

NANO = GPT_SIZES["nano"]
NOT_GPT2 = {"key_shift", "qk_norm", "key_mix", "position_bias", "position_features"}
IDS = torch.randint(0, 97, (2, 20), generator=torch.Generator().manual_seed(0))


def trained(method, **change):
    model = GPT(NANO.model_copy(update=change)).eval()
    oelm.apply(model, method)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(3)
    return model


def disturb_repairs(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Repair):
                for parameter in module.parameters():
                    parameter.uniform_(-0.2, 0.2, generator=generator)


@pytest.mark.parametrize("method", [
    *(name for name, spec in METHODS.items() if not NOT_GPT2 & set(spec.repair.active())),
    "oelm+temperature+core+diagonal+low-rank",
])  # fmt: skip
def test_the_exported_model_has_the_same_logits_whatever_the_method(method):
    model = trained(method)
    disturb_repairs(model)
    with torch.no_grad():
        ours, theirs = model(IDS), as_gpt2(model)(IDS).logits
    # Three times the weights are nine times the logits: attention is sharp, and rounding shows in it.
    assert torch.allclose(ours, theirs, atol=5e-5 * float(ours.abs().max()))


def test_transformers_loads_it_from_disk_and_generates_the_same_text(tmp_path):
    from transformers import AutoModelForCausalLM

    model = trained("oelm-freeze")
    export(model, tmp_path / "gpt2")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2")
    assert loaded.config.eos_token_id is None, "GPT-2's own would be no id of this vocabulary"
    text = loaded.generate(IDS[:1, :4], max_new_tokens=12, do_sample=False, pad_token_id=0)[0, 4:].tolist()
    assert text == list(generate_tokens(model, IDS[0, :4].tolist(), new_tokens=12, temperature=0))


@pytest.mark.parametrize(("change", "words"), [
    ({"positions": "rope"}, "positions='rope'"), ({"norm": "rms"}, "norm='rms'"),
    ({"num_key_heads": 2}, "num_key_heads"),
    ({"qk_head_size": 4}, "qk_head_size"),
])  # fmt: skip
def test_what_gpt2_cannot_do_is_refused_by_name(change, words):
    with pytest.raises(NotCarriedOut, match=words):
        as_gpt2(GPT(NANO.model_copy(update=change)))


@pytest.mark.parametrize(("part", "name"), [
    ("shift", "key_shift"), ("qk-norm", "qk_norm"), ("mix", "key_mix"), ("bias", "position_bias"),
    ("features", "position_features"),
])  # fmt: skip
def test_a_repair_that_gpt2_has_no_weights_for_is_refused_by_name(part, name):
    with pytest.raises(NotCarriedOut, match=f"the repair '{name}'"):
        as_gpt2(trained(f"oelm+core+{part}"))


def test_everything_that_gpt2_does_not_have_is_listed_in_one_sentence():
    words = "^This model has norm='rms', the repair 'key_mix', the repair 'position_bias', which GPT-2 does not"
    model = GPT(NANO.model_copy(update={"norm": "rms"}))
    oelm.apply(model, "oelm+bias+mix")
    with pytest.raises(NotCarriedOut, match=words):
        as_gpt2(model)


def test_a_folder_with_something_in_it_is_not_overwritten(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        export(trained("baseline"), tmp_path)


def test_gpt2s_own_vocabulary_goes_along(tmp_path):
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from oelm.data.tokenizer import gpt2_tokenizer

    ours = gpt2_tokenizer()
    ours.save(tmp_path)
    model = GPT(NANO.model_copy(update={"vocab_size": 50257}))
    export(model, tmp_path / "gpt2", ours)
    text = "Once upon a time, 12 friends' houses stood  here.\n"
    ids = AutoTokenizer.from_pretrained(tmp_path / "gpt2")(text).input_ids
    assert ids == ours.encode_batch([text])[0].tolist()
    assert AutoConfig.from_pretrained(tmp_path / "gpt2").eos_token_id == 50256
    assert GenerationConfig.from_pretrained(tmp_path / "gpt2").eos_token_id == 50256


ROPE, RMS, GROUPED = {"positions": "rope"}, {"norm": "rms"}, {"num_key_heads": 2}


@pytest.mark.parametrize(("change", "method", "theirs"), [
    (ROPE, "oelm-freeze", "Starcoder2ForCausalLM"),
    (ROPE | GROUPED, "oelm+query-bias+temperature", "Starcoder2ForCausalLM"),
    (ROPE | RMS, "oelm+core+diagonal+low-rank", "ArceeForCausalLM"),
    (ROPE | RMS | GROUPED, "uniform", "ArceeForCausalLM"),
    (RMS, "oelm-freeze", "OelmGPTForCausalLM"),
    (GROUPED, "baseline", "OelmGPTForCausalLM"),
    ({"qk_head_size": 4}, "baseline", "OelmGPTForCausalLM"),
    (ROPE, "oelm-fast", "OelmGPTForCausalLM"),
    ({}, "oelm+bias+mix", "OelmGPTForCausalLM"),
    (ROPE, "position-only", "OelmGPTForCausalLM"),
])  # fmt: skip
def test_what_gpt2_cannot_express_keeps_its_logits_and_its_text(change, method, theirs, tmp_path):
    from transformers import AutoModelForCausalLM

    model = trained(method, **change)
    disturb_repairs(model)
    export(model, tmp_path / "x")
    oelm.register_auto_model()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "x")
    assert type(loaded).__name__ == theirs
    with torch.no_grad():
        ours = model(IDS)
        assert torch.allclose(ours, loaded(IDS).logits, atol=5e-5 * float(ours.abs().max()))
    text = loaded.generate(IDS[:1, :4], max_new_tokens=8, do_sample=False, pad_token_id=0)[0, 4:].tolist()
    assert text == list(generate_tokens(model, IDS[0, :4].tolist(), new_tokens=8, temperature=0))


def test_transformers_alone_does_not_know_our_model_type(tmp_path):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    export(trained("oelm-fast", **ROPE), tmp_path / "x")
    assert json.loads((tmp_path / "x" / "config.json").read_text())["model_type"] not in CONFIG_MAPPING_NAMES


@pytest.mark.slow
def test_our_own_model_type_is_never_loaded_as_something_else(tmp_path):
    export(trained("oelm-fast", **ROPE), tmp_path / "x")
    code = f"from transformers import AutoModelForCausalLM as A; A.from_pretrained({str(tmp_path / 'x')!r})"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "oelm-gpt" in done.stderr


def test_our_own_model_type_has_its_method_and_its_proof(tmp_path):
    from safetensors.torch import load_file, save_file

    model = trained("oelm-fast", **ROPE)
    export(model, tmp_path / "x")
    loaded = oelm.load(tmp_path / "x")
    assert oelm.method_of(loaded) == oelm.methods()["oelm-fast"]
    assert oelm.verify_frozen(loaded) == oelm.verify_frozen(model)
    assert oelm.audit(loaded).trainable == oelm.audit(model).trainable
    file = tmp_path / "x" / "model.safetensors"
    tensors = load_file(file)
    tensors["blocks.0.attention.q.weight"] += 1
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="frozen tensors have changed"):
        oelm.load(tmp_path / "x")


def test_our_own_model_type_learns_and_refuses_padding_that_it_would_misread():
    loaded = as_hugging_face(trained("oelm+bias"))
    out = loaded(IDS, labels=IDS)
    assert out.loss.item() == pytest.approx(loaded.gpt(IDS[:, :-1], IDS[:, 1:]).item(), rel=1e-5)
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    with pytest.raises(NotCarriedOut, match="Pad on the right"):
        loaded(IDS, attention_mask=mask)


def test_our_classifier_reads_the_last_token_of_each_text(tmp_path):
    model = trained("oelm-freeze", labels=3)
    as_hugging_face(model).save_pretrained(tmp_path / "x")
    loaded = oelm.load(tmp_path / "x")
    mask = torch.ones_like(IDS)
    mask[1, 7:] = 0
    with torch.no_grad():
        assert torch.equal(loaded(IDS, attention_mask=mask).logits, model(IDS, lengths_B=torch.tensor([20, 7])))


def test_an_exported_tokenizer_knows_the_context(tiny_data, tmp_path):
    from transformers import AutoTokenizer

    from oelm.data.tokenizer import load_tokenizer

    export(GPT(NANO.model_copy(update={"vocab_size": 300})), tmp_path / "x", load_tokenizer(tiny_data))
    assert AutoTokenizer.from_pretrained(tmp_path / "x").model_max_length == NANO.context
    assert json.loads((tmp_path / "x" / "config.json").read_text())["eos_token_id"] == 299
