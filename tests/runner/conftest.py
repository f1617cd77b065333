"""Ways to carry out a run: here, in a process that can be killed, and killed."""

import os
import signal
import time
import traceback

import torch

from oelm.record.store import METRICS
from oelm.runner.bind import bound
from oelm.runner.run import execute


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
