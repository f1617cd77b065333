"""`oelm report --unseal`: a finished, registered study is scored on the sealed split, once."""

import json
import math
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from oelm.cli import dispatch
from oelm.data.prepare import prepare
from oelm.data.tokens import OPENED, SEALED_FILE, open_tokens
from oelm.files import parse_checked
from oelm.record.folder import REGISTERED, STUDY, UNSEALED, find_records, write_study
from oelm.record.registration import read_registration, register_study
from oelm.record.test_split import read_unsealed
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.runs.restore import load_run
from oelm.spec.run import DataSpec, GPTSpec, RunSpec, TrainSpec
from oelm.spec.study import Study
from oelm.tasks import make_task


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of sealed data and that of a finished study on it, neither ever opened."""
    place = tmp_path_factory.mktemp("unseal")
    data = prepare(DataSpec(corpus="stories", vocab_size=300, tokens=20_000, seal=0.1), place / "data")
    study = Study(
        name="done",
        question="Does it hold on what nobody has seen?",
        base=RunSpec(
            model=GPTSpec(context=32, model_dim=16, num_layers=1, num_heads=2),
            data=DataSpec(corpus="stories", directory=data),
            train=TrainSpec(steps=6, batch_size=2, warmup_steps=2, eval_every=3, eval_tokens=64, checkpoint_every=6),
        ),
        arms=("baseline", "oelm-freeze"),
        seeds=(0, 1),
    )
    root = place / "runs" / study.name
    register_study(root, study, None)
    write_study(root, study)
    for run in study.runs():
        named, tokens = resolve(run)
        execute(named, tokens, root / f"{run.arm}-seed{run.seed}_{named.data.checksum[:4]}", quiet=True)
    return data, root, study


@pytest.fixture
def sealed(finished, tmp_path):
    """Return a fresh copy of it; records name the first data folder, which is put back as it was afterwards."""
    data, root, _ = finished
    shutil.copytree(root, tmp_path / "runs" / root.name)
    yield data, tmp_path / "runs" / root.name
    (data / OPENED).unlink(missing_ok=True)


def unseal(root):
    return dispatch(["report", str(root), "--unseal"])


def test_the_final_weights_are_scored_and_the_report_shows_both_figures(sealed, capsys):
    data, root = sealed
    assert unseal(root) == 0
    found = read_unsealed(root)
    assert found.digest == read_registration(root).digest
    assert found.opened <= found.scored
    assert len(found.scores) == 4
    opening = json.loads((data / OPENED).read_text())
    assert opening["study"] == "done"
    assert set(opening["weights"]) == {score.fingerprint for score in found.scores}
    directory, record = find_records(root)[0][0]
    score = next(score for score in found.scores if score.fingerprint == record.fingerprint)
    assert score.loss == pytest.approx(plain_loss(directory, data / SEALED_FILE), rel=1e-5)
    assert score.loss != record.result.test_loss
    page = (root / "report" / "report.md").read_text()
    assert "## On the sealed split" in page
    costs = [score.loss for score in found.scores if score.arm == "baseline"]
    assert f"{math.exp(sum(costs) / len(costs)):.1f}" in page.split("## On the sealed split")[1]


def plain_loss(directory, path):
    """Return the loss on a file of tokens, read as the test split of a copy without a seal."""
    restored, copy = load_run(directory), directory.parent / ".copy"
    shutil.copytree(path.parent, copy, ignore=shutil.ignore_patterns("meta.json", ".scanned.json", SEALED_FILE, OPENED))
    shutil.copyfile(path, copy / "test.bin")
    task = make_task(restored.run, open_tokens(copy), torch.device("cpu"))
    return task.measure(restored.model, "test").loss


def test_a_second_unsealing_by_the_same_or_by_another_study_is_refused(sealed, finished, tmp_path, capsys):
    data, root = sealed
    assert unseal(root) == 0
    before = {path: path.read_bytes() for path in (root / UNSEALED, data / OPENED)}
    assert unseal(root) == 2
    assert "was unsealed on" in capsys.readouterr().err
    other = tmp_path / "elsewhere" / "other"
    shutil.copytree(finished[1], other)
    (other / REGISTERED).unlink()
    (other / STUDY).unlink()
    study = Study(**{**finished[2].__dict__, "name": "other"})
    register_study(other, study, None)
    write_study(other, study)
    assert unseal(other) == 2
    assert "was opened by done on" in capsys.readouterr().err
    assert not (other / UNSEALED).exists()
    (data / OPENED).unlink()  # as in another copy of the data; the neighbour's record still tells
    shutil.move(other, root.parent / "other")
    assert unseal(root.parent / "other") == 2
    assert "was opened by done on" in capsys.readouterr().err
    (data / OPENED).write_bytes(before[data / OPENED])
    assert before == {path: path.read_bytes() for path in before}


KILLED = """
import os, signal, sys
from oelm.cli import dispatch
from oelm.runs import restore
restore.load_run = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # the moment before the first run is scored
dispatch(["report", sys.argv[1], "--unseal"])
"""


def test_a_study_that_was_killed_between_opening_and_scoring_may_finish_and_no_other_may(
    sealed, finished, tmp_path, capsys
):
    data, root = sealed
    killed = subprocess.run([sys.executable, "-c", KILLED, str(root)], check=False)
    assert killed.returncode == -signal.SIGKILL
    opening = (data / OPENED).read_bytes()
    assert not (root / UNSEALED).exists()
    other = tmp_path / "elsewhere" / "done"  # the same study with other weights is not the one that opened it
    shutil.copytree(finished[1], other)
    for state in other.glob("baseline-seed0*/checkpoints/latest/state.json"):
        plain = parse_checked(state.read_bytes())
        plain["sha256"]["model.safetensors"] = "0" * 64
        state.write_text(json.dumps(plain))
    assert unseal(other) == 2
    assert "with other weights" in capsys.readouterr().err
    assert unseal(root) == 0
    assert "finishing the unsealing" in capsys.readouterr().out
    assert len(read_unsealed(root).scores) == 4
    assert (data / OPENED).read_bytes() == opening
    assert read_unsealed(root).opened == json.loads(opening)["opened"]


def refused(root, data, capsys):
    """Return what is said against unsealing, after making sure that nothing was opened."""
    assert unseal(root) == 2
    assert not (data / OPENED).exists()
    assert not (root / UNSEALED).exists()
    return capsys.readouterr().err


def test_nothing_is_opened_for_a_study_that_is_not_done(sealed, capsys):
    data, root = sealed
    shutil.rmtree(next(root.glob("oelm-freeze-seed1*")))
    assert "1 runs are not: oelm-freeze, seed 1 (waiting)" in refused(root, data, capsys)


def test_nothing_is_opened_without_final_weights(sealed, capsys):
    data, root = sealed
    shutil.rmtree(next(root.glob("baseline-seed1*")) / "checkpoints")
    assert "does not hold the weights" in refused(root, data, capsys)


def test_nothing_is_opened_for_a_study_that_is_not_registered_or_has_changed(sealed, finished, capsys):
    data, root = sealed
    plain = parse_checked((root / STUDY).read_bytes())
    (root / STUDY).write_text(json.dumps(plain | {"margin": 3.0}))
    assert "margin: registered nothing, now 3.0" in refused(root, data, capsys)
    (root / REGISTERED).unlink()
    assert "is not registered" in refused(root, data, capsys)


def test_a_damaged_sealed_file_is_not_opened(sealed, capsys):
    data, root = sealed
    whole = (data / SEALED_FILE).read_bytes()
    try:
        (data / SEALED_FILE).write_bytes(whole[:-2])
        assert "not the file" in refused(root, data, capsys)
    finally:
        (data / SEALED_FILE).write_bytes(whole)


def test_evaluate_and_train_refuse_the_sealed_file(sealed, capsys):
    data, root = sealed
    run = next(root.glob("baseline-seed0*"))
    assert dispatch(["evaluate", str(run), "--data", str(data / SEALED_FILE)]) == 2
    assert "is sealed" in capsys.readouterr().err
    assert dispatch(["train", "--data.directory", str(data / SEALED_FILE), "--out", str(root / "new")]) == 2
    assert "is sealed" in capsys.readouterr().err
    assert dispatch(["evaluate", str(run), "--split", "sealed"]) == 2


def test_unsealing_is_of_one_study(tmp_path, capsys):
    assert dispatch(["report", str(tmp_path), "--all", "--unseal"]) == 2
    assert "without --all" in capsys.readouterr().err
