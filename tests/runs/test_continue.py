"""More steps of a run, in a folder of its own."""

from __future__ import annotations

import pytest
import torch

from oelm.cli import dispatch
from oelm.errors import CheckpointError, NotCarriedOut
from oelm.record.folder import RunFolder
from oelm.runs.execute import continue_run, execute
from oelm.runs.resolve import resolve
from oelm.runs.restore import load_run
from oelm.spec.run import fingerprint, undo_resolve


@pytest.fixture(scope="module")
def first(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("first") / "run"
    execute(*resolve(tiny_run("oelm-every:3", steps=7, decay="constant")), folder, quiet=True)
    return folder


def test_a_continued_run_ends_with_the_bits_of_a_run_of_the_whole_length(first, tiny_run, tmp_path):
    # At a constant rate the length of a run changes no step, so the two must agree to the bit.
    before = {path.name: path.read_bytes() for path in first.iterdir() if path.is_file()}
    record = execute(*resolve(continue_run(first, 5)), tmp_path / "more", quiet=True)
    execute(*resolve(tiny_run("oelm-every:3", steps=12, decay="constant")), tmp_path / "whole", quiet=True)
    more, whole = load_run(tmp_path / "more"), load_run(tmp_path / "whole")
    for (name, one), two in zip(more.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, two), name
    assert (record.step, record.branched_from.step) == (12, 7)
    assert record.branched_from.fingerprint == RunFolder(first).read_record().fingerprint
    assert record.fingerprint != whole.record.fingerprint
    steps = [metric.step for metric in RunFolder(tmp_path / "more").read_metrics() if metric.kind == "train"]
    assert steps == list(range(1, 13))
    assert load_run(tmp_path / "more", "best").state["progress"]["step"] > 7
    assert before == {path.name: path.read_bytes() for path in first.iterdir() if path.is_file()}


def test_where_a_run_starts_from_is_part_of_what_it_is(first):
    one, other = continue_run(first, 5), continue_run(first, 6)
    assert len({fingerprint(one), fingerprint(other), fingerprint(RunFolder(first).read_record().spec)}) == 3
    assert undo_resolve(one).continues == one.continues
    moved = one.continues.model_copy(update={"folder": None})
    assert fingerprint(one.model_copy(update={"continues": moved})) == fingerprint(one)


def test_a_run_that_cannot_be_continued_is_refused(first, tiny_run, tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint to continue from"):
        continue_run(tmp_path, 5)
    execute(*resolve(tiny_run("train-then-freeze:0.5", steps=4)), tmp_path / "half", quiet=True)
    with pytest.raises(NotCarriedOut, match="fractions of training"):
        continue_run(tmp_path / "half", 5)
    run = continue_run(first, 5)
    run = run.model_copy(update={"continues": run.continues.model_copy(update={"step": 3})})
    with pytest.raises(CheckpointError, match="after step 7"):
        execute(*resolve(run), tmp_path / "x", quiet=True)


def test_the_command_continues_a_run(first, tmp_path, capfd):
    words = ["train", "--continue-from", str(first), "--steps", "2", "--out", str(tmp_path / "more")]
    assert dispatch(words) == 0
    assert "after step 7" in capfd.readouterr().out
    assert RunFolder(tmp_path / "more").read_record().step == 9
