"""Checkpoints that survive."""

import pytest
import torch
from torch import nn

from oelm.errors import CheckpointError
from oelm.train import checkpoint as module
from oelm.train.checkpoint import Checkpoints, load_into, read_checkpoint


@pytest.fixture
def saved(tmp_path):
    checkpoints = Checkpoints(tmp_path, "abc")
    for step in (1, 2):
        model = nn.Linear(2, 2)
        nn.init.constant_(model.weight, step)
        checkpoints.save(model, {"moment": torch.full((2,), float(step))}, {"progress": {"step": step}})
    return checkpoints


def test_the_newest_is_loaded_and_whole(saved):
    checkpoint, troubles = saved.load()
    assert not troubles
    assert checkpoint.state["progress"]["step"] == 2
    assert checkpoint.model["weight"].eq(2).all()
    assert checkpoint.training["moment"].eq(2).all()


@pytest.mark.parametrize("file", ["model.safetensors", "training.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_damaged_latest_falls_back_to_the_one_before_and_says_so(saved, file, damage):
    path = saved.directory / "latest" / file
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    checkpoint, troubles = saved.load()
    assert checkpoint.state["progress"]["step"] == 1
    assert len(troubles) == 1


def test_when_both_are_damaged_nothing_is_guessed(saved):
    for name in ("latest", "previous"):
        (saved.directory / name / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="No checkpoint in .* can be read"):
        saved.load()


def test_a_crash_while_writing_leaves_the_old_one(saved, monkeypatch):
    def crash(*_args, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_atomically", crash)
    with pytest.raises(KeyboardInterrupt):
        saved.save(nn.Linear(2, 2), {}, {"progress": {"step": 3}})
    checkpoint, _ = saved.load()
    assert checkpoint.state["progress"]["step"] == 2
    assert not list(saved.directory.glob(".latest*"))


def test_a_crash_between_the_two_renames_leaves_the_previous_one(saved):
    (saved.directory / "latest").rename(saved.directory / ".latest.1")
    checkpoint, _ = saved.load()
    assert checkpoint.state["progress"]["step"] == 1


def test_a_checkpoint_of_another_run_is_refused(saved):
    with pytest.raises(CheckpointError, match="belongs to run abc, not to xyz"):
        Checkpoints(saved.directory, "xyz").load()


def test_a_checkpoint_of_another_model_is_refused_and_the_model_untouched(saved):
    model = nn.Linear(2, 3)
    before = model.weight.clone()
    with pytest.raises(CheckpointError, match="another model.*weight"):
        load_into(model, saved.load()[0].model, "here")
    assert torch.equal(model.weight, before)


def test_the_best_is_replaced_whole(saved):
    for step in (1, 2):
        saved.save_best(nn.Linear(2, 2), {"progress": {"step": step}})
    assert read_checkpoint(saved.directory / "best").state["progress"]["step"] == 2
    assert not list(saved.directory.glob(".*"))


def test_folders_of_like_names_are_not_taken_for_leftovers(tmp_path):
    (tmp_path / ".emacs.d").mkdir()
    (tmp_path / ".emacs.4711").mkdir()
    Checkpoints(tmp_path, "abc").write("emacs", nn.Linear(2, 2), {"progress": {"step": 1}})
    assert (tmp_path / ".emacs.d").is_dir()
    assert not (tmp_path / ".emacs.4711").exists()


def test_a_late_process_moves_nothing_where_folders_cannot_be_exchanged(saved, monkeypatch):
    """As on NFS. The next holder of the lock has removed what a suspended process had written aside."""
    monkeypatch.setattr(module, "_exchange", lambda one, other: False)  # noqa: ARG005
    saved.save(nn.Linear(2, 2), {}, {"progress": {"step": 3}})
    assert saved.load()[0].state["progress"]["step"] == 3
    latest = saved.directory / "latest"

    class Vanishing(type(latest)):
        """A folder that is removed between the last look and its rename."""

        def stat(self, **_):
            return latest.stat()

    for fresh in (saved.directory / ".latest.7", Vanishing(saved.directory / ".latest.7")):
        with pytest.raises(FileNotFoundError):
            saved._put(fresh, latest, saved.directory / "previous")
        assert read_checkpoint(latest).state["progress"]["step"] == 3
