"""The state of every run of a study: complete, running (here or elsewhere), queued in Slurm, waiting, failed.

The run folders are the only storage; the board is computed from them and can be computed again at any time. It also
asks runs to stop, wherever they are running.

The run folder of a queued run keeps the number of its Slurm job in `job.json`. One call asks about all jobs of a study,
because all users share the cluster's controller. If the controller does not answer, nothing is concluded from that.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from oelm.analysis.content import content_margin
from oelm.analysis.scaling import write_prediction
from oelm.errors import BadRecord, OelmError, RunLocked, SlurmUnreachable, UnknownName, UsageError
from oelm.files import add_checksum, write_atomically
from oelm.record.folder import (
    CHECKPOINTS,
    CLAIM,
    LOOKS,
    PREDICTION,
    RECORD,
    RunFolder,
    find_jobs,
    find_records,
    read_cancelled,
    read_record,
    run_directory,
    write_cancelled,
)
from oelm.record.record import RunRecord, refuse_link, utc_now
from oelm.record.registration import is_registrable, register_study
from oelm.record.stages import CHOICE, Stage, index_by_key, is_settled, sort_by_precedence, stage_of
from oelm.runs.lock import Lock, hold_lock, read_dead_lock, read_holder
from oelm.spec.run import NUMERICS, RunSpec, declared_fingerprint, fingerprint, in_precision_of
from oelm.spec.study import AnyStudy, Study, field_at

# The Slurm jobs of runs, and their states.

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


# The board.


class Neighbours:
    """The runs in the folders of other studies next to one study's root. The same fingerprint is the same run."""

    def __init__(self, root: Path) -> None:
        self._found: dict[str, list[Path]] = {}
        for path in sorted(root.parent.glob(f"*/*_*/{RECORD}")) if root.parent.is_dir() else []:
            if path.parent.parent != root:
                self._found.setdefault(path.parent.name.rpartition("_")[2], []).append(path.parent)

    def adopt(self, fingerprint: str, directory: Path) -> None:
        """Copy the run of this fingerprint into `directory`, if a neighbour has completed it.

        Files are hard links where the file system can, because a complete run is never written to again. Exception: a
        run without a score on the test split may be scored here, so only its checkpoints, which are never changed in
        place, are links. A run with a score is preferred.
        """
        complete: list[tuple[bool, Path]] = []
        for neighbour in self._found.get(fingerprint, []):
            with suppress(BadRecord):
                record = read_record(neighbour)
                if record.fingerprint == fingerprint and record.status == "complete":
                    complete.append((record.is_unscored, neighbour))
        if complete:
            unscored, neighbour = min(complete)
            _copy_run(neighbour, directory, _link_checkpoints if unscored else _link)


def _copy_run(source: Path, target: Path, copy: Callable[[str, str], None]) -> None:
    aside = target.parent / f".adopting-{uuid.uuid4().hex}"
    shutil.copytree(source, aside, copy_function=copy, ignore=_leave_out)
    try:
        aside.rename(target)
    except OSError:  # another runner has done it in the meantime, or the run has begun here
        shutil.rmtree(aside)


def _leave_out(folder: str, names: list[str]) -> set[str]:
    """Return what is not copied: locks, temporary files, and links, which could lead anywhere."""
    links = {name for name in names if (Path(folder) / name).is_symlink()}
    return links | shutil.ignore_patterns(f"{CLAIM}*", ".*")(folder, names)


def _link_checkpoints(source: str, target: str) -> None:
    (_link if CHECKPOINTS in Path(source).parent.parts[-2:] else shutil.copy2)(source, target)


def _link(source: str, target: str) -> None:
    if Path(source).name == LOOKS:  # lines are added to it: a look at this run would count for the other as well
        shutil.copy2(source, target)
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


SHORTEST = 6
"""Number of digits of a fingerprint that select a run."""
State = Literal["complete", "diverged", "running", "queued", "interrupted", "failed", "waiting"]


@dataclass(frozen=True)
class BoardEntry:
    """One run of the study and its state."""

    run: RunSpec
    directory: Path | None
    """None: the run has not started, and its folder is unknown until the run is resolved with its data."""
    record: RunRecord | None = None
    lock: Lock | None = None
    job: Job | None = None
    """Its Slurm job, if it was given to Slurm."""
    trouble: str | None = None
    """Why the record is unreadable or the data unavailable. Such a run is never started: no record is overwritten."""
    trial: tuple[object, ...] = ()
    """The tuned values that it tries, if it is a tuning run."""

    @property
    def name(self) -> str:
        """The run's name for people."""
        tried = " at " + ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in self.trial)
        return self.run.label or f"{self.run.arm}, seed {self.run.seed}{tried if self.trial else ''}"

    @property
    def owes_test(self) -> bool:
        """Whether the run confirms this study and is complete except for its score on the test split."""
        return self.run.scores_test and self.record is not None and self.record.is_unscored

    @property
    def state(self) -> State:
        """The state. A run whose record says "running" and that has no live process was killed: it is interrupted."""
        if self.trouble:
            return "failed"
        if self.record and is_settled(self.record) and not self.owes_test:
            return "complete" if self.record.status == "complete" else "diverged"
        if self.lock:
            return "running"
        if self.job and self.job.is_live:
            return "queued"
        if self.record is None:
            return "waiting"
        return "failed" if self.record.status == "failed" else "interrupted"


class Board:
    """The runs of a study up to its present stage.

    With `bind`, which resolves a run with its data, the board belongs to a runner: it adopts runs of other studies and
    writes the choice of the tuning stage. Without it the board only reads.
    """

    def __init__(
        self,
        study: AnyStudy,
        root: Path,
        *,
        only: tuple[str, ...] = (),
        bind: Callable[[RunSpec], RunSpec] | None = None,
    ) -> None:
        self.study, self.root, self.only, self._bind = study, root, only, bind
        found, bad = find_records(root) if root.is_dir() else ([], [])
        self.troubles = tuple(map(str, bad))
        given = find_jobs(root)
        found = sort_by_precedence(found, lambda item: item[1])
        keys = {directory: declared_fingerprint(record.spec) for directory, record in found}
        self._directories = {keys[directory]: directory for directory, record in found if record.numerics == NUMERICS}
        complete = {directory for directory, record in found if record.status == "complete"}
        for directory, job in given.items():  # a job that has not begun has no record yet
            if directory not in keys and self._directories.get(job.run) not in complete:
                self._directories[job.run] = directory
        self._fresh = dict(found)
        settled = {directory for directory, record in found if is_settled(record)}
        self.slurm = SlurmQueue([job.job for directory, job in given.items() if directory not in settled])
        self._records = index_by_key((keys[directory], record) for directory, record in found)
        self._neighbours = Neighbours(root)
        self.stage: Stage
        self.entries: list[BoardEntry]
        self.advance()
        self._fresh.clear()  # these were read for the first look; from now on the files are read again
        if only and not self.entries:
            raise UnknownName(
                "run", ", ".join(only), {run.label or run.arm for run in self.stage.runs}, "--only takes patterns, too."
            )

    def advance(self) -> bool:
        """Expand the stage that the records have reached; return whether there are new runs."""
        before = len(self.entries) if hasattr(self, "stage") else 0
        expanded = None
        while expanded != self._fingerprints():  # until the stage is that of the records which its runs have
            expanded = self._fingerprints()
            self._expand()
            for entry in self.entries:
                if self._is_stale(entry):  # made with other data than there are now, so it does not count
                    del self._records[declared_fingerprint(entry.run)]
            if self._predicts():
                write_prediction(cast("Study", self.study), self.root)
                expanded = None  # the held-back sizes may be run now
        if self.stage.choice is not None:
            path, text = self.root / CHOICE, add_checksum(self.stage.choice.model_dump_json(indent=1) + "\n")
            if self._bind and (not path.exists() or path.read_bytes() != text.encode()):
                write_atomically(path, text)
        return len(self.entries) > before

    def _expand(self) -> None:
        self.stage = stage_of(self.study, self._records)
        keyed = [(fingerprint(run), run) for run in self.stage.runs]
        self.entries = [
            replace(self._entry(key, run), trial=self._trial(run))
            for key, run in keyed
            if self._wanted(key, run) and not self.is_held_back(run)
        ]

    def is_held_back(self, run: RunSpec) -> bool:
        """Whether a runner must leave a run alone until the prediction for its size is written."""
        study = self.study
        if not self._bind or not isinstance(study, Study) or not study.held_back:
            return False
        return study.size_of(run) in study.held_back and not (self.root / PREDICTION).exists()

    def _predicts(self) -> bool:
        """Whether all other confirming runs have ended, so that the held-back sizes can be predicted."""
        held = [self.is_held_back(run) for run in self.stage.confirm]
        if not any(held):
            return False
        others = [fingerprint(run) for run, waits in zip(self.stage.confirm, held, strict=True) if not waits]
        return all(key in self._records and is_settled(self._records[key]) for key in others)

    def _trial(self, run: RunSpec) -> tuple[object, ...]:
        study = self.study
        if not isinstance(study, Study) or run.seed not in study.tuning_seeds:  # confirming runs have other seeds
            return ()
        return tuple(field_at(run, field) for field in study.tuned)

    def _fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of the record that counts, for each declared run."""
        return {key: record.fingerprint for key, record in self._records.items()}

    def _is_stale(self, entry: BoardEntry) -> bool:
        if not self._bind:
            return False
        known = self._records.get(declared_fingerprint(entry.run))
        return bool(not entry.trouble and known and known.fingerprint != fingerprint(entry.run))

    @property
    def news(self) -> str:
        """Why there are new runs, for people."""
        study = self.study
        if isinstance(study, Study) and study.held_back and (self.root / PREDICTION).exists():
            return f"{PREDICTION} has the predictions for the held-back sizes, so their runs start now."
        if self.stage.name == "tune":
            return "Some arm is best at an end of the grid, so the grid grows there for every arm."
        return f"Tuning has ended: {len(self.stage.confirm)} runs confirm the choice, each arm at its best ({CHOICE})."

    def refresh(self, entry: BoardEntry) -> BoardEntry:
        """Read the state of one run again."""
        place = next(place for place, known in enumerate(self.entries) if known.directory == entry.directory)
        fresh = replace(self._look_up(entry.run, entry.directory), trial=entry.trial)
        self.entries[place] = fresh
        if fresh.record:
            self._records[declared_fingerprint(entry.run)] = fresh.record
        return fresh

    def register(self, entry: BoardEntry) -> None:
        """Register the study before a confirming run of it starts; raise StudyChanged if another one is registered."""
        study = self.study
        if isinstance(study, Study) and is_registrable(study) and self._confirms(entry):
            # A margin that depends on what content is worth is fixed by the tuning runs, before any confirming run.
            margin = content_margin(study, self._records.values()) if study.margin == "content" else None
            register_study(self.root, study, self.stage.choice, margin)

    @property
    def confirming(self) -> list[BoardEntry]:
        """The runs of the confirming stage; none while a study is tuned."""
        return [entry for entry in self.entries if self._confirms(entry)]

    def _confirms(self, entry: BoardEntry) -> bool:
        key = declared_fingerprint(entry.run)
        return any(fingerprint(run) == key for run in self.stage.confirm)

    def count(self, *states: State) -> int:
        """Count the runs in some states."""
        return sum(entry.state in states for entry in self.entries)

    @property
    def lost(self) -> int:
        """Number of confirming runs that diverged. A diverged tuning run is an answer; a confirming one is missing."""
        confirming = {fingerprint(run) for run in self.stage.confirm}
        diverged = (entry.run for entry in self.entries if entry.state == "diverged")
        return sum(declared_fingerprint(run) in confirming for run in diverged)

    @property
    def progress(self) -> str:
        """The share of the known runs that are done: "5/7, 71 %"."""
        done, total = self.count("complete", "diverged"), len(self.entries)
        stage = f"{self.stage.name} stage: " if self.stage.tune else ""
        return f"{stage}{done}/{total}, {100 * done // max(1, total)} %"

    def _wanted(self, key: str, run: RunSpec) -> bool:
        """Whether `only` selects a run: by id, label or arm, or by the start of a fingerprint, declared or resolved."""
        known = self._directories.get(key)
        hashes = [key, known.name.rpartition("_")[2] if known else ""]
        names = (run.label or "", (run.label or "").partition("_")[0], run.arm)
        return (
            not self.only
            or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self.only)
            or any(len(word) >= SHORTEST and found.startswith(word) for found in hashes for word in self.only)
        )

    def _entry(self, key: str, run: RunSpec) -> BoardEntry:
        if self._bind:
            try:
                begun = self._records.get(key)
                run = self._bind(in_precision_of(run, begun.spec if begun else None))
            except OelmError as error:  # its data are unavailable; the other runs continue
                return BoardEntry(run, None, trouble=str(error))
            known = self._directories.get(key)
            mine = known is not None and known.name.endswith(f"_{fingerprint(run)}")
            directory = known if known is not None and mine else run_directory(self.root, run)
            if not mine and not directory.exists():
                self._neighbours.adopt(fingerprint(run), directory)
            entry = self._look_up(run, directory)
            if entry.record and entry.record.fingerprint == fingerprint(run):  # made with the same data
                self._records[key] = entry.record
            return entry
        return self._look_up(run, self._directories.get(key))

    def _look_up(self, run: RunSpec, directory: Path | None) -> BoardEntry:
        if directory is None:
            return BoardEntry(run, None)
        if directory in self._fresh and is_settled(self._fresh[directory]):
            return BoardEntry(run, directory, self._fresh[directory])  # no process changes a settled run
        return _look_up(run, directory, self.slurm)


def _look_up(run: RunSpec, directory: Path, slurm: SlurmQueue) -> BoardEntry:
    try:
        refuse_link(directory)
    except BadRecord as error:
        return BoardEntry(run, directory, trouble=str(error))
    lock = read_holder(directory)  # before the record: a run that ends in between has then written its last one
    job = slurm.of(directory)
    if not RunFolder(directory).has_record():
        return BoardEntry(run, directory, lock=lock, job=job)
    try:
        record = read_record(directory)
        if record.status == "running" and lock is None:
            record = note_killed(directory, record)
        return BoardEntry(run, directory, record, lock, job)
    except BadRecord as error:
        return BoardEntry(run, directory, lock=lock, job=job, trouble=str(error))


def note_killed(directory: Path, record: RunRecord) -> RunRecord:
    """Write into the record of a run whose process was killed here that it was; return the record that there is now.

    A process that the system kills cannot write it itself. Runs of other machines, and folders that cannot be written,
    are left alone: there the process may only be out of sight.
    """
    lock = read_dead_lock(directory)
    if lock is None:
        return record
    with suppress(RunLocked, UsageError, OSError), hold_lock(directory) as held:
        record = read_record(directory)  # another process may have been faster
        if record.status == "running":
            words = (
                f"process {lock.pid} on {lock.host} was killed without a word. The usual reason is that memory ran out "
                "(dmesg shows it), or the machine was restarted. `oelm run` or `oelm train` continues the run."
            )
            record = record.model_copy(update={"status": "interrupted", "error": words, "finished": utc_now()})
            RunFolder(directory, held.check).write_record(record)
    return record


def run_directory_of(entry: BoardEntry) -> Path:
    """Return the folder of a run that has been resolved with its data."""
    if entry.directory is None:
        raise UsageError(f"{entry.name} is not resolved with its data, so it has no folder to run in.")
    return entry.directory


def check_counts(slots: int | None, retries: int) -> tuple[int | None, int]:
    """Refuse a number of slots or retries with which nothing could start."""
    if slots is not None and slots < 1:
        raise UsageError(f"--slots {slots} leaves no run to start. Give 1 or more, or leave it out.")
    if retries < 0:
        raise UsageError(f"--retries {retries} leaves no run to start. Give 0 to start each run once, or more.")
    return slots, retries


# Cancelling: `cancelled.json` in the study's folder marks the runs that no runner may start or continue, until a runner
# is called for them again.


def cancel(board: Board) -> list[str]:
    """Ask every running run to save its state and stop, and remove queued jobs; return what was done about each run.

    Waiting runs are marked as well, and so are those that are just starting, or waiting for a GPU, and show no sign of
    it yet: runners see the mark.
    """
    left = [entry.run for entry in board.entries if entry.state not in ("complete", "diverged")]
    if left and board.root.is_dir():  # without the folder nothing can be running in it
        write_cancelled(board.root, read_cancelled(board.root) | {declared_fingerprint(run) for run in left})
    entries = [entry for entry in board.entries if entry.state in ("running", "queued")]
    answers = [_terminate(entry, entry.lock) for entry in entries if entry.lock and not _runs_in_slurm(entry)]
    jobs = [(entry, entry.job) for entry in entries if entry.job and entry.job.is_live]
    for entry, _ in jobs:  # before Slurm is asked, for runners that watch and for a job that is just starting
        folder = RunFolder(run_directory_of(entry))
        if job := folder.read_job():
            folder.write_job(job.model_copy(update={"cancelled": True}))
    waiting = [(entry, job) for entry, job in jobs if job.is_waiting]
    started = [(entry, job) for entry, job in jobs if not job.is_waiting]
    try:
        if waiting:
            slurm("scancel", *_ids(waiting))
            answers += [f"{entry.name}: removed job {job.id} from Slurm's queue." for entry, job in waiting]
        if started:  # only a signal: scancel would kill a run that takes longer to save than the cluster's KillWait
            slurm("scancel", "--signal=TERM", *_ids(started))
            answers += [f"{entry.name}: asked job {job.id} to save its state and stop." for entry, job in started]
    except SlurmUnreachable as error:
        board.slurm.trouble = str(error)
    if board.slurm.trouble:
        answers.append(f"{board.slurm.trouble} Its jobs continue. Try again when it answers.")
    return answers


def cancelled_runs(board: Board) -> list[RunSpec]:
    """Return the runs of a board that are cancelled."""
    marked = read_cancelled(board.root)
    return [entry.run for entry in board.entries if declared_fingerprint(entry.run) in marked] if marked else []


def withdraw_cancellation(board: Board) -> None:
    """Let cancelled runs be started again: those that the board selects, or all of them, also of a later stage."""
    asked = {declared_fingerprint(entry.run) for entry in board.entries}
    write_cancelled(board.root, read_cancelled(board.root) - asked if board.only else set())


def _runs_in_slurm(entry: BoardEntry) -> bool:
    """Whether the running process is the run's job, and not another process while the job still waits."""
    return bool(entry.job and entry.job.is_live and not entry.job.is_waiting)


def _ids(jobs: Sequence[tuple[BoardEntry, Job]]) -> list[str]:
    return [job.id for _, job in jobs]


def _terminate(entry: BoardEntry, lock: Lock) -> str:
    if not lock.is_here:
        return f"{entry.name}: runs on {lock.host}, out of reach. Its runner there sees the mark, or cancel it there."
    try:
        os.kill(lock.pid, signal.SIGTERM)
    except ProcessLookupError:
        return f"{entry.name}: has just ended by itself."
    except PermissionError:
        return f"{entry.name}: process {lock.pid} belongs to another user. Ask them."
    return f"{entry.name}: asked process {lock.pid} to save its state and stop."
