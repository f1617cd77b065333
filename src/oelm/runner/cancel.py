"""Ask the runs of a study to stop, wherever they are at work."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from oelm.errors import SlurmUnreachable
from oelm.files import write_atomically
from oelm.runner.claim import Claim
from oelm.runner.queue import Board, Entry
from oelm.runner.slurm_queue import Job, read_job, slurm, write_job
from oelm.spec.run import RunSpec, declared, fingerprint

CANCELLED = "cancelled.json"
"""In a study's folder: the runs that no runner is to start, or to let go on, until one is called for them again."""


def cancel(board: Board) -> list[str]:
    """Ask every run at work to save itself, take back every queued one; return in words what was done about each.

    Those that wait are not to follow them, nor are those to begin that only just start, or wait for a GPU, and show no
    sign of it: runners see the mark, which is withdrawn when one is called for them again.
    """
    left = [entry.run for entry in board.entries if entry.state not in ("complete", "diverged")]
    if left and board.root.is_dir():  # before there is a folder nobody can be at work in it
        marked = _marks(board.root) | {fingerprint(declared(run)) for run in left}
        write_atomically(board.root / CANCELLED, json.dumps(sorted(marked)) + "\n")
    entries = [entry for entry in board.entries if entry.state in ("running", "queued")]
    answers = [_asked(entry, entry.claim) for entry in entries if entry.claim and not _by_slurm(entry)]
    jobs = [(entry, entry.job) for entry in entries if entry.job and entry.job.is_live]
    for entry, _ in jobs:
        _marked(entry)
    waiting = [(entry, job) for entry, job in jobs if job.is_waiting]
    started = [(entry, job) for entry, job in jobs if not job.is_waiting]
    try:
        if waiting:
            slurm("scancel", *_ids(waiting))
            answers += [f"{entry.name}: took job {job.id} out of Slurm's queue." for entry, job in waiting]
        if started:  # a signal alone: scancel would kill whoever takes longer to save than the cluster's KillWait
            slurm("scancel", "--signal=TERM", *_ids(started))
            answers += [f"{entry.name}: asked job {job.id} to save itself and stop." for entry, job in started]
    except SlurmUnreachable as error:
        board.slurm.trouble = str(error)
    if board.slurm.trouble:
        answers.append(f"{board.slurm.trouble} What it has in hand goes on; try again when it answers.")
    return answers


def cancelled_runs(board: Board) -> list[RunSpec]:
    """Return the runs that are not to be started."""
    marked = _marks(board.root)
    return [entry.run for entry in board.entries if fingerprint(declared(entry.run)) in marked] if marked else []


def is_cancelled(root: Path, run: RunSpec) -> bool:
    """Whether one run of a study's folder is not to be started."""
    return fingerprint(declared(run)) in _marks(root)


def withdraw(board: Board) -> None:
    """Let a study's runs be started again that were cancelled before: those that are asked for, where some are."""
    asked = {fingerprint(declared(entry.run)) for entry in board.entries}
    if left := _marks(board.root) - asked if board.only else ():
        write_atomically(board.root / CANCELLED, json.dumps(sorted(left)) + "\n")
    else:  # all of them, also those of a stage that is not yet reached
        (board.root / CANCELLED).unlink(missing_ok=True)


def _marks(root: Path) -> set[str]:
    try:
        return set(json.loads((root / CANCELLED).read_text()))
    except (OSError, ValueError, TypeError):  # no mark, or one that someone has edited: nothing is held back by it
        return set()


def _by_slurm(entry: Entry) -> bool:
    """Whether the process at work is the run's job, and not somebody's beside a job that still waits."""
    return bool(entry.job and entry.job.is_live and not entry.job.is_waiting)


def _ids(jobs: Sequence[tuple[Entry, Job]]) -> list[str]:
    return [job.id for _, job in jobs]


def _marked(entry: Entry) -> None:
    """Note the wish before Slurm is told, for whoever watches and for a job that is just starting."""
    record = read_job(entry.directory) if entry.directory else None
    if record and entry.directory:
        write_job(entry.directory, record.model_copy(update={"cancelled": True}))


def _asked(entry: Entry, claim: Claim) -> str:
    if not claim.is_here:
        return f"{entry.name}: at work on {claim.host}, out of reach; its runner there sees the wish, or cancel there."
    try:
        os.kill(claim.pid, signal.SIGTERM)
    except ProcessLookupError:
        return f"{entry.name}: has just ended by itself."
    except PermissionError:
        return f"{entry.name}: process {claim.pid} is another user's; ask them."
    return f"{entry.name}: asked process {claim.pid} to save itself and stop."
