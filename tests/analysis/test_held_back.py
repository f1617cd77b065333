"""A held-back size runs only after its prediction is written, and nothing overwrites that."""

import json

import pytest
from test_scaling import loss_of, small_ladder

from oelm.analysis.prediction import PREDICTION, read_prediction, write_prediction
from oelm.errors import BadRecord
from oelm.runner.queue import Board
from oelm.spec.data import DataSpec
from oelm.study import Study


def bind(run):
    return run.model_copy(update={"data": run.data.model_copy(update={"checksum": "c0ffee"})})


@pytest.fixture
def ladder(tmp_path, write_run):
    study = small_ladder(base=small_ladder().base.model_copy(update={"data": DataSpec(corpus="stories")}))
    own = [run for run in study.runs() if study.size_of(run) != "64"]
    for run in own[:-1]:
        write_run(run, loss_of(run))
    return study, tmp_path / "runs", own[-1]


def sizes_of(board):
    return {board.study.size_of(entry.run) for entry in board.entries}


def test_held_back_runs_wait_until_all_others_have_ended_and_the_prediction_is_written(ladder, write_run):
    study, root, last = ladder
    board = Board(study, root, bind=bind)
    assert "64" not in sizes_of(board)
    assert not (root / PREDICTION).exists()
    write_run(last, loss_of(last))
    later = Board(study, root, bind=bind)
    assert "64" in sizes_of(later)
    found = read_prediction(root)
    assert found.held_back == ("64",)
    assert len(found.rests_on) == 5 * (3 + 3 + 2)
    assert {(item.quantity, item.arm) for item in found.predicted} >= {
        ("loss", "baseline"),
        ("content", "position-only"),
        ("freezing", "oelm-fast"),
        ("lost", "oelm-fast"),
    }
    truth = next(run for run in study.runs() if study.size_of(run) == "64" and run.arm == "oelm-freeze")
    loss = next(item for item in found.predicted if (item.quantity, item.arm) == ("loss", "oelm-freeze"))
    assert loss.low <= loss_of(truth) <= loss.high


def test_a_running_board_takes_up_the_held_back_size_by_itself(ladder, write_run):
    study, root, last = ladder
    board = Board(study, root, bind=bind)
    write_run(last, loss_of(last))
    for entry in list(board.entries):
        board.refresh(entry)
    assert board.advance()
    assert "64" in sizes_of(board)


def test_those_who_only_look_see_every_run_and_write_nothing(ladder, write_run):
    study, root, last = ladder
    write_run(last, loss_of(last))
    assert "64" in sizes_of(Board(study, root))
    assert not (root / PREDICTION).exists()


def test_a_prediction_is_never_overwritten(ladder, write_run):
    study, root, last = ladder
    write_run(last, loss_of(last))
    first = write_prediction(study, root)
    text = (root / PREDICTION).read_text()
    write_run(last, loss_of(last) + 1)
    assert write_prediction(study, root) == first
    assert (root / PREDICTION).read_text() == text
    assert json.loads(text)["study"] == "ladder"
    (root / PREDICTION).write_text("{")
    with pytest.raises(BadRecord, match="Restore the file"):
        read_prediction(root)


def test_the_prediction_does_not_look_at_the_held_back_size(ladder, write_run, tmp_path):
    study, root, last = ladder
    write_run(last, loss_of(last))
    blind = write_prediction(study, root)
    (root / PREDICTION).unlink()
    assert isinstance(study, Study)
    for run in study.runs():
        if study.size_of(run) == "64":
            write_run(run, 9.0)
    seeing = write_prediction(study, root)
    assert seeing.predicted == blind.predicted
    assert seeing.rests_on == blind.rests_on
