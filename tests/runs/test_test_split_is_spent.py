"""Runs that tune are not scored on test; a study that confirms with the same run scores it first."""

import json
import shutil

import pytest

from oelm.files import parse_checked
from oelm.record.folder import METRICS, RECORD, TEST_LOSSES, read_record, run_directory
from oelm.runs.board import Board, Neighbours
from oelm.runs.resolve import resolve
from oelm.spec.run import GPT_SIZES, RunSpec, fingerprint
from oelm.spec.study import Study

from .conftest import carried_out


def unscored(run):
    return run.model_copy(update={"scores_test": False})


def test_whether_a_run_is_scored_on_test_does_not_change_what_run_it_is(tiny_run):
    run = tiny_run()
    assert fingerprint(run) == fingerprint(unscored(run))
    assert fingerprint(RunSpec(model=GPT_SIZES["nano"])) == "8c2228e87feefa27"  # as before the field existed


def test_the_runs_that_tune_are_not_to_be_scored_and_those_that_confirm_are(tuned_study):
    study = tuned_study()
    (cell,) = study.cells()
    assert {run.scores_test for run in study.tuning(cell, study.tuned)} == {False}
    assert {run.scores_test for run in study.confirming(lambda _cell, _arm: {})} == {True}
    base = study.base.model_copy(update={"scores_test": False})
    assert {run.scores_test for run in tuned_study(base=base).confirming(lambda _cell, _arm: {})} == {True}


@pytest.fixture(scope="module")
def tuning_run(tiny_run, tmp_path_factory):
    """Return a complete run that tuned a study, and its folder below a study's."""
    run = resolve(unscored(tiny_run("oelm-freeze", steps=6, checkpoint_every=6, eval_every=3)))[0]
    directory = run_directory(tmp_path_factory.mktemp("runs") / "first", run)
    return run, directory, carried_out(run, directory)


def test_a_run_that_tunes_has_no_figure_on_test(tuning_run):
    _, directory, record = tuning_run
    assert record.status == "complete"
    assert record.is_unscored
    assert (record.result.test_loss, record.result.test_accuracy) == (None, None)
    assert record.result.val_loss > 0
    assert not (directory / TEST_LOSSES).exists()
    assert "not scored on test" in (directory / "training.log").read_text()


def test_a_labelled_run_that_tunes_has_none_either(reviewing, tmp_path):
    record = carried_out(unscored(reviewing(epochs=1)), tmp_path)
    assert record.is_unscored
    assert record.result.test_accuracy is None
    assert not (tmp_path / TEST_LOSSES).exists()


def snapshot(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_study_that_confirms_with_a_tuning_run_scores_its_final_weights(tuning_run, tiny_run, tmp_path):
    run, directory, _ = tuning_run
    fresh = carried_out(tiny_run("oelm-freeze", steps=6, checkpoint_every=6, eval_every=3), tmp_path / "fresh")
    before = snapshot(directory)
    target = directory.parent.parent / "second" / directory.name
    Neighbours(target.parent).adopt(fingerprint(run), target)
    assert read_record(target).is_unscored
    scored = carried_out(run.model_copy(update={"scores_test": True}), target)
    assert scored.result.test_loss == fresh.result.test_loss
    assert scored.result.val_loss == read_record(directory).result.val_loss
    assert (target / TEST_LOSSES).exists()
    assert (target / METRICS).read_bytes() == (directory / METRICS).read_bytes()  # no step was trained again
    assert snapshot(directory) == before  # the first study's run is as it was
    assert not scored.is_unscored


def test_without_its_weights_a_tuning_run_is_trained_again_to_be_confirmed_with(tuning_run, tmp_path):
    run, directory, record = tuning_run
    target = tmp_path / "second" / directory.name
    shutil.copytree(directory, target, ignore=shutil.ignore_patterns("checkpoints"))
    scored = carried_out(run.model_copy(update={"scores_test": True}), target)
    assert scored.result.test_loss is not None
    assert scored.result.val_loss == record.result.val_loss
    assert scored.started >= record.started
    assert scored.seconds.total < record.seconds.total + scored.seconds.total


def test_a_run_that_tunes_again_is_left_alone(tuning_run):
    run, directory, record = tuning_run
    before = snapshot(directory)
    assert carried_out(run, directory) == record
    assert snapshot(directory) == before


def with_checksum(run):
    return run.model_copy(update={"data": run.data.model_copy(update={"checksum": "c0ffee"})})


def test_a_board_counts_an_unscored_run_as_open_where_it_confirms_and_as_complete_where_it_tunes(
    study, tmp_path, write_run, make_record
):
    run = study.runs()[0]
    directory = write_run(unscored(run))
    plain = parse_checked((directory / RECORD).read_bytes())
    plain["result"] |= {"test_loss": None}
    (directory / RECORD).write_text(json.dumps(plain))
    board = Board(study, tmp_path / "runs", bind=with_checksum)
    assert board.entries[0].state == "interrupted"
    tuned = Study(**{
        **study.__dict__, "tuned": {"train.learning_rate": (run.train.learning_rate,)}, "tuning_seeds": (0,),
        "seeds": (1, 2),
    })  # fmt: skip
    board = Board(tuned, tmp_path / "runs", bind=with_checksum)
    assert board.entries[0].state == "complete"


def test_a_scored_neighbour_is_adopted_before_one_that_is_not(study, tmp_path, write_run):
    run = study.runs()[0]
    scored = write_run(run)
    plain = parse_checked((scored / RECORD).read_bytes())
    twin = tmp_path / "another" / scored.name
    shutil.copytree(scored, twin)
    plain["result"]["test_loss"], plain["spec"]["scores_test"] = None, False
    (twin / RECORD).write_text(json.dumps(plain))
    target = tmp_path / "second" / scored.name
    Neighbours(target.parent).adopt(plain["fingerprint"], target)
    assert not read_record(target).is_unscored
