"""`oelm run` registers a study before its first confirming run, and refuses it when it has changed."""

import io
import subprocess
import sys
from datetime import datetime

import pytest
from rich.console import Console

from oelm.record.folder import REGISTERED, find_records
from oelm.record.registration import is_older, read_registration
from oelm.runs.board import Board
from oelm.runs.local import LocalRunner
from oelm.runs.resolve import resolve
from oelm.spec.study import load_study

DECLARED = """
from pathlib import Path
from oelm import DataSpec, GPTSpec, RunSpec, Study, TrainSpec
study = Study(
    name="small",
    question="Is it registered?",
    base=RunSpec(
        model=GPTSpec(context=32, model_dim=16, num_layers=1, num_heads=2),
        data=DataSpec(corpus="stories", directory=Path({data!r})),
        train=TrainSpec(steps=6, batch_size=2, warmup_steps=2, eval_every=3, eval_tokens=64, checkpoint_every=6),
    ),
    arms=("baseline", "oelm-freeze"),
    {rest}
)
"""
TUNED = 'tuned={"train.learning_rate": (1e-3,)}, tuning_seeds=(100,), seeds=%s,'


@pytest.fixture
def declare(tmp_path, tiny_data):
    def make(rest):
        path = tmp_path / "small.py"
        path.write_text(DECLARED.format(data=str(tiny_data), rest=rest))
        return path

    return make


def oelm(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "oelm", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.programs
def test_a_study_without_tuning_is_registered_before_its_first_run_and_then_cannot_be_changed(declare, tmp_path):
    out = tmp_path / "runs"
    runners = [oelm("run", declare("seeds=(0,),"), "--out", out, "--slots", 1) for _ in range(2)]  # one study, both
    said = [runner.communicate(timeout=250)[0] for runner in runners]
    assert [runner.returncode for runner in runners] == [0, 0], said
    record = read_registration(out / "small")
    found, bad = find_records(out)
    assert bad == []
    assert len(found) == 2
    assert not any(is_older(run, record) for _, run in found)
    assert all(datetime.fromisoformat(run.started) >= datetime.fromisoformat(record.registered) for _, run in found)
    before = {path: path.read_bytes() for path in out.rglob("*.json")}
    again = oelm("run", declare("seeds=(0, 1),"), "--out", out)
    text = again.communicate(timeout=250)[0]
    assert again.returncode == 2
    assert "StudyChanged" in text
    assert "seeds: registered [0], now [0, 1]" in text
    assert {path: path.read_bytes() for path in out.rglob("*.json")} == before


def worked(path, root, **options):
    """Carry out a study here, by the runner that `oelm run` uses."""
    board = Board(load_study(path), root, bind=lambda run: resolve(run).spec)
    return LocalRunner(board, console=Console(file=io.StringIO()), **options)


@pytest.mark.programs
def test_a_tuned_study_is_registered_when_tuning_has_ended_and_a_screen_never(declare, tmp_path):
    screen = tmp_path / "screen"
    assert worked(declare(TUNED % "()"), screen).run() == 0
    assert not (screen / REGISTERED).exists()
    root = tmp_path / "small"
    runner = worked(declare(TUNED % "(0,)"), root)
    assert runner.run() == 0
    record = read_registration(root)
    assert record.choice == runner.board.stage.choice
    moments = {run.spec.seed: datetime.fromisoformat(run.started) for _, run in find_records(root)[0]}
    assert moments[100] <= datetime.fromisoformat(record.registered) <= moments[0]
