"""Real torchrun with two processes."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from oelm.record.store import read_metrics, read_record

from .conftest import carried_out


def torchrun(run, directory, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(run.model_dump_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "oelm",
               "train", "--spec", str(spec), "--out", str(directory), "--quiet"]  # fmt: skip
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finished(process):
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors[-3000:]


@pytest.mark.timeout(600)
def test_two_processes_have_the_losses_of_one_and_survive_a_kill_to_the_bit(tiny_run, tmp_path):
    settings = {"steps": 24, "model": None}
    model = tiny_run().model.model_copy(update={"dropout": 0.0})
    alone = tiny_run("oelm-progressive:0.3-0.7", **(settings | {"model": model}))
    both = tiny_run("oelm-progressive:0.3-0.7", processes=2, **(settings | {"model": model}))
    carried_out(alone, tmp_path / "alone")
    finished(torchrun(both, tmp_path / "both", tmp_path))
    losses = [[metric.loss for metric in read_metrics(tmp_path / name)] for name in ("alone", "both")]
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)
    assert read_record(tmp_path / "both").status == "complete"

    broken = torchrun(both, tmp_path / "broken", tmp_path)
    while len(read_metrics(tmp_path / "broken")) < 12:
        assert broken.poll() is None
        time.sleep(0.01)
    os.killpg(broken.pid, signal.SIGKILL)
    broken.communicate()
    finished(torchrun(both, tmp_path / "broken", tmp_path))
    weights = [load_file(tmp_path / name / "checkpoints/latest/model.safetensors") for name in ("both", "broken")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
