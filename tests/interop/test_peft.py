"""PEFT's LoRA on top of frozen models."""

import pytest
import torch

import oelm
from oelm.errors import FrozenWeightsMoved, MethodError, NotCarriedOut
from oelm.method.freeze import sha256

peft = pytest.importorskip("peft", reason="needs the extra 'peft'")
transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products on several threads wait for one another longer than they take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gpt2():
    config = transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return transformers.GPT2LMHeadModel(config), ["c_attn"]


def bert():
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    return transformers.BertForSequenceClassification(config), ["query", "key", "value"]


def with_lora(model, targets):
    config = peft.LoraConfig(r=2, target_modules=targets, fan_in_fan_out="c_attn" in targets)
    return peft.get_peft_model(model, config)


def train(model, count=5):
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.1, weight_decay=0.1)
    for _ in range(count):
        model(input_ids=torch.arange(3, 12)[None]).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("make", [gpt2, bert])
def test_lora_trains_on_top_of_a_frozen_model_and_the_hashes_hold(make):
    model, targets = make()
    oelm.apply(model, "oelm-freeze")
    hashes = oelm.verify_frozen(model)
    adapted = with_lora(model, targets)
    lora = {name: sha256(p) for name, p in adapted.named_parameters() if "lora_" in name}
    assert len(lora) == 4 * len(targets)
    train(adapted)
    assert all(sha256(p) != lora[name] for name, p in adapted.named_parameters() if "lora_" in name)
    assert oelm.verify_frozen(adapted) == oelm.verify_frozen(model) == hashes
    assert oelm.audit(adapted).frozen > oelm.audit(adapted).trainable


@pytest.mark.parametrize("make", [gpt2, bert])
@pytest.mark.parametrize("safe", [True, False])
def test_merging_adapters_keeps_the_logits_and_is_known_as_a_movement(make, safe):
    model, targets = make()
    oelm.apply(model, "oelm-freeze")
    adapted = with_lora(model, targets)
    train(adapted)
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        expected = adapted.eval()(input_ids=ids).logits
        merged = adapted.merge_and_unload(safe_merge=safe)
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-4)
    with pytest.raises(FrozenWeightsMoved):
        oelm.verify_frozen(merged)


@pytest.mark.parametrize("make", [gpt2, bert])
def test_a_model_that_carries_adapters_is_refused_and_untouched(make):
    model, targets = make()
    adapted = with_lora(model, targets)
    before = {name: (sha256(p), p.requires_grad) for name, p in adapted.named_parameters()}
    for carrier in (adapted, model):
        with pytest.raises(MethodError, match="Apply the method to the plain model first"):
            oelm.apply(carrier, "oelm-freeze")
    assert before == {name: (sha256(p), p.requires_grad) for name, p in adapted.named_parameters()}


def test_peft_finds_the_split_layers_as_it_finds_the_plain_ones():
    model, _ = gpt2()
    oelm.apply(model, "oelm-freeze")
    plain, frozen = with_lora(gpt2()[0], "all-linear"), with_lora(model, "all-linear")
    assert plain.targeted_module_names == frozen.targeted_module_names
    assert any(name.endswith("c_attn") for name in frozen.targeted_module_names)


def test_a_method_that_lets_layers_train_is_refused_below_adapters(tmp_path):
    model, targets = gpt2()
    oelm.apply(model, "oelm-partial:-1")
    adapted = with_lora(model, targets)
    arguments = transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    with pytest.raises(NotCarriedOut, match="PEFT freezes everything except its adapters"):
        transformers.Trainer(adapted, arguments, callbacks=[oelm.OelmCallback()])
    assert not any(p.requires_grad for name, p in adapted.named_parameters() if "lora_" not in name)


@pytest.mark.parametrize("make", [gpt2, bert])
@pytest.mark.parametrize("method", ["oelm+features=1+mix", "oelm-slice+features", "oelm+low-rank=2", "position-only"])
def test_adapters_train_on_repaired_models_and_merge_into_them(make, method):
    model, targets = make()
    oelm.apply(model, method)
    hashes = oelm.verify_frozen(model)
    adapted = with_lora(model, targets)
    train(adapted)
    assert oelm.verify_frozen(adapted) == hashes
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        expected = adapted.eval()(input_ids=ids).logits
        merged = adapted.merge_and_unload()
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-4)
