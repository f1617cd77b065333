"""The answers of a probe are counted at their positions, for any size of window."""

import numpy as np
import pytest
import torch

from oelm.data.prepare import prepare
from oelm.data.probes import LENGTH, answers
from oelm.data.tokens import evaluation_batches, open_tokens
from oelm.models.gpt import GPT
from oelm.record.folder import TestLossesRecord, read_metrics, read_test_losses
from oelm.spec.run import DataSpec, GPTSpec, ProbeSpec
from oelm.tasks.probe import Answers

from .conftest import carried_out

PROBE = ProbeSpec(kind="recall", size=4)
SMALL = GPTSpec(context=128, model_dim=16, num_layers=2, num_heads=2)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return open_tokens(prepare(DataSpec(corpus="recall:4", tokens=20_000), tmp_path_factory.mktemp("data") / "recall"))


def counted(model, ids, context):
    kept = Answers(model, PROBE)
    with torch.no_grad():
        for inputs, targets in evaluation_batches(ids, context=context, batch_size=3):
            kept(inputs, targets)
    return kept.record()


class Knows(torch.nn.Module):
    """Replaces the body of a GPT: at every position, the embedding of the next token in the file."""

    def __init__(self, ids, wrong):
        super().__init__()
        self.token_embedding = torch.nn.Embedding.from_pretrained(torch.eye(257))
        next_ids = np.append(ids[1:], 0).astype(np.int64)
        next_ids[[place - 1 for place in wrong]] = 256
        self.next_ids, self.at = next_ids, 0

    def hidden(self, ids_BT):
        count = ids_BT.numel()
        found = torch.from_numpy(self.next_ids[self.at : self.at + count]).view(ids_BT.shape)
        self.at += count
        return 9 * self.token_embedding(found)


@pytest.mark.parametrize("context", [128, 50])
def test_a_wrong_answer_is_held_against_its_document_and_other_tokens_are_not_looked_at(tokens, context):
    ids = np.asarray(tokens.split("val"))[: 3 * LENGTH]
    first = answers(PROBE)[0]
    wrong = [
        first,
        LENGTH + first + 1,
        2 * LENGTH + first,
        2 * LENGTH + first + 2,
    ]  # the second is a key, not an answer
    each = len(answers(PROBE))
    expected = TestLossesRecord(kind="answers", correct=(each - 1, each, each - 2), tokens=(each,) * 3)
    assert counted(Knows(ids, wrong), ids, context) == expected


def test_the_loss_is_that_of_the_model_itself_to_the_bit(tokens):
    model = GPT(SMALL.model_copy(update={"vocab_size": 257}), seed=0).eval()
    inputs, targets = next(evaluation_batches(tokens.split("val"), context=128, batch_size=2))
    with torch.no_grad():
        assert Answers(model, PROBE)(inputs, targets).item() == model(inputs, targets).item()


def test_a_run_on_a_probe_is_recorded_by_its_answers_at_every_look_and_at_the_end(tiny_run, tokens, tmp_path):
    run = tiny_run("uniform", model=SMALL, steps=10)
    data = DataSpec(corpus="recall:4", tokens=20_000, directory=tokens.directory)
    record = carried_out(run.model_copy(update={"data": data}), tmp_path)
    result, losses = record.result, read_test_losses(tmp_path)
    assert 0 <= result.test_accuracy == losses.share < 0.6
    assert len(losses.correct) == record.data.tokens["test"] // LENGTH
    assert result.test_perplexity is None
    assert 0 < record.data.floor["test"] < result.test_loss
    looks = [metric for metric in read_metrics(tmp_path) if metric.kind == "val"]
    assert all(metric.accuracy is not None for metric in looks)
    assert "[...]" in (tmp_path / "samples.txt").read_text()
