"""Ways to carry out a run: here, in a process that can be killed, and killed."""

import os
import signal
import time
import traceback

import pytest
import torch

from oelm.record.folder import METRICS
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.spec.method import named_method
from oelm.spec.run import ExamplesSpec, GPTSpec, RunSpec, TrainSpec


def carried_out(run, directory):
    """Carry out a run here and now, silently."""
    return execute(*resolve(run), directory, quiet=True)


def forked(run, directory):
    """Carry out a run in a process of its own, which can be killed; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        torch.set_num_threads(1)
        carried_out(run, directory)
        os._exit(0)
    except BaseException:  # noqa: BLE001  (whatever it was, this process must end here)
        traceback.print_exc()
        os._exit(1)


def killed_at(run, directory, line):
    """Start a run and kill -9 it when its curve has grown by so many lines; tell whether it finished before."""
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


TINY_GPT = GPTSpec(context=32, model_dim=32, num_layers=2, num_heads=4, dropout=0.1)


@pytest.fixture(scope="session")
def reviewing(reviews):
    """Make a run: `reviewing("oelm-freeze", epochs=2)`; keywords are fields of TrainSpec."""

    def make(method="baseline", model=TINY_GPT, data=None, **train):
        settings = {"epochs": 4, "batch_size": 16, "warmup_steps": 3, "learning_rate": 3e-3, "eval_every": "epoch",
                    "checkpoint_every": 3} | train  # fmt: skip
        return RunSpec(
            arm=method,
            method=named_method(method),
            model=model,
            data=ExamplesSpec(
                **{"corpus": "sst2", "source": reviews, "vocab_size": 300, "max_length": 32} | (data or {})
            ),
            train=TrainSpec(**settings),
        )

    return make
