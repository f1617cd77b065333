"""Carry out the runs of a study on a Slurm cluster: one job each, submitted in arrays, watched until they are done.

Jobs do not depend on the process that submitted them. The watching runner submits the next stage when one has ended,
and submits lost jobs again. It can be stopped and called again at any time, because its state is in the run folders and
in Slurm's queue. Several runners may watch one study; only one at a time submits.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from oelm.console import Console
from oelm.errors import RunFailed, RunLocked, UsageError
from oelm.record.folder import JobRecord, RunFolder, read_cancelled
from oelm.record.record import RunRecord
from oelm.runs.board import (
    ASK_SECONDS,
    Board,
    BoardEntry,
    cancelled_runs,
    check_counts,
    run_directory_of,
    slurm,
    withdraw_cancellation,
)
from oelm.runs.display import describe_result, explain_failure, live_display
from oelm.runs.local import Child, start_run
from oelm.runs.lock import SILENCE_SECONDS, ask_to_stop, hold_lock, read_holder
from oelm.spec.run import RunSpec, SlurmSpec, declared_fingerprint


class SlurmJob:
    """The job that Slurm starts: carries out the run whose spec is in a folder, and stops it when asked.

    submitit pickles this object when the run is submitted and calls it on the node; it holds one path and nothing else.
    The training is a child process. Slurm sends its signals to this process, and depending on its version and
    configuration to the child as well:

        SIGTERM  (scancel, preemption, `oelm cancel`): the child saves its state, then the job ends.
        SIGUSR2  (submitit's, before the time limit and on preemption): the child, which ignores it, is sent SIGTERM and
                 saves its state, then the job is requeued.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._child: Child | None = None
        self._leaving = False

    def __call__(self) -> None:
        """Carry out the run, from its checkpoint if it has one.

        Raises RunFailed unless it is complete, so that the state of the job shows it as well.
        """
        signal.signal(signal.SIGTERM, self._give_way)
        folder = RunFolder(self.directory)
        run, job = folder.read_spec(), folder.read_job()
        # A signal that came before the handler was set is lost, and `oelm cancel` may not have known of this job.
        is_cancelled = declared_fingerprint(run) in read_cancelled(self.directory.parent)
        if is_cancelled or (job is not None and job.cancelled):
            return
        self._wait_for_lock()
        if self._leaving:
            return
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])  # the child inherits it
        self._child = start_run(run, self.directory)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if self._leaving:  # asked between the last look and the start of the child
            self._stop()
        self._wait()
        # Nothing is left to save; a late signal while Python exits would hide the run's own error.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if code := self._child.process.wait():
            raise RunFailed(self._child.last_words or f"the run ended with exit code {code}")

    def checkpoint(self) -> Any:
        """Let the run save its state; return what submitit must requeue, None if nothing is left to do."""
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
        """Wait for the child and return its exit code, without consuming it.

        Popen.wait holds a mutex; a signal handler that interrupts it and waits as well would wait forever.
        """
        if self._child is None:
            return None
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_PID, self._child.process.pid, os.WEXITED | os.WNOWAIT)
            return ended.si_status if ended else None
        return self._child.process.returncode

    def _wait_for_lock(self) -> None:
        """Wait until the lock of the run's last process expires, if that was killed on another node."""
        until = time.monotonic() + 2 * SILENCE_SECONDS
        while read_holder(self.directory) and time.monotonic() < until and not self._leaving:
            time.sleep(1.0)


FOLDER = ".slurm"
"""Where submitit keeps its pickles, scripts and logs, below the study's root."""
SLURM_POLL_SECONDS = 1.0
RESUBMISSIONS = 3
"""How often a run is submitted again if its job ends before the run: a failed node, a scancel, too little time."""
GRACE_SECONDS = 120
"""How long before the time limit a run is asked to save its state."""
REQUEUES = 100
"""How often one job may reach its time limit; the run makes progress each time."""


class SlurmRunner:
    """Submits the runs of a study that are not done, and watches them."""

    def __init__(
        self,
        board: Board,
        options: SlurmSpec,
        *,
        slots: int | None = None,
        retries: int = 0,
        console: Console | None = None,
    ) -> None:
        self.board, self.options = board, options
        self.slots, self.retries = check_counts(slots, retries)
        self.console = console or Console()
        self._folder = board.root.absolute() / FOLDER
        self._watched: set[str] = set()
        self._given_up: set[Path] = set()
        self._failed: Counter[Path] = Counter()
        self._lost: Counter[Path] = Counter()
        self._before: dict[Path, RunRecord | None] = {}  # the record at the time of submission
        self._asked = 0.0
        self._cancelled: list[RunSpec] = []

    def run(self) -> int:
        """Watch until nothing is left to do; return how many runs are not done. Ctrl-C only ends the watching."""
        for command in ("sbatch", "srun"):
            slurm(command, "--version")
        slurm("sinfo", "--noheader")
        self._withdraw_cancellations()
        try:
            with live_display(self.board, self.console, self._waiting_for) as refresh:
                while self._step():
                    refresh()
                    time.sleep(SLURM_POLL_SECONDS)
        except KeyboardInterrupt:
            self._say_goodbye()
            raise
        return self.board.count("failed", "interrupted", "waiting", "queued")

    def _withdraw_cancellations(self) -> None:
        """Continue runs that `oelm cancel` stopped before this call."""
        withdraw_cancellation(self.board)
        for entry in self.board.entries:
            folder = RunFolder(run_directory_of(entry)) if not entry.trouble else None
            if folder and (job := folder.read_job()) and job.cancelled:
                folder.write_job(job.model_copy(update={"cancelled": False}))
                self.board.refresh(entry)

    def _step(self) -> bool:
        """Update all runs and submit what is missing; return whether there is more to do."""
        if time.monotonic() - self._asked >= ASK_SECONDS:
            self._asked = time.monotonic()
            self.board.slurm.ask([entry.job.id for entry in self._unsettled() if entry.job])
        self._cancelled = cancelled_runs(self.board)
        for entry in self._unsettled():
            self._report(self.board.refresh(entry))
        if startable := [entry for entry in self._unsettled() if self._startable(entry)]:
            self._submit(startable)
        if any(map(self._is_open, self._unsettled())):
            return True
        if self.board.advance():
            self.console.print(self.board.news)
            return True
        return False

    def _unsettled(self) -> list[BoardEntry]:
        return [e for e in self.board.entries if not e.trouble and e.state not in ("complete", "diverged")]

    def _is_open(self, entry: BoardEntry) -> bool:
        """Whether an unsettled run may still make progress."""
        may_live = entry.job is not None and not entry.job.has_ended
        return entry.state == "running" or may_live or self._startable(entry)

    def _startable(self, entry: BoardEntry) -> bool:
        """Whether to submit a run; never while a job for it may be alive."""
        idle = entry.state in ("waiting", "interrupted", "failed") and not entry.trouble
        if not idle or entry.run in self._cancelled:
            return False
        return (entry.job is None or entry.job.has_ended) and run_directory_of(entry) not in self._given_up

    def _report(self, entry: BoardEntry) -> None:
        """Print the changes of a run since the last look, and decide whether it gets another job."""
        if entry.state in ("complete", "diverged"):
            self._say(entry, describe_result(entry))
            return
        job, directory = entry.job, run_directory_of(entry)
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
            hint = "; give more --slurm.memory" if job.state == "OUT_OF_MEMORY" else ""
            self._decide(entry, f"failed: {explain_failure(entry) or job}{hint}", again=again)
        else:
            self._lost[directory] += 1
            self._decide(entry, f"{job} before its run was done", again=self._lost[directory] <= RESUBMISSIONS)

    def _decide(self, entry: BoardEntry, what: str, *, again: bool) -> None:
        if not again:
            self._given_up.add(run_directory_of(entry))
        log = f"{FOLDER}/{entry.job.id}_0_log.err" if entry.job else FOLDER
        then = "submitting it again" if again else "giving up"
        self._say(entry, f"{what}; {then} (see {run_directory_of(entry)} and {self.board.root / log})")

    def _submit(self, entries: Sequence[BoardEntry]) -> None:
        """Submit runs, in one array for all with the same needs, unless another runner is submitting now."""
        try:
            with hold_lock(self._folder):
                jobs = [RunFolder(run_directory_of(entry)).read_job() for entry in entries]
                if not self.board.slurm.ask([job.job for job in jobs if job]):
                    return
                fresh = [self.board.refresh(entry) for entry in entries]
                self._cancelled = cancelled_runs(self.board)
                groups: dict[tuple[int, int], list[BoardEntry]] = {}
                for entry in fresh:
                    if self._startable(entry):
                        groups.setdefault(_needs(entry.run), []).append(entry)
                for needs, group in groups.items():
                    self._submit_array(group, *needs)
        except RunLocked:
            return

    def _submit_array(self, entries: Sequence[BoardEntry], cpus: int, gpus: int) -> None:
        """Submit runs with the same needs, so that never more than `slots` jobs run at a time.

        All jobs that are queued or running count, because Slurm limits each array separately.
        """
        live = sum(bool(entry.job and entry.job.is_live) for entry in self.board.entries)
        if self.slots is not None and live >= self.slots:
            return
        limit = len(entries) if self.slots is None else self.slots - live
        for entry in entries:
            self.board.register(entry)
            RunFolder(run_directory_of(entry)).write_spec(entry.run)
        with _without_interruption():  # the numbers of submitted jobs must be written down
            jobs = self._call_submitit(
                [SlurmJob(run_directory_of(entry).absolute()) for entry in entries], cpus, gpus, limit
            )
            for entry, job in zip(entries, jobs, strict=True):
                directory = run_directory_of(entry)
                RunFolder(directory).write_job(JobRecord(job=job, run=declared_fingerprint(entry.run)))
                self._before[directory] = entry.record
                self.board.slurm.add(job)
                self._watched.add(job)
                self.board.refresh(entry)
        numbers = f"job {jobs[0]}" if len(jobs) == 1 else f"jobs {jobs[0]} to {jobs[-1]}"
        self.console.print(f"submitted to Slurm: {_runs(len(jobs))}, {numbers}")

    def _call_submitit(self, jobs: Sequence[SlurmJob], cpus: int, gpus: int, limit: int) -> list[str]:
        """Submit jobs with submitit; return Slurm's numbers for them."""
        try:
            import submitit
        except ImportError as error:
            raise UsageError("--slurm needs submitit, which is not installed. Try: pip install '.[slurm]'.") from error
        options = self.options
        wanted: dict[str, Any] = {
            "job_name": f"oelm-{self.board.study.name}",
            "partition": options.partition,
            "account": options.account,
            "time": options.time,
            "mem": f"{round(options.memory * 1024)}M" if options.memory else None,
            "gres": f"gpu:{options.gpu}:{gpus}" if options.gpu and gpus else f"gpu:{gpus}" if gpus else None,
            "cpus_per_task": cpus,
            "srun_args": [f"--cpus-per-task={cpus}"],  # since 22.05 srun does not take it from sbatch
            "ntasks_per_node": 1,
            "signal_delay_s": GRACE_SECONDS,
            "array_parallelism": limit,
            "additional_parameters": {"requeue": True},  # some clusters forbid requeueing by default
        }
        executor = submitit.SlurmExecutor(self._folder, max_num_timeout=REQUEUES)
        executor.update_parameters(**{name: value for name, value in wanted.items() if value is not None})
        try:
            with executor.batch():
                given = [executor.submit(job) for job in jobs]
        except submitit.core.utils.FailedJobError as error:
            lines = [line for line in str(error).splitlines() if "sbatch: error" in line] or [str(error)]
            raise UsageError(
                f"Slurm did not accept {_runs(len(jobs))}: {' '.join(lines)}. Nothing is lost: change the --slurm "
                "options (sinfo shows partitions and their limits) and call again."
            ) from error
        return [str(job.job_id) for job in given]

    def _waiting_for(self) -> str:
        if trouble := self.board.slurm.trouble:
            return f"{trouble} Jobs continue; asking again every {ASK_SECONDS:.0f} s."
        queued = [entry.job for entry in self.board.entries if entry.state == "queued" and entry.job]
        reasons = ", ".join(sorted({job.reason if job.is_waiting else "starting" for job in queued}))
        return f"{len(queued)} queued in Slurm: {reasons}" if queued else ""

    def _say_goodbye(self) -> None:
        live = sum(bool(entry.job and entry.job.is_live) for entry in self._unsettled())
        self.console.print(
            f"stopped watching. {live} jobs are still in Slurm and continue: oelm status shows them, oelm cancel stops "
            "them, the same command watches again and submits what is left.",
            soft_wrap=True,
        )

    def _say(self, entry: BoardEntry, words: str) -> None:
        self.console.print(f"{entry.name}: {words}", soft_wrap=True)


@contextmanager
def _without_interruption() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _needs(run: RunSpec) -> tuple[int, int]:
    """Return the numbers of cores and GPUs that a run needs."""
    gpus = run.train.processes if run.train.device == "cuda" else 0
    return run.train.threads * run.train.processes, gpus
