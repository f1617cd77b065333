"""A run as the job that Slurm starts: a process that carries it out, and gives way when it is asked to.

submitit pickles a `SlurmJob` when the run is submitted and calls it on the node; it holds one path and nothing else.
The training is a child. Slurm sends its signals to us, and depending on its version and set-up to the child as well:

    SIGTERM   (scancel, preemption, `oelm cancel`): the child saves itself, then the job ends.
    SIGUSR2   (submitit's, before the time limit and on preemption): the child, which is deaf to it, is sent SIGTERM and
              saves itself, then the job is requeued.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from oelm.errors import RunFailed
from oelm.record.store import SPEC
from oelm.runner.cancel import is_cancelled
from oelm.runner.child import Child, start
from oelm.runner.claim import SILENCE_SECONDS, ask_to_stop, holder
from oelm.runner.slurm_queue import read_job
from oelm.spec.run import RunSpec


class SlurmJob:
    """Carries out the run whose spec lies in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._child: Child | None = None
        self._leaving = False

    def __call__(self) -> None:
        """Carry the run out, from its checkpoint if it has one.

        Raises RunFailed unless it is complete, so that the job's own state tells as well.
        """
        signal.signal(signal.SIGTERM, self._give_way)
        run = RunSpec.model_validate_json((self.directory / SPEC).read_text())
        job = read_job(self.directory)
        # A signal before this process could hear it would have been lost, a job submitted meanwhile not been known.
        if (job is not None and job.cancelled) or is_cancelled(self.directory.parent, run):
            return
        self._await_the_dead()
        if self._leaving:
            return
        deaf_before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])  # the child inherits it; ours waits
        self._child = start(run, self.directory)
        signal.pthread_sigmask(signal.SIG_SETMASK, deaf_before)
        if self._leaving:  # asked between the last look and the child's birth
            self._stop()
        self._wait()
        # Nothing is left to save; a last signal while Python winds up would hide what the run has said.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if code := self._child.process.wait():
            raise RunFailed(self._child.last_words or f"the run ended with exit code {code}")

    def checkpoint(self) -> Any:
        """Let the run save itself; return what submitit is to requeue, None if there is nothing left to do."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        if self._wait() == 0:
            return None
        return DelayedSubmission(SlurmJob(self.directory))

    def _give_way(self, _number: int, _frame: FrameType | None) -> None:
        self._leaving = True
        self._stop()

    def _stop(self) -> None:
        if self._child is not None:
            ask_to_stop(self.directory, self._child.process.pid)

    def _wait(self) -> int | None:
        """Wait for the child without taking its exit code away; return it.

        Popen.wait holds a lock, for which a signal's handler would wait forever while it interrupts the same call.
        """
        if self._child is None:
            return None
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_PID, self._child.process.pid, os.WEXITED | os.WNOWAIT)
            return ended.si_status if ended else None
        return self._child.process.returncode

    def _await_the_dead(self) -> None:
        """Wait for the claim of this run's last process to fall silent, if it was killed on another node."""
        until = time.monotonic() + 2 * SILENCE_SECONDS
        while holder(self.directory) and time.monotonic() < until and not self._leaving:
            time.sleep(1.0)
