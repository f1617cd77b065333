"""The runs of a study on this machine: one process each, as many at a time as fit its cores or its free GPUs.

How many threads a run has is part of the run, because sums depend on them; so the scheduler never changes it, and waits
for room instead. Several runners may work on one study: what another one is at is left to it, and taken up if it dies.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from oelm.errors import UsageError
from oelm.files import write_atomically
from oelm.record.store import SPEC
from oelm.runner.branch import awaits
from oelm.runner.cancel import cancelled_runs, withdraw
from oelm.runner.child import Child, start
from oelm.runner.claim import Claim, ask_to_stop, claims_here
from oelm.runner.devices import Gpus
from oelm.runner.display import reason, result_of, shown
from oelm.runner.queue import Board, Entry, checked, directory_of
from oelm.spec.run import RunSpec

POLL_SECONDS = 0.1
ELSEWHERE_SECONDS = 1.0
"""How often to look at the runs that others are at."""
GPU_SECONDS = 2.0
"""How often to ask whether a GPU is free."""
LONG_AGO = float("-inf")


@dataclass
class Slot:
    """A run that this runner is carrying out, and the GPUs it has."""

    entry: Entry
    child: Child
    gpus: tuple[str, ...] = ()
    asked: bool = False
    """Whether it was asked to stop because it is cancelled."""

    @property
    def directory(self) -> Path:
        """Where the run is."""
        return directory_of(self.entry)


class LocalRunner:
    """Carries out what is not done of a study."""

    def __init__(
        self,
        board: Board,
        *,
        slots: int | None = None,
        retries: int = 0,
        console: Console | None = None,
        gpus: Callable[[], Gpus] = Gpus,
    ) -> None:
        self.board = board
        self.slots, self.retries = checked(slots, retries)
        self.console = console or Console()
        self._make_gpus = gpus
        self._gpus: Gpus | None = None
        self._working: list[Slot] = []
        self._tries: dict[Path, int] = {}
        self._looked = self._asked = LONG_AGO
        self._claims: list[Claim] = []
        self._cancelled: list[RunSpec] = []
        self._waiting_for = ""
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def run(self) -> int:
        """Work until nothing is left to do; return how many runs are left undone.

        Ctrl-C, SIGTERM or a closed terminal ask every run to save itself, and wait for them.
        """
        withdraw(self.board)
        before = {number: signal.signal(number, _interrupt) for number in _asked_to_stop()}
        try:
            with shown(self.board, self.console, lambda: self._waiting_for) as refresh:
                while self._step():
                    refresh()
                    time.sleep(POLL_SECONDS)
        except BaseException:  # whatever ends the runner, no run is left behind without one
            self._stop()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.board.count("failed", "interrupted", "waiting", "queued")

    def _step(self) -> bool:
        """Collect what has ended, start what fits; return whether there is more to do."""
        if self._collect():
            # What has ended holds no core and no GPU any more, and may have been cancelled: what was seen is old.
            self._looked = self._asked = LONG_AGO
        self._look_elsewhere()
        self._fill()
        if self._working or any(entry.state == "running" for entry in self.board.entries):
            return True
        if any(self._startable(entry) for entry in self.board.entries):
            return True
        if self.board.advance():
            self.console.print(self.board.news, highlight=False)
            return True
        return False

    def _startable(self, entry: Entry) -> bool:
        """Whether to start a run: what failed before gets a new chance, but within one call only `retries` more."""
        open_to_us = entry.state in ("waiting", "interrupted", "failed") and not entry.trouble
        if not open_to_us or entry.run in self._cancelled:
            return False
        return self._tries.get(directory_of(entry), 0) <= self.retries

    def _awaits_trunk(self, entry: Entry) -> bool:
        """Whether a longer run, running or to be started, will keep the checkpoint that this one can begin with."""
        return any(
            awaits(entry.run, other) and (other.state == "running" or self._startable(other) or self._has_slot(other))
            for other in self.board.entries
            if other is not entry
        )

    def _has_slot(self, entry: Entry) -> bool:
        return any(slot.directory == entry.directory for slot in self._working)

    def _fill(self) -> None:
        for entry in list(self.board.entries):
            if self._has_slot(entry) or not self._startable(entry) or self._awaits_trunk(entry):
                continue
            gpus = self._room_for(entry.run)
            if gpus is None:
                return
            self._cancelled = cancelled_runs(self.board)  # read again: a wish since the last look is not to be late
            if self._startable(entry):
                self._start(entry, gpus)
        self._waiting_for = ""  # whoever could be started has been

    def _room_for(self, run: RunSpec) -> tuple[str, ...] | None:
        """Return the GPUs to take (none on a CPU), or None while there is no room."""
        has_slot = self.slots is None or len(self._working) < self.slots
        if has_slot and run.train.device == "cuda":
            return self._free_gpus(run.train.processes)  # which says whom it waits for, and is asked now and then
        self._waiting_for = ""
        if not has_slot:
            return None
        mine = [slot.entry.run.train for slot in self._working]
        ours = {slot.directory for slot in self._working}
        others = [claim.threads for claim in self._claims if claim.path.parent not in ours]
        busy = sum(train.threads * train.processes for train in mine) + sum(others)
        wanted = run.train.threads * run.train.processes
        return () if self.slots or not busy or busy + wanted <= self._cores else None

    def _free_gpus(self, count: int) -> tuple[str, ...] | None:
        if time.monotonic() - self._asked < GPU_SECONDS:
            return None
        if self._gpus is None:
            self._gpus = self._make_gpus()
        taken = (uuid for claim in self._claims for uuid in claim.device.split(","))  # by a run that only just begins
        ours = {uuid for slot in self._working for uuid in slot.gpus} | set(taken)
        visible = self._gpus.visible()
        if count > len(visible):
            raise UsageError(f"a run asks for {count} GPUs, and there are {len(visible)} to be seen here.")
        free = self._gpus.free(ours)
        if len(free) >= count:
            return tuple(gpu.uuid for gpu in free[:count])
        self._asked = time.monotonic()
        others = [gpu.occupation for gpu in visible if gpu.uuid not in ours and not gpu.is_free]
        if others:
            self._waiting_for = f"waiting for {count} free GPU{'s' if count > 1 else ''}: " + "; ".join(others)
        return None

    def _start(self, entry: Entry, gpus: tuple[str, ...]) -> None:
        directory = directory_of(entry)
        self.board.register(entry)
        self._tries[directory] = self._tries.get(directory, 0) + 1
        write_atomically(directory / SPEC, entry.run.model_dump_json(indent=1) + "\n")
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        self._working.append(Slot(entry, start(entry.run, directory, devices), gpus))

    def _collect(self) -> bool:
        """Take in what has ended; return whether something has."""
        ended = [slot for slot in self._working if slot.child.process.poll() is not None]
        for slot in ended:
            self._working.remove(slot)
            entry = self.board.refresh(slot.entry)
            if entry.state in ("complete", "diverged"):
                self._say(entry, result_of(entry))
            elif entry.state == "running":
                self._tries[slot.directory] -= 1  # not ours to try: another runner was quicker, and may still fail
                self._say(entry, "another runner is at it")
            else:
                self._say(entry, f"{entry.state}: {self._why(slot, entry)} (see {slot.directory})")
        return bool(ended)

    def _why(self, slot: Slot, entry: Entry) -> str:
        is_of_this_attempt = entry.record != slot.entry.record
        if is_of_this_attempt and (why := reason(entry)):
            return why
        if slot.asked:
            return "stopped by oelm cancel before it began"
        code = slot.child.process.returncode
        if code == -signal.SIGKILL:
            return "killed (signal 9); out of memory is the usual reason"
        return slot.child.last_words or f"exit code {code}"

    def _look_elsewhere(self) -> None:
        """Look at what others are at, and at what of ours has shown no sign yet."""
        if time.monotonic() - self._looked < ELSEWHERE_SECONDS:
            return
        self._looked = time.monotonic()
        self._claims = claims_here(self.board.root.parent)
        self._cancelled = cancelled_runs(self.board)
        for entry in list(self.board.entries):
            if entry.state not in ("complete", "diverged") and not entry.trouble:
                self.board.refresh(entry)
        for slot in self._working:
            if slot.entry.run in self._cancelled and not slot.asked:
                self._ask(slot)

    def _ask(self, slot: Slot) -> None:
        """Ask a run to save itself and stop."""
        slot.asked = True
        ask_to_stop(slot.directory, slot.child.process.pid)

    def _stop(self) -> None:
        if not self._working:
            return
        self.console.print("asking the runs to save themselves ...")
        for slot in self._working:
            self._ask(slot)
        for slot in self._working:
            slot.child.process.wait()
        # The record tells, not the exit code: torchrun has one of its own. What left no record had nothing to lose.
        records = [self.board.refresh(slot.entry).record for slot in self._working]
        lost = sum(record is not None and record.status in ("running", "failed") for record in records)
        failing = f"{lost} of {len(records)} could not save themselves (see their stderr.log)"
        self.console.print(f"{failing if lost else 'all saved'}; the same command continues.")

    def _say(self, entry: Entry, words: str) -> None:
        self.console.print(f"{entry.name}: {words}", markup=False, highlight=False, soft_wrap=True)


def _asked_to_stop() -> list[signal.Signals]:
    return [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
