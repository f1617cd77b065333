"""A tiny corpus and a tiny run, for whole runs in seconds."""

import os
import signal
import time
import traceback

import pytest
import torch

from oelm.data.prepare import prepare
from oelm.record.store import METRICS
from oelm.runner.run import bound, execute
from oelm.spec.data import DataSpec
from oelm.spec.method import named_method
from oelm.spec.model import GPTSpec
from oelm.spec.run import RunSpec
from oelm.spec.train import TrainSpec


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data") / "stories"
    prepare(DataSpec(corpus="stories", vocab_size=300, tokens=20_000), directory)
    return directory


@pytest.fixture(scope="session")
def tiny_run(tiny_data):
    """Make a run: `tiny_run("oelm-freeze", steps=10)`; keywords are fields of TrainSpec."""

    def make(method="baseline", seed=0, model=None, **train):
        settings = {"steps": 30, "batch_size": 4, "warmup_steps": 3, "learning_rate": 3e-3, "eval_every": 10,
                    "eval_tokens": 512, "checkpoint_every": 7} | train  # fmt: skip
        return RunSpec(
            arm=method,
            method=named_method(method),
            seed=seed,
            model=model or GPTSpec(context=32, model_dim=32, num_layers=2, num_heads=4, dropout=0.1),
            data=DataSpec(corpus="stories", directory=tiny_data),
            train=TrainSpec(**settings),
        )

    return make


def carried_out(run, directory):
    """Carry out a run here and now, silently."""
    return execute(*bound(run), directory, quiet=True)


def forked(run, directory):
    """Carry out a run in a process of its own, which can be killed; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        torch.set_num_threads(1)
        carried_out(run, directory)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def killed_at(run, directory, line):
    """Start a run, kill -9 it when its curve has grown by so many lines (or let it finish); tell whether it finished."""
    curve = directory / METRICS
    before = len(curve.read_bytes().splitlines()) if curve.exists() else 0
    pid = forked(run, directory)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0
            return True
        if curve.exists() and len(curve.read_bytes().splitlines()) >= before + line:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.002)
