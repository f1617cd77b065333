"""Our GPT as a plain GPT-2."""

import pytest
import torch

import oelm
from oelm.errors import NotCarriedOut, UsageError
from oelm.interop.export import as_gpt2, export
from oelm.method.repair import Repair
from oelm.models.generate import generate
from oelm.models.gpt import GPT
from oelm.spec.model import GPT_SIZES
from oelm.spec.named import METHODS

NANO = GPT_SIZES["nano"]
NOT_GPT2 = {"key_shift", "qk_norm", "key_mix", "position_bias", "position_features"}
IDS = torch.randint(0, 97, (2, 20), generator=torch.Generator().manual_seed(0))


def trained(method):
    model = GPT(NANO).eval()
    oelm.apply(model, method)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


@pytest.mark.parametrize("method", [
    *(name for name, spec in METHODS.items() if not NOT_GPT2 & set(spec.repair.active())),
    "oelm+temperature+core+diagonal+low-rank",
])  # fmt: skip
def test_the_exported_model_has_the_same_logits_whatever_the_method(method):
    model = trained(method)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Repair):
                for parameter in module.parameters():
                    parameter.uniform_(-0.2, 0.2, generator=generator)
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
    assert text == list(generate(model, IDS[0, :4].tolist(), new_tokens=12, temperature=0))


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


def test_everything_that_gpt2_does_not_have_is_told_in_one_sentence():
    words = (
        "^this model has norm='rms', the repair 'key_mix' and the repair 'position_bias', which GPT-2 does not have, so"
    )
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
    export(model, tmp_path / "gpt2", tmp_path)
    text = "Once upon a time, 12 friends' houses stood  here.\n"
    ids = AutoTokenizer.from_pretrained(tmp_path / "gpt2")(text).input_ids
    assert ids == ours.encode_batch([text])[0].tolist()
    assert AutoConfig.from_pretrained(tmp_path / "gpt2").eos_token_id == 50256
    assert GenerationConfig.from_pretrained(tmp_path / "gpt2").eos_token_id == 50256
