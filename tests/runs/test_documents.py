from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oelm.data.tokens import open_tokens
from oelm.models.gpt import GPT
from oelm.record.folder import read_test_losses
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.spec.run import GPT_SIZES
from oelm.tasks.language import DocumentLosses, LanguageTask, by_document


def test_losses_are_summed_by_document_and_the_end_belongs_to_the_one_it_ends() -> None:
    tokens = np.array([5, 6, 0, 7, 0, 8, 9], dtype=np.uint16)
    found = by_document(np.array([1, 2, 4, 8, 16, 32], dtype=np.float32), tokens, end_of_text=0)
    assert (found.nats, found.tokens) == ((3.0, 12.0, 48.0), (2, 2, 2))


def test_the_mean_is_that_of_the_model_itself_to_the_bit() -> None:
    model = GPT(GPT_SIZES["nano"], seed=0).eval()
    ids = torch.randint(0, 97, (3, 33), generator=torch.Generator().manual_seed(0))
    kept = DocumentLosses(model, LanguageTask._token_losses)
    with torch.no_grad():
        assert kept(ids[:, :-1], ids[:, 1:]).item() == model(ids[:, :-1], ids[:, 1:]).item()
    assert not kept.training
    assert kept.kept[0].shape == (3 * 32,)


def test_a_run_leaves_its_losses_by_document_and_they_add_up_to_its_figure(tiny_run, tmp_path) -> None:
    run, tokens = resolve(tiny_run("oelm-freeze", steps=4))
    record = execute(run, tokens, tmp_path / "run", quiet=True)
    losses = read_test_losses(tmp_path / "run")
    assert losses is not None
    assert record.result is not None
    assert math.fsum(losses.nats) / sum(losses.tokens) == pytest.approx(record.result.test_loss, rel=1e-6)
    assert sum(losses.tokens) == open_tokens(run.data.directory).num_tokens("test") - 1
    ends = np.asarray(tokens.split("test")) == tokens.meta.tokenizer.end_of_text
    assert losses.size == ends[:-1].sum() + 1
