"""Fine-tuning runs: what they leave, what they refuse, and that nothing stops them for good."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from oelm.errors import BadData, InvalidSpec, UsageError
from oelm.record.folder import read_record
from oelm.runs.resolve import resolve
from oelm.runs.restore import load_run
from oelm.spec.run import HuggingFaceSpec, fingerprint, undo_resolve
from oelm.tasks import make_task
from oelm.tasks.classification import macro_f1

from .conftest import TINY_GPT, carried_out
from .test_run import assert_same_run, kill_campaign

TINY_BERT = HuggingFaceSpec(name="bert-tiny", pretrained=False)
TINY_GPT2 = HuggingFaceSpec(name="gpt2-tiny", pretrained=False)


@pytest.fixture(scope="module")
def complete(reviewing, tmp_path_factory):
    directory = tmp_path_factory.mktemp("complete")
    run = reviewing("oelm-freeze", TINY_BERT, learning_rate=1e-3)
    return run, directory, carried_out(run, directory)


def test_a_run_learns_and_leaves_accuracy_scores_and_what_is_right_row_by_row(complete):
    _, directory, record = complete
    assert record == read_record(directory)
    assert record.step == 4 * 10
    result = record.result
    assert result.test_accuracy > 0.8
    assert 0 < result.test_f1 <= 1
    assert result.best_val_accuracy >= result.val_accuracy - 1e-9
    right = json.loads((directory / "test_losses.json").read_text())
    assert right["kind"] == "examples"
    assert np.mean(right["correct"]) == result.test_accuracy
    assert record.data.rows == {"train": 160, "val": 40, "test": 40}
    assert 0.5 <= record.data.guess < 1
    assert len(record.frozen_hashes) == 2 * 2 * 2
    assert "Accuracy: " in (directory / "training.log").read_text()
    assert "label positive, predicted" in (directory / "samples.txt").read_text()


def test_a_restored_classifier_is_the_trained_one(complete):
    _, directory, record = complete
    restored = load_run(directory)
    task = make_task(*resolve(restored.run), torch.device("cpu"))
    assert task.measure(restored.model, "test").loss == record.result.test_loss
    with pytest.raises(UsageError, match="classifier of 'sst2'"):
        _ = restored.gpt


def test_a_restored_model_has_the_trained_rows_of_its_split_tensors(reviewing, tmp_path):
    record = carried_out(reviewing("oelm-freeze", TINY_GPT2, learning_rate=1e-3), tmp_path)
    restored = load_run(tmp_path)
    task = make_task(*resolve(restored.run), torch.device("cpu"))
    assert task.measure(restored.model, "test").loss == record.result.test_loss


def test_binding_fills_in_steps_and_checksum_and_declaring_takes_them_out_again(reviewing):
    run = reviewing(epochs=1.5)
    made, _ = resolve(run)
    assert made.train.steps == 15
    assert made.data.checksum
    assert undo_resolve(made) == run
    assert fingerprint(made) != fingerprint(run)


@pytest.mark.programs
@pytest.mark.parametrize("model", [TINY_GPT, TINY_BERT, TINY_GPT2], ids=["gpt", "bert", "gpt2, split"])
def test_a_run_killed_at_random_moments_ends_with_the_bits_of_an_undisturbed_one(reviewing, tmp_path, model):
    kill_campaign(reviewing("oelm-progressive:0.2-0.8", model, epochs=5), tmp_path, kills=2, seed=1)


def test_accumulated_parts_make_the_same_step_as_the_whole_batch(reviewing, tmp_path):
    model = TINY_GPT.model_copy(update={"dropout": 0.0})
    records = [
        carried_out(reviewing(model=model, epochs=1, accumulation=parts), tmp_path / str(parts)) for parts in (1, 4)
    ]
    assert records[0].result.val_loss == pytest.approx(records[1].result.val_loss, abs=1e-5)


def test_two_runs_from_scratch_with_one_seed_are_one_run_and_another_seed_another(reviewing, tmp_path):
    run = reviewing(model=TINY_BERT, epochs=1)
    for name in ("one", "two"):
        carried_out(run, tmp_path / name)
    assert_same_run(tmp_path / "one", tmp_path / "two")
    other = carried_out(run.model_copy(update={"seed": 1}), tmp_path / "other")
    assert other.result.val_loss != read_record(tmp_path / "one").result.val_loss


@pytest.mark.parametrize("name", ["t5-tiny", "bart-tiny"])
def test_an_encoder_decoder_from_scratch_chooses_among_labels_and_comes_back_as_it_was(reviewing, tmp_path, name):
    model = HuggingFaceSpec(name=name, pretrained=False)
    record = carried_out(reviewing("oelm-freeze", model, epochs=2, learning_rate=1e-3), tmp_path)
    restored = load_run(tmp_path)
    task = make_task(*resolve(restored.run), torch.device("cpu"))
    assert task.measure(restored.model, "test").loss == record.result.test_loss


def test_pooler_and_classifier_train_under_every_method_and_the_audit_says_so(complete):
    import oelm

    audit = oelm.audit(load_run(complete[1]).model)
    assert audit.never_frozen["classifier"] == 2 * 128 + 2
    assert audit.never_frozen["bert.pooler"] == 128 * 128 + 128


def test_a_head_of_another_size_than_the_labels_is_refused_before_training(reviewing, tmp_path):
    model = TINY_BERT.model_copy(update={"labels": 3})
    with pytest.raises(InvalidSpec, match="2 labels \\(negative, positive\\)"):
        carried_out(reviewing(model=model), tmp_path)
    assert read_record(tmp_path).step == 0


def test_changed_rows_are_other_data(reviewing, reviews, tmp_path):
    run, _ = resolve(reviewing())
    for file in reviews.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("one more\t1\n")
    elsewhere = run.model_copy(update={"data": run.data.model_copy(update={"source": tmp_path})})
    with pytest.raises(BadData, match="declared for data with checksum"):
        resolve(elsewhere)


@settings(deadline=None)  # the first call imports a lot
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_macro_f1_is_scikit_learns(pairs):
    predicted, labels = (np.array(each) for each in zip(*pairs, strict=True))
    assert macro_f1(predicted, labels) == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0))
