"""The model and the tokenizer of a run, whatever has become of its data."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import oelm
from oelm.cli import dispatch
from oelm.data.prepare import prepare
from oelm.data.tokenizer import load_tokenizer
from oelm.errors import BadData, UsageError
from oelm.files import parse_checked
from oelm.record.folder import RunFolder
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.runs.restore import export_run, load_run, predict_texts, read_texts
from oelm.spec.run import DataSpec, ExamplesSpec, GPTSpec, HuggingFaceSpec, RunSpec, TrainSpec


@pytest.fixture(scope="module")
def language_run(tiny_run, tiny_data, tmp_path_factory):
    """Return a finished run and the folder of its data, which tests may replace."""
    folder = tmp_path_factory.mktemp("language")
    shutil.copytree(tiny_data, folder / "data")
    run = tiny_run("oelm-freeze", steps=4)
    run = run.model_copy(update={"data": run.data.model_copy(update={"directory": folder / "data"})})
    execute(*resolve(run), folder / "run", quiet=True)
    return folder / "run", folder / "data"


def labelled_run(folder, source, model, **data):
    run = RunSpec(
        arm="oelm-freeze",
        method=oelm.named_method("oelm-freeze"),
        model=model,
        data=ExamplesSpec(corpus="mine", texts=("sentence",), label="label", source=source, vocab_size=300, **data),
        train=TrainSpec(steps=20, batch_size=16, learning_rate=3e-3, warmup_steps=2, eval_every=20),
    )
    return execute(*resolve(run), folder, quiet=True)


@pytest.fixture(scope="module")
def encoder_run(reviews, tmp_path_factory):
    """Return a fine-tuned encoder whose data are gone."""
    folder = tmp_path_factory.mktemp("encoder")
    shutil.copytree(reviews, folder / "reviews")
    record = labelled_run(folder / "run", folder / "reviews", HuggingFaceSpec(name="bert-tiny", pretrained=False))
    (folder / "reviews").rename(folder / "moved")
    return folder / "run", folder / "moved", record


def test_a_run_carries_its_own_tokenizer(language_run, tiny_data):
    run, _ = language_run
    restored = load_run(run)
    assert restored.tokenizer() == load_tokenizer(tiny_data)
    assert restored.record.data.tokenizer == load_tokenizer(tiny_data).sha256


def test_other_data_under_the_same_name_do_not_change_what_a_run_writes(language_run, capfd, tmp_path):
    run, data = language_run
    words = ["generate", str(run), "--prompt", "Tom", "--tokens", "6", "--temperature", "0"]
    assert dispatch(words) == 0
    text = capfd.readouterr().out
    shutil.move(data, tmp_path / "aside")
    try:
        prepare(DataSpec(corpus="stories", vocab_size=300, tokens=9_000, seed=5), data)
        assert load_tokenizer(data).sha256 != load_run(run).tokenizer().sha256
        assert dispatch(words) == 0
        assert capfd.readouterr().out == text
        assert dispatch(["generate", str(run), "--data", str(data)]) == 2
        assert "another vocabulary" in capfd.readouterr().err
        assert dispatch(["evaluate", str(run), "--data", str(data)]) == 2
        assert "another vocabulary" in capfd.readouterr().err
    finally:
        shutil.rmtree(data)
        shutil.move(tmp_path / "aside", data)


def test_a_run_of_an_earlier_version_uses_its_data_only_if_they_are_unchanged(language_run, tmp_path):
    run, data = language_run
    old = tmp_path / "old"
    shutil.copytree(run, old)
    shutil.rmtree(old / "tokenizer")
    plain = parse_checked((old / "record.json").read_bytes())
    del plain["data"]["tokenizer"]
    (old / "record.json").write_text(json.dumps(plain))
    assert load_run(old).tokenizer() == load_tokenizer(data)
    shutil.move(data, tmp_path / "aside")
    try:
        with pytest.raises(BadData, match="tokenizer of this run is not known"):
            load_run(old).tokenizer()
        prepare(DataSpec(corpus="stories", vocab_size=300, tokens=9_000, seed=5), data)
        with pytest.raises(BadData, match="are not those of the run"):
            load_run(old).tokenizer()
    finally:
        shutil.rmtree(data, ignore_errors=True)
        shutil.move(tmp_path / "aside", data)


def test_a_tokenizer_that_was_replaced_in_the_run_folder_is_refused(language_run, tmp_path):
    run, _ = language_run
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    prepare(DataSpec(corpus="stories", vocab_size=300, tokens=9_000, seed=5), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "tokenizer.json", copy / "tokenizer" / "tokenizer.json")
    with pytest.raises(BadData, match="is not the one that the run was trained with"):
        load_run(copy).tokenizer()


def test_an_exported_language_run_reads_text_as_the_run_did(language_run, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    restored = load_run(language_run[0])
    export_run(restored, tmp_path / "x")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "x")
    ids = tokenizer("Tom went to the park.", return_tensors="pt").input_ids
    assert ids[0].tolist() == restored.tokenizer().encode_batch(["Tom went to the park."])[0].tolist()
    assert tokenizer.model_max_length == 32
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "x")(ids).logits
        assert torch.allclose(theirs, restored.gpt(ids), atol=1e-5)
    card = (tmp_path / "x" / "README.md").read_text()
    for digest in restored.record.frozen_hashes.values():
        assert digest in card
    assert f"{restored.record.result.test_loss:.4f}" in card


def test_a_fine_tuned_run_predicts_without_its_data(encoder_run):
    run, moved, record = encoder_run
    restored = load_run(run)
    found = predict_texts(restored, read_texts(restored, moved / "dev.tsv"))
    wanted = [line.split("\t")[1] for line in (moved / "dev.tsv").read_text().splitlines()[1:]]
    right = sum(each.label == label for each, label in zip(found, wanted, strict=True)) / len(wanted)
    assert right == pytest.approx(record.result.test_accuracy)
    assert all(sum(each.probabilities.values()) == pytest.approx(1, abs=1e-5) for each in found)
    assert oelm.predict(run, ["good fine warm"])[0].texts == ("good fine warm",)


def test_predict_refuses_what_it_cannot_read(encoder_run, language_run, capfd):
    with pytest.raises(UsageError, match="reads 1 text per row"):
        predict_texts(load_run(encoder_run[0]), [("one", "two")])
    with pytest.raises(UsageError, match="predicts no labels"):
        predict_texts(load_run(language_run[0]), [("one",)])
    assert dispatch(["predict", str(encoder_run[0])]) == 2
    assert "either with --text" in capfd.readouterr().err
    assert dispatch(["predict", str(encoder_run[0]), "--text", "good", "--text", "bad"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 2


def test_an_exported_classifier_gives_the_same_answers_in_plain_transformers(encoder_run, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    restored = load_run(encoder_run[0])
    how = export_run(restored, tmp_path / "x")
    assert how == "transformers.AutoModelForSequenceClassification.from_pretrained('x')"
    texts = ["good fine", "awful cold dull bad", "warm"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "x")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "x")
    with torch.no_grad():
        shares = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.softmax(1)
    for row, ours in zip(shares, predict_texts(restored, [(text,) for text in texts]), strict=True):
        assert model.config.id2label[int(row.argmax())] == ours.label
        assert row.tolist() == pytest.approx(list(ours.probabilities.values()), abs=1e-5)
    assert tokenizer.model_max_length == 128
    again = oelm.load(tmp_path / "x")
    assert oelm.verify_frozen(again) == oelm.verify_frozen(restored.model)


def test_every_kind_of_run_loads_and_exports(reviews, tmp_path):
    own = GPTSpec(context=32, model_dim=32, num_layers=2, num_heads=4, norm="rms")
    for name, spec, options in (("gpt", own, {"max_length": 32}), ("t5", _t5(), {"answers": "text"})):
        labelled_run(tmp_path / name, reviews, spec, **options)
        model = oelm.load(tmp_path / name)
        assert oelm.method_of(model) == oelm.named_method("oelm-freeze")
        oelm.verify_frozen(model)
        assert oelm.predict(tmp_path / name, ["good fine warm"])[0].label is not None
        export_run(load_run(tmp_path / name), tmp_path / f"{name}-hf")
        again = oelm.load(tmp_path / f"{name}-hf")
        assert oelm.verify_frozen(again) == oelm.verify_frozen(model)


def _t5():
    return HuggingFaceSpec(name="t5-tiny", pretrained=False)


def test_the_files_of_a_tokenizer_are_written_once_and_again_without_harm(tmp_path):
    folder = RunFolder(tmp_path)
    for _ in range(2):
        folder.write_tokenizer({"tokenizer.json": b"{}"})
    assert [path.name for path in folder.tokenizer.iterdir()] == ["tokenizer.json"]
