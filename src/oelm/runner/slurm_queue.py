"""What Slurm has in hand for a study: the job of each run, and what has become of it.

A run's directory keeps the number of its job in `job.json`. All jobs of a study are asked about in one call, since a
cluster's controller serves everybody; where it does not answer, nothing is concluded from that.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from oelm.errors import SlurmUnreachable
from oelm.files import write_atomically
from oelm.record.schema import Record

JOB = "job.json"
ASK_SECONDS = 5.0
"""How often to ask while somebody watches."""
ANSWER_SECONDS = 30.0
"""How long to wait for Slurm: a controller that is down lets its clients try for a while."""
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING")
_ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip


class JobRecord(Record):
    """The job that a run was given to last: `job.json` in the run's directory."""

    job: str
    """As Slurm writes it: 17, or 17_3 for the third of an array."""
    run: str
    """Fingerprint of the run as the study declares it: there may be no record yet that tells."""
    cancelled: bool = False
    """Whether `oelm cancel` has been at it, so that whoever watches does not submit it again."""


@dataclass(frozen=True)
class Job:
    """A run's job as Slurm sees it."""

    id: str
    state: str = "UNKNOWN"
    """Slurm's own word; UNKNOWN where it has not answered yet, GONE where it knows the job no more."""
    reason: str = ""
    """Why it waits, or where it is."""
    cancelled: bool = False

    @property
    def is_live(self) -> bool:
        """Whether Slurm still has something to do with it."""
        return not self.has_ended and self.state != "UNKNOWN"

    @property
    def has_ended(self) -> bool:
        """Whether Slurm is through with it."""
        return self.state in (*_ENDED, "GONE")

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it is running yet."""
        return self.state in _WAITING

    def __str__(self) -> str:
        words = "starting" if self.state == "RUNNING" else self.state.lower().replace("_", " ")
        return f"job {self.id} {words}{f' ({self.reason})' if self.reason else ''}"


class SlurmQueue:
    """The jobs of one study. Empty, and silent, where no run was ever given to Slurm."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.trouble: str | None = None
        """Why Slurm could not be asked, in words."""
        self._found: dict[str, Job] = {}
        self._numbers: set[str] = set()
        self.ask(ids)

    def ask(self, ids: Sequence[str]) -> bool:
        """Ask about some jobs at once; return whether Slurm answered. What was known before is kept if it did not."""
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
        listed = {job.id: job for job in map(_parsed, lines.splitlines()) if job}
        others = {number: job for number, job in self._found.items() if number.partition("_")[0] not in numbers}
        self._found = others | listed
        return True

    def add(self, number: str) -> None:
        """Take in a job that has just been submitted."""
        self._found[number] = Job(number, "PENDING", "just submitted")

    def of(self, directory: Path) -> Job | None:
        """Return the job of a run, as of the last time that Slurm was asked."""
        record = read_job(directory)
        if record is None:
            return None
        asked = record.job.partition("_")[0] in self._numbers
        job = self._found.get(record.job, Job(record.job, "GONE" if asked else "UNKNOWN"))
        return Job(job.id, job.state, job.reason, record.cancelled)


def slurm(*words: str) -> str:
    """Call one of Slurm's commands; return what it printed. Jobs that it knows no more are no error."""
    if shutil.which(words[0]) is None:
        raise SlurmUnreachable(
            f"there is no command {words[0]} on this machine; Slurm's commands are on a cluster's login nodes."
        )
    try:
        done = subprocess.run(  # noqa: S603  (a command of our own)
            words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmUnreachable(
            f"Slurm does not answer: {words[0]} has waited {ANSWER_SECONDS:.0f} s in vain."
        ) from None
    if done.returncode and "Invalid job id" not in done.stderr:
        lines = done.stderr.strip().splitlines()
        raise SlurmUnreachable(f"Slurm does not answer: {words[0]} says {lines[-1] if lines else done.returncode!r}.")
    return done.stdout


def read_job(directory: Path) -> JobRecord | None:
    """Read which job a run was given to; None if to none, or if somebody has edited the file beyond reading."""
    try:
        return JobRecord.model_validate_json((directory / JOB).read_text())
    except (OSError, ValidationError):
        return None


def write_job(directory: Path, record: JobRecord) -> None:
    """Write down which job a run was given to."""
    write_atomically(directory / JOB, record.model_dump_json() + "\n")


def find_jobs(root: Path) -> dict[Path, JobRecord]:
    """Return the runs of a study that were given to Slurm: their directories, and the jobs."""
    found = {path.parent: read_job(path.parent) for path in root.glob(f"*/{JOB}")}
    return {directory: record for directory, record in found.items() if record}


def _parsed(line: str) -> Job | None:
    fields = line.strip().split("|")
    if len(fields) != 4:
        return None  # some sites greet before they answer
    number, state, why, node = fields
    return Job(number, state, f"on {node}" if node else "" if why == "None" else why)
