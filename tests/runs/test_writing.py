"""Encoder-decoders that write answers: they learn, frozen sites stay, and right is what greedy writing gives."""

import pytest
import torch

from oelm.data.stories import question_tables
from oelm.errors import InvalidSpec
from oelm.runs.resolve import resolve
from oelm.runs.restore import load_run
from oelm.spec.method import named_method
from oelm.spec.run import ExamplesSpec, HuggingFaceSpec, RunSpec, TrainSpec
from oelm.tasks import make_task

from .conftest import carried_out

pytestmark = pytest.mark.programs


def writing(model, site=None, **train):
    method = named_method("oelm-freeze").model_copy(update={"sites": (site,)} if site else {})
    return RunSpec(
        method=method,
        model=HuggingFaceSpec(name=model, pretrained=False),
        data=ExamplesSpec(corpus="story-questions", vocab_size=400, answers="text", rows=3000),
        train=TrainSpec(
            **{"steps": 500, "batch_size": 16, "learning_rate": 4e-3, "warmup_steps": 10, "eval_tokens": 2000} | train
        ),
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("written")
    run = writing("t5-tiny", "cross")
    return directory, carried_out(run, directory)


def test_the_stories_of_the_splits_are_not_the_same_and_answers_follow_from_endings():
    tables = question_tables(0)
    assert all(len(tables[split]) > 300 for split in ("train", "val", "test"))
    row = next(row for row in tables["test"] if row["answer"].startswith("the "))
    assert row["answer"] in row["ending"]


def test_a_model_learns_to_answer_above_the_commonest_answer_and_its_cross_attention_stays_frozen(written):
    _, record = written
    _, data = resolve(record.spec)
    labels = data.splits["test"].labels
    commonest = max((labels == label).mean() for label in set(labels))
    deviation = (commonest * (1 - commonest) / len(labels)) ** 0.5
    assert record.result.test_accuracy > commonest + 3 * deviation
    assert record.result.test_f1 is None
    assert record.frozen_hashes
    assert all("EncDecAttention" in name for name in record.frozen_hashes)


def test_what_counts_as_right_is_what_greedy_writing_gives(written):
    directory, record = written
    restored = load_run(directory)
    run, data = resolve(restored.run)
    task = make_task(run, data, torch.device("cpu"))
    judged = task.measure(restored.model, "test")
    assert judged.loss == record.result.test_loss
    split, end = data.splits["test"], data.encoder.vocab_size - 1
    import numpy as np

    ids, mask, *_ = split.batch(np.arange(40), None, data.encoder.pad)
    out = restored.model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12, do_sample=False, num_beams=1)
    for row in range(40):
        tokens = out[row, 1:].tolist()
        text = data.encoder.tokenizer.decode(tokens[: tokens.index(end)] if end in tokens else tokens)
        assert (text == data.labels[split.labels[row]]) == bool(judged.losses.correct[row])


@pytest.mark.parametrize("site", ["encoder", "decoder"])
def test_bart_holds_the_site_that_is_frozen(tmp_path, site):
    record = carried_out(writing("bart-tiny", site, steps=2, warmup_steps=0), tmp_path)
    assert all(name.startswith(f"model.{site}.layers") and "self_attn" in name for name in record.frozen_hashes)
    assert len(record.frozen_hashes) == 2 * 2 * 2


def test_a_model_without_a_decoder_is_refused(tmp_path):
    with pytest.raises(InvalidSpec, match="takes an encoder-decoder"):
        carried_out(writing("bert-tiny"), tmp_path)
