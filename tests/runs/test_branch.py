"""One long run and its shorter branches."""

import shutil

import pytest
import torch

from oelm.record.folder import read_attention, read_metrics, run_directory
from oelm.runs.board import Board
from oelm.runs.execute import find_branch
from oelm.runs.local import LocalRunner
from oelm.runs.resolve import resolve
from oelm.spec.run import branches_off, fingerprint, trunk_of
from oelm.spec.study import Study

from .conftest import carried_out
from .test_run import final_weights

pytestmark = pytest.mark.programs

LONG, SHORT = {"steps": 30}, {"steps": 15}


@pytest.fixture
def wsd(tiny_run):
    return lambda method="oelm-freeze", **train: tiny_run(method, **{"decay": "wsd", "warmup_steps": 3} | train)


def test_a_branch_ends_with_the_bits_of_a_run_from_scratch(wsd, tmp_path):
    trunk, branch = wsd(**LONG, branch_at=(12,)), wsd(**SHORT)
    assert branch.train.decay_start == 12
    carried_out(trunk, tmp_path / "study" / "trunk")
    record = carried_out(branch, tmp_path / "study" / "branch")
    scratch = carried_out(branch, tmp_path / "elsewhere" / "scratch")
    assert record.branched_from.fingerprint == fingerprint(resolve(trunk).spec)
    assert record.branched_from.step == 12
    assert scratch.branched_from is None
    assert record.fingerprint == scratch.fingerprint
    for field in ("val_loss", "test_loss", "best_val_loss", "best_step", "train_tokens"):
        assert getattr(record.result, field) == getattr(scratch.result, field), field
    ours, theirs = final_weights(tmp_path / "study" / "branch"), final_weights(tmp_path / "elsewhere" / "scratch")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    curves = [
        [(point.step, point.loss) for point in read_metrics(tmp_path / place) if point.kind == "val"]
        for place in ("study/branch", "elsewhere/scratch")
    ]
    assert curves[0] == curves[1]
    assert [seen.step for seen in read_attention(tmp_path / "study" / "branch")] == [10, 15]
    assert "continuing run" in (tmp_path / "study" / "branch" / "training.log").read_text()


def test_keeping_checkpoints_for_branches_does_not_change_what_a_run_is(wsd):
    assert fingerprint(wsd(**LONG, branch_at=(12,))) == fingerprint(wsd(**LONG))


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"learning_rate": 1e-3},
        {"batch_size": 8},
        {"warmup_steps": 2},
        {"method": "baseline"},
        {"steps": 40},
        {"warmup_steps": 14},
    ],
)
def test_a_run_that_differs_in_anything_else_does_not_branch_off(wsd, other):
    assert branches_off(wsd(**SHORT), wsd(**LONG))
    seed = {"seed": other.pop("seed", 0)}
    changed = wsd(**SHORT | other).model_copy(update=seed)
    assert not branches_off(changed, wsd(**LONG))


def test_a_schedule_of_freezing_has_no_trunk_because_it_depends_on_all_steps(wsd):
    assert trunk_of(wsd("unfreeze-late:0.5")) is None
    assert trunk_of(wsd(decay="cosine")) is None


def test_a_damaged_checkpoint_is_passed_over(wsd, tmp_path):
    trunk, branch = wsd(**LONG, branch_at=(12,)), resolve(wsd(**SHORT)).spec
    carried_out(trunk, tmp_path / "trunk")
    assert find_branch(branch, tmp_path / "branch")
    shutil.copyfile(__file__, tmp_path / "trunk" / "checkpoints" / "branch-12" / "model.safetensors")
    assert find_branch(branch, tmp_path / "branch") is None


def test_a_study_of_several_budgets_trains_the_trunk_once(wsd, tmp_path):
    study = Study(
        name="budgets",
        question="?",
        base=wsd("baseline"),
        arms=("baseline",),
        sizes={"short": {"train.steps": 15}, "long": {"train.steps": 30}},
    )
    runs = {run.train.steps: run for run in study.runs()}
    assert runs[30].train.branch_at == (12,)
    assert runs[15].train.branch_at == ()
    board = Board(study, tmp_path, bind=lambda run: resolve(run).spec)
    assert LocalRunner(board, slots=2).run() == 0
    records = {entry.run.train.steps: entry.record for entry in board.entries}
    assert records[15].branched_from.step == 12
    assert records[30].branched_from is None
    assert run_directory(tmp_path, records[15].spec).is_dir()
