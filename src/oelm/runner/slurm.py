"""The runs of a study on a Slurm cluster: one job each, submitted in arrays, watched until they are done.

Jobs live without whoever submitted them. The runner that watches submits the next stage when one has ended, and submits
again what Slurm lost; it can be stopped and called again at any time, because what it needs to know lies in the run
directories and in Slurm's queue. Several may watch one study: only one at a time submits.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from oelm.errors import RunLocked, UsageError
from oelm.files import write_atomically
from oelm.record.schema import RunRecord
from oelm.record.store import SPEC
from oelm.runner.cancel import cancelled_runs, withdraw
from oelm.runner.claim import claimed
from oelm.runner.display import reason, result_of, shown
from oelm.runner.queue import Board, Entry, checked, directory_of
from oelm.runner.slurm_job import SlurmJob
from oelm.runner.slurm_queue import ASK_SECONDS, JobRecord, read_job, slurm, write_job
from oelm.spec.run import RunSpec, declared, fingerprint
from oelm.spec.slurm import SlurmSpec

FOLDER = ".slurm"
"""Where submitit keeps its pickles, scripts and logs, below the study's root."""
LOOK_SECONDS = 1.0
RESUBMISSIONS = 3
"""How often a run is submitted again whose job ended before it did: a node that failed, a scancel, a short grace."""
GRACE_SECONDS = 120
"""How long before the time limit a run is asked to save itself."""
REQUEUES = 100
"""How often one job may reach its time limit; each time the run has got further."""


class SlurmRunner:
    """Gives to Slurm what is not done of a study, and watches over it."""

    def __init__(
        self,
        board: Board,
        wish: SlurmSpec,
        *,
        slots: int | None = None,
        retries: int = 0,
        console: Console | None = None,
    ) -> None:
        self.board, self.wish = board, wish
        self.slots, self.retries = checked(slots, retries)
        self.console = console or Console()
        self._folder = board.root.absolute() / FOLDER
        self._watched: set[str] = set()
        self._given_up: set[Path] = set()
        self._failed: Counter[Path] = Counter()
        self._lost: Counter[Path] = Counter()
        self._before: dict[Path, RunRecord | None] = {}  # what a run had left when its job was submitted
        self._asked = 0.0
        self._cancelled: list[RunSpec] = []

    def run(self) -> int:
        """Watch until nothing is left to do; return how many runs are left undone. Ctrl-C ends the watching only."""
        for command in ("sbatch", "srun"):
            slurm(command, "--version")
        slurm("sinfo", "--noheader")
        self._withdraw_cancellations()
        try:
            with shown(self.board, self.console, self._waiting_for) as refresh:
                while self._step():
                    refresh()
                    time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            self._say_what_goes_on()
            raise
        return self.board.count("failed", "interrupted", "waiting", "queued")

    def _withdraw_cancellations(self) -> None:
        """Let runs go on that `oelm cancel` stopped before this call."""
        withdraw(self.board)
        for entry in self.board.entries:
            record = read_job(directory_of(entry)) if not entry.trouble else None
            if record and record.cancelled:
                write_job(directory_of(entry), record.model_copy(update={"cancelled": False}))
                self.board.refresh(entry)

    def _step(self) -> bool:
        """Look at everything, submit what is to be submitted; return whether there is more to do."""
        if time.monotonic() - self._asked >= ASK_SECONDS:
            self._asked = time.monotonic()
            self.board.slurm.ask([entry.job.id for entry in self._unsettled() if entry.job])
        self._cancelled = cancelled_runs(self.board)
        for entry in self._unsettled():
            self._noted(self.board.refresh(entry))
        if startable := [entry for entry in self._unsettled() if self._startable(entry)]:
            self._submit(startable)
        if any(map(self._is_open, self._unsettled())):
            return True
        if self.board.advance():
            self.console.print(self.board.news, highlight=False)
            return True
        return False

    def _unsettled(self) -> list[Entry]:
        return [e for e in self.board.entries if not e.trouble and e.state not in ("complete", "diverged")]

    def _is_open(self, entry: Entry) -> bool:
        """Whether something may still become of an unsettled run."""
        may_live = entry.job is not None and not entry.job.has_ended
        return entry.state == "running" or may_live or self._startable(entry)

    def _startable(self, entry: Entry) -> bool:
        """Whether to submit a run; never while a job for it may live."""
        idle = entry.state in ("waiting", "interrupted", "failed") and not entry.trouble
        if not idle or entry.run in self._cancelled:
            return False
        return (entry.job is None or entry.job.has_ended) and directory_of(entry) not in self._given_up

    def _noted(self, entry: Entry) -> None:
        """Say what has become of a run since the last look, and decide whether it gets another job."""
        if entry.state in ("complete", "diverged"):
            self._say(entry, result_of(entry))
            return
        job, directory = entry.job, directory_of(entry)
        if job is None or entry.state == "running":
            return
        if job.is_live:
            self._watched.add(job.id)
            return
        if not job.has_ended or job.id not in self._watched:
            return
        self._watched.remove(job.id)
        if job.cancelled or entry.run in self._cancelled:
            self._given_up.add(directory)
            self._say(entry, f"job {job.id} was stopped by oelm cancel; the same command continues it")
        elif job.state == "OUT_OF_MEMORY" or (entry.state == "failed" and entry.record != self._before.get(directory)):
            self._failed[directory] += 1
            again = self._failed[directory] <= self.retries
            hint = "; ask for more --slurm.memory" if job.state == "OUT_OF_MEMORY" else ""
            self._decided(entry, f"failed: {reason(entry) or job}{hint}", again=again)
        else:
            self._lost[directory] += 1
            self._decided(entry, f"{job} before its run was done", again=self._lost[directory] <= RESUBMISSIONS)

    def _decided(self, entry: Entry, what: str, *, again: bool) -> None:
        if not again:
            self._given_up.add(directory_of(entry))
        log = f"{FOLDER}/{entry.job.id}_0_log.err" if entry.job else FOLDER
        then = "submitting it again" if again else "giving up"
        self._say(entry, f"{what}; {then} (see {directory_of(entry)} and {self.board.root / log})")

    def _submit(self, entries: Sequence[Entry]) -> None:
        """Submit runs, one array for all that need the same, unless another runner is just doing so."""
        try:
            with claimed(self._folder):
                if not self.board.slurm.ask([job.job for entry in entries if (job := read_job(directory_of(entry)))]):
                    return
                fresh = [self.board.refresh(entry) for entry in entries]
                self._cancelled = cancelled_runs(self.board)
                groups: dict[tuple[int, int], list[Entry]] = {}
                for entry in fresh:
                    if self._startable(entry):
                        groups.setdefault(_needs(entry.run), []).append(entry)
                for needs, group in groups.items():
                    self._submit_array(group, *needs)
        except RunLocked:
            return

    def _submit_array(self, entries: Sequence[Entry], cpus: int, gpus: int) -> None:
        """Submit runs that need the same, so limited that never more than `slots` jobs are at work.

        What is still with Slurm counts against the limit, at work or not: two arrays know nothing of one another.
        """
        live = sum(bool(entry.job and entry.job.is_live) for entry in self.board.entries)
        if self.slots is not None and live >= self.slots:
            return
        limit = len(entries) if self.slots is None else self.slots - live
        for entry in entries:
            self.board.register(entry)
            write_atomically(directory_of(entry) / SPEC, entry.run.model_dump_json(indent=1) + "\n")
        with _without_interruption():  # what was submitted must be written down
            jobs = self._submitted([SlurmJob(directory_of(entry).absolute()) for entry in entries], cpus, gpus, limit)
            for entry, job in zip(entries, jobs, strict=True):
                write_job(directory_of(entry), JobRecord(job=job, run=fingerprint(declared(entry.run))))
                self._before[directory_of(entry)] = entry.record
                self.board.slurm.add(job)
                self._watched.add(job)
                self.board.refresh(entry)
        numbers = f"job {jobs[0]}" if len(jobs) == 1 else f"jobs {jobs[0]} to {jobs[-1]}"
        self.console.print(f"submitted to Slurm: {_runs(len(jobs))}, {numbers}", highlight=False)

    def _submitted(self, jobs: Sequence[SlurmJob], cpus: int, gpus: int, limit: int) -> list[str]:
        """Let submitit submit; return Slurm's numbers of the jobs."""
        try:
            import submitit
        except ImportError as error:
            raise UsageError(
                "--slurm needs submitit, which is not installed here. Try: pip install '.[slurm]'."
            ) from error
        wish = self.wish
        wanted: dict[str, Any] = {
            "job_name": f"oelm-{self.board.study.name}",
            "partition": wish.partition,
            "account": wish.account,
            "time": wish.time,
            "mem": f"{round(wish.memory * 1024)}M" if wish.memory else None,
            "gres": f"gpu:{wish.gpu}:{gpus}" if wish.gpu and gpus else f"gpu:{gpus}" if gpus else None,
            "cpus_per_task": cpus,
            "srun_args": [f"--cpus-per-task={cpus}"],  # since 22.05 srun does not take it from sbatch
            "ntasks_per_node": 1,
            "signal_delay_s": GRACE_SECONDS,
            "array_parallelism": limit,
            "additional_parameters": {"requeue": True},  # some clusters forbid it unless it is asked for
        }
        executor = submitit.SlurmExecutor(self._folder, max_num_timeout=REQUEUES)
        executor.update_parameters(**{name: value for name, value in wanted.items() if value is not None})
        try:
            with executor.batch():
                given = [executor.submit(job) for job in jobs]
        except submitit.core.utils.FailedJobError as error:
            lines = [line for line in str(error).splitlines() if "sbatch: error" in line] or [str(error)]
            raise UsageError(
                f"Slurm did not take {_runs(len(jobs))}: {' '.join(lines)}. Nothing is lost: change the --slurm "
                "options (sinfo shows partitions and their limits) and call again."
            ) from error
        return [str(job.job_id) for job in given]

    def _waiting_for(self) -> str:
        if trouble := self.board.slurm.trouble:
            return f"{trouble} Jobs go on without us; looking again every {ASK_SECONDS:.0f} s."
        queued = [entry.job for entry in self.board.entries if entry.state == "queued" and entry.job]
        reasons = ", ".join(sorted({job.reason if job.is_waiting else "starting" for job in queued}))
        return f"{len(queued)} queued in Slurm: {reasons}" if queued else ""

    def _say_what_goes_on(self) -> None:
        live = sum(bool(entry.job and entry.job.is_live) for entry in self._unsettled())
        self.console.print(
            f"stopped watching. {live} jobs are still with Slurm and go on: oelm status shows them, oelm cancel stops "
            "them, the same command watches again and submits what is left.",
            highlight=False,
            soft_wrap=True,
        )

    def _say(self, entry: Entry, words: str) -> None:
        self.console.print(f"{entry.name}: {words}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _without_interruption() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _needs(run: RunSpec) -> tuple[int, int]:
    """Return how many cores and how many GPUs a run needs."""
    gpus = run.train.processes if run.train.device == "cuda" else 0
    return run.train.threads * run.train.processes, gpus
