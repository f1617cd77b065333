"""The Slurm jobs of a study's runs, and their states.

A run folder keeps the number of its job in `job.json`. One call asks about all jobs of a study, because all users share
the cluster's controller. If the controller does not answer, nothing is concluded from that.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oelm.errors import SlurmUnreachable
from oelm.record.folder import RunFolder

ASK_SECONDS = 5.0
"""How often a watching runner asks."""
ANSWER_SECONDS = 30.0
"""How long to wait for an answer: clients of a controller that is down retry for a while."""
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING")
_ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """The Slurm job of a run, and its state."""

    id: str
    state: str = "UNKNOWN"
    """Slurm's own word; UNKNOWN if it has not answered yet, GONE if it no longer knows the job."""
    reason: str = ""
    """Why it waits, or on which node it runs."""
    cancelled: bool = False

    @property
    def is_live(self) -> bool:
        """Whether the job is in Slurm's queue or running."""
        return not self.has_ended and self.state != "UNKNOWN"

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in (*_ENDED, "GONE")

    @property
    def is_waiting(self) -> bool:
        """Whether the job has not started yet."""
        return self.state in _WAITING

    def __str__(self) -> str:
        words = "starting" if self.state == "RUNNING" else self.state.lower().replace("_", " ")
        return f"job {self.id} {words}{f' ({self.reason})' if self.reason else ''}"


class SlurmQueue:
    """The jobs of one study. Slurm is only called if some run was given to it."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.trouble: str | None = None
        """Why Slurm did not answer."""
        self._found: dict[str, Job] = {}
        self._numbers: set[str] = set()
        self.ask(ids)

    def ask(self, ids: Sequence[str]) -> bool:
        """Ask about some jobs in one call; return whether Slurm answered. If it did not, the last answer is kept."""
        if not ids:
            return self.trouble is None
        form = "--format=%i|%T|%r|%N"
        numbers = sorted({number.partition("_")[0] for number in ids})
        try:
            lines = slurm("squeue", "--noheader", "--array", "--states=all", form, f"--jobs={','.join(numbers)}")
        except SlurmUnreachable as error:
            self.trouble = str(error)
            return False
        self.trouble = None
        self._numbers |= set(numbers)
        listed = {job.id: job for job in map(_parse, lines.splitlines()) if job}
        others = {number: job for number, job in self._found.items() if number.partition("_")[0] not in numbers}
        self._found = others | listed
        return True

    def add(self, number: str) -> None:
        """Add a job that has just been submitted."""
        self._found[number] = Job(number, "PENDING", "just submitted")

    def of(self, directory: Path) -> Job | None:
        """Return the job of a run, in the state of Slurm's last answer."""
        record = RunFolder(directory).read_job()
        if record is None:
            return None
        asked = record.job.partition("_")[0] in self._numbers
        job = self._found.get(record.job, Job(record.job, "GONE" if asked else "UNKNOWN"))
        return Job(job.id, job.state, job.reason, record.cancelled)


def slurm(*words: str) -> str:
    """Call one of Slurm's commands; return its output. Jobs that Slurm no longer knows are not an error."""
    if shutil.which(words[0]) is None:
        raise SlurmUnreachable(
            f"There is no command {words[0]} on this machine. Run this on a login node of the cluster."
        )
    try:
        done = subprocess.run(  # noqa: S603  (fixed commands)
            words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmUnreachable(f"Slurm does not answer: {words[0]} gave up after {ANSWER_SECONDS:.0f} s.") from None
    if done.returncode and "Invalid job id" not in done.stderr:
        lines = done.stderr.strip().splitlines()
        raise SlurmUnreachable(f"Slurm does not answer: {words[0]} says {lines[-1] if lines else done.returncode!r}.")
    return done.stdout


def _parse(line: str) -> Job | None:
    fields = line.strip().split("|")
    if len(fields) != 4:
        return None  # some sites print a greeting first
    number, state, why, node = fields
    return Job(number, state, f"on {node}" if node else "" if why == "None" else why)
