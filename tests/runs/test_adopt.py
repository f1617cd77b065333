"""Runs that a neighbouring study has done."""

import shutil

from oelm.record.folder import read_record
from oelm.runs.board import Board
from oelm.spec.study import Study


def bound(run):
    return run.model_copy(update={"data": run.data.model_copy(update={"checksum": "c0ffee"})})


def states(board):
    return [entry.state for entry in board.entries]


def test_a_run_that_another_study_completed_is_not_run_again(study, tmp_path, write_run):
    done = write_run(study.runs()[0])
    (done / "test_looks.jsonl").touch()
    write_run(study.runs()[1], status="interrupted", result=None)
    other = Study(**{**study.__dict__, "name": "other"})
    board = Board(other, tmp_path / "other", bind=bound)
    assert states(board) == ["complete"] + ["waiting"] * 5
    (adopted,) = (tmp_path / "other").iterdir()
    assert read_record(adopted) == read_record(done)
    assert (adopted / "metrics.jsonl").stat().st_ino == (done / "metrics.jsonl").stat().st_ino
    # A later look at one of the two is not a look at the other.
    assert (adopted / "test_looks.jsonl").stat().st_ino != (done / "test_looks.jsonl").stat().st_ino


def test_who_only_looks_adopts_nothing(study, tmp_path, write_run):
    write_run(study.runs()[0])
    assert set(states(Board(study, tmp_path / "other"))) == {"waiting"}
    assert not (tmp_path / "other").exists()


def test_a_run_of_other_bytes_or_with_a_broken_record_is_left_alone(study, tmp_path, write_run):
    write_run(study.runs()[0], checksum="decaf")
    (write_run(study.runs()[1]) / "record.json").write_text("{")
    assert set(states(Board(study, tmp_path / "other", bind=bound))) == {"waiting"}


def test_adopted_tuning_runs_count_for_the_stage(tuned_study, tmp_path, write_run):
    for run in Board(tuned_study(), tmp_path / "runs").stage.tune:
        write_run(run, loss=2 + abs(run.train.learning_rate - 2e-3))
    board = Board(tuned_study(name="other"), tmp_path / "other", bind=bound)
    assert board.stage.name == "confirm"


def test_a_run_keeps_its_folder_when_its_arm_is_called_otherwise(study, tmp_path, write_run):
    directory = write_run(study.runs()[0])
    renamed = directory.with_name("old-name_" + directory.name.rpartition("_")[2])
    shutil.move(directory, renamed)
    assert Board(study, tmp_path / "runs", bind=bound).entries[0].directory == renamed
