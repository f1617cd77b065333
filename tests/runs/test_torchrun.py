"""Real torchrun with two processes."""

import subprocess
import sys
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file

from oelm.record.folder import read_metrics, read_record

from .conftest import TINY_GPT, carried_out

pytestmark = pytest.mark.programs


def torchrun(run, directory, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(run.model_dump_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "oelm",
               "train", "--spec", str(spec), "--out", str(directory), "--quiet"]  # fmt: skip
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finished(process):
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors[-3000:]


def kill_all(process):
    """Kill -9 torchrun and its workers, which have sessions of their own and would go on without it."""
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in everyone:
        one.kill()
    psutil.wait_procs(everyone, timeout=30)
    process.communicate()


def weights_of(directory):
    return load_file(directory / "checkpoints/latest/model.safetensors")


def killed_and_resumed(run, tmp_path, kills, lines):
    """Kill every process of the run when the curve has grown by so many lines; again and again; then let it finish."""
    for _ in range(kills):
        before = len(read_metrics(tmp_path / "broken"))
        process = torchrun(run, tmp_path / "broken", tmp_path)
        while len(read_metrics(tmp_path / "broken")) < before + lines:
            assert process.poll() is None, "it finished before it could be killed"
            time.sleep(0.01)
        kill_all(process)
    finished(torchrun(run, tmp_path / "broken", tmp_path))


@pytest.fixture
def scheduled(tiny_run):
    def make(**train):
        model = tiny_run().model.model_copy(update={"dropout": 0.0})
        return tiny_run("oelm-progressive:0.3-0.7", model=model, **train)

    return make


@pytest.mark.timeout(600)
def test_two_processes_have_the_losses_of_one_and_survive_a_kill_to_the_bit(scheduled, tmp_path):
    carried_out(scheduled(steps=24), tmp_path / "alone")
    both = scheduled(steps=24, processes=2)
    finished(torchrun(both, tmp_path / "both", tmp_path))
    losses = [[metric.loss for metric in read_metrics(tmp_path / name)] for name in ("alone", "both")]
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)
    assert read_record(tmp_path / "both").status == "complete"
    killed_and_resumed(both, tmp_path, kills=1, lines=12)
    whole, parts = weights_of(tmp_path / "both"), weights_of(tmp_path / "broken")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.timeout(600)
def test_two_processes_classify_with_the_losses_of_one(reviewing, tmp_path):
    model = TINY_GPT.model_copy(update={"dropout": 0.0})
    carried_out(reviewing(model=model, epochs=1), tmp_path / "alone")
    finished(torchrun(reviewing(model=model, epochs=1, processes=2), tmp_path / "both", tmp_path))
    losses = [[metric.loss for metric in read_metrics(tmp_path / name)] for name in ("alone", "both")]
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_under_torchrun_change_nothing(scheduled, tmp_path):
    both = scheduled(steps=4000, processes=2, eval_every=1000, checkpoint_every=20)
    finished(torchrun(both, tmp_path / "both", tmp_path))
    killed_and_resumed(both, tmp_path, kills=20, lines=1)
    whole, parts = weights_of(tmp_path / "both"), weights_of(tmp_path / "broken")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
