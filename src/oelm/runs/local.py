"""Carry out the runs of a study on this machine: one process each, as many at a time as fit the cores or free GPUs.

The number of threads is part of a run, because sums depend on it; so the scheduler never changes it and waits for free
cores instead. Several runners may work on one study: each leaves alone what another one is running, and continues it if
that runner dies.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from oelm.console import Console
from oelm.cores import available_cores
from oelm.errors import UsageError
from oelm.record.folder import RunFolder
from oelm.record.record import refuse_link
from oelm.runs.board import Board, BoardEntry, cancelled_runs, check_counts, run_directory_of, withdraw_cancellation
from oelm.runs.display import describe_result, explain_failure, live_display
from oelm.runs.lock import Lock, ask_to_stop, find_locks_here
from oelm.spec.run import RunSpec, branches_off
from oelm.train.checkpoint import branch_name

# The process of a run. The runner of this machine and Slurm jobs start it in the same way.


@dataclass(frozen=True)
class Child:
    """A started process, and the place in its run's stderr.log where its output begins."""

    process: subprocess.Popen[bytes]
    errors: Path
    begins: int

    @property
    def last_words(self) -> str:
        """The last line it wrote to stderr; empty if it wrote none."""
        with self.errors.open("rb") as file:
            file.seek(self.begins)
            lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def start_run(run: RunSpec, directory: Path, environment: Mapping[str, str] | None = None) -> Child:
    """Start the run whose spec is in a folder, with some environment variables in addition to ours.

    Its stderr is appended: two runners may start one run at the same moment, and the one that finds it locked must not
    delete the output of the other's process.
    """
    path = RunFolder(directory).errors
    refuse_link(path)
    with path.open("ab") as errors:
        begins = errors.tell()
        process = subprocess.Popen(  # noqa: S603  (a fixed command)
            child_command(run, directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": str(run.train.threads), **(environment or {})},
        )
    return Child(process, path, begins)


def child_command(run: RunSpec, directory: Path) -> list[str]:
    """Return the command that carries out a run in its folder."""
    train = ["-m", "oelm", "train", "--spec", str(RunFolder(directory).spec), "--out", str(directory), "--quiet"]
    if run.train.processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={run.train.processes}"]
        return [sys.executable, *launcher, *train]
    return [sys.executable, *train]


# Free GPUs. NVML sees every process on the machine, CUDA only its own, so NVML is asked. Runs get their GPU by its
# UUID, which is the same in both; the numbers may differ.

MEMORY_SHARE = 0.1
"""A GPU with a larger share of its memory in use is not free."""
BUSY_PERCENT = 10
"""A GPU that is busy for a larger percentage of the time is not free."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML shows it."""

    uuid: str
    name: str
    memory_used: int
    memory_total: int
    utilisation: int
    pids: tuple[int, ...]

    @property
    def is_free(self) -> bool:
        """Whether it is unused: no process computes on it, and its memory and its time are hardly used."""
        return (
            not self.pids and self.memory_used <= MEMORY_SHARE * self.memory_total and self.utilisation <= BUSY_PERCENT
        )

    @property
    def occupation(self) -> str:
        """Who is using it, for people."""
        users = ", ".join(_owner(pid) for pid in self.pids) or "no visible process"
        return f"{self.name} {self.uuid[:12]}: {self.memory_used / 2**30:.1f} GiB, {self.utilisation} % ({users})"


class Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES allows; numbers in it are those that nvidia-smi shows.

    `nvml` is the module `pynvml`, or an object with its functions.
    """

    def __init__(self, nvml: Any = None, environment: Mapping[str, str] = os.environ) -> None:
        nvml = nvml or importlib.import_module("pynvml")
        self._nvml, self._environment = nvml, environment
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise UsageError(
                f"A run needs train.device=cuda, but no NVIDIA driver answers here ({error}). Use a machine with a "
                "GPU, or set train.device=cpu."
            ) from error
        if not self.visible():
            raise UsageError(
                "A run needs train.device=cuda, but CUDA_VISIBLE_DEVICES="
                f"{environment.get('CUDA_VISIBLE_DEVICES')!r} allows no GPU. Unset it, or name one."
            )

    def visible(self) -> list[Gpu]:
        """Return the allowed GPUs, in the order in which CUDA_VISIBLE_DEVICES names them."""
        every = [self._look(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        allowed = self._environment.get("CUDA_VISIBLE_DEVICES")
        if allowed is None:
            return every
        chosen: list[Gpu] = []
        for word in (word.strip() for word in allowed.split(",")):
            named = every[int(word) : int(word) + 1] if word.isdigit() else _by_uuid(every, word)
            gpu = named[0] if len(named) == 1 else None
            if gpu is None or gpu in chosen:
                break  # as CUDA does: it ignores what follows an invalid entry
            chosen.append(gpu)
        return chosen

    def free(self, ours: Collection[str]) -> list[Gpu]:
        """Return the visible GPUs that are unused and not among ours (by UUID)."""
        return [gpu for gpu in self.visible() if gpu.uuid not in ours and gpu.is_free]

    def _look(self, index: int) -> Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        try:
            busy = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except nvml.NVMLError:  # slices of a GPU (MIG) have no such figure; their memory is enough
            busy = 0
        return Gpu(
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_used=int(memory.used),
            memory_total=int(memory.total),
            utilisation=busy,
            pids=tuple(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        )


def _by_uuid(gpus: list[Gpu], beginning: str) -> list[Gpu]:
    return [gpu for gpu in gpus if beginning.startswith("GPU-") and gpu.uuid.startswith(beginning)]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _owner(pid: int) -> str:
    with suppress(psutil.Error):
        return f"{psutil.Process(pid).username()}'s process {pid}"
    return f"process {pid}"


POLL_SECONDS = 0.1
ELSEWHERE_SECONDS = 1.0
"""How often to look at the runs of other runners."""
GPU_SECONDS = 2.0
"""How often to look for a free GPU."""
LONG_AGO = float("-inf")


@dataclass
class Slot:
    """A run that this runner is carrying out, and its GPUs."""

    entry: BoardEntry
    child: Child
    gpus: tuple[str, ...] = ()
    asked: bool = False
    """Whether it was asked to stop because it is cancelled."""

    @property
    def directory(self) -> Path:
        """The run's folder."""
        return run_directory_of(self.entry)


class LocalRunner:
    """Carries out the runs of a study that are not done."""

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
        self.slots, self.retries = check_counts(slots, retries)
        self.console = console or Console()
        self._make_gpus = gpus
        self._gpus: Gpus | None = None
        self._working: list[Slot] = []
        self._tries: dict[Path, int] = {}
        self._looked = self._asked = LONG_AGO
        self._locks: list[Lock] = []
        self._cancelled: list[RunSpec] = []
        self._waiting_for = ""
        self._cores = available_cores()

    def run(self) -> int:
        """Work until nothing is left to do; return how many runs are not done.

        Ctrl-C, SIGTERM or a closed terminal ask every run to save its state, and wait for it.
        """
        withdraw_cancellation(self.board)
        before = {number: signal.signal(number, _interrupt) for number in _stop_signals()}
        try:
            with live_display(self.board, self.console, lambda: self._waiting_for) as refresh:
                while self._step():
                    refresh()
                    time.sleep(POLL_SECONDS)
        except BaseException:  # whatever ends the runner, its runs end with it
            self._stop()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.board.count("failed", "interrupted", "waiting", "queued")

    def _step(self) -> bool:
        """Handle the runs that have ended and start those that fit; return whether there is more to do."""
        if self._collect():
            # The ended run has freed its cores and GPUs, and may have been cancelled: look again at once.
            self._looked = self._asked = LONG_AGO
        self._look_elsewhere()
        self._fill()
        if self._working or any(entry.state == "running" for entry in self.board.entries):
            return True
        if any(self._startable(entry) for entry in self.board.entries):
            return True
        if self.board.advance():
            self.console.print(self.board.news)
            return True
        return False

    def _startable(self, entry: BoardEntry) -> bool:
        """Whether to start a run: runs that failed before start again, but within one call only `retries` times."""
        may_start = entry.state in ("waiting", "interrupted", "failed") and not entry.trouble
        if not may_start or entry.run in self._cancelled:
            return False
        return self._tries.get(run_directory_of(entry), 0) <= self.retries

    def _awaits_trunk(self, entry: BoardEntry) -> bool:
        """Whether a longer run, running or to be started, will keep the checkpoint that this one can begin with."""
        return any(
            _will_keep_branch(other, entry.run)
            and (other.state == "running" or self._startable(other) or self._has_slot(other))
            for other in self.board.entries
            if other is not entry
        )

    def _has_slot(self, entry: BoardEntry) -> bool:
        return any(slot.directory == entry.directory for slot in self._working)

    def _fill(self) -> None:
        for entry in list(self.board.entries):
            if self._has_slot(entry) or not self._startable(entry) or self._awaits_trunk(entry):
                continue
            gpus = self._room_for(entry.run)
            if gpus is None:
                return
            self._cancelled = cancelled_runs(self.board)  # read again: it may have been cancelled since
            if self._startable(entry):
                self._start(entry, gpus)
        self._waiting_for = ""

    def _room_for(self, run: RunSpec) -> tuple[str, ...] | None:
        """Return the GPUs to use (none on a CPU), or None while there is no room."""
        has_slot = self.slots is None or len(self._working) < self.slots
        if has_slot and run.train.device == "cuda":
            return self._free_gpus(run.train.processes)
        self._waiting_for = ""
        if not has_slot:
            return None
        mine = [slot.entry.run.train for slot in self._working]
        ours = {slot.directory for slot in self._working}
        others = [lock.threads for lock in self._locks if lock.path.parent not in ours]
        busy = sum(train.threads * train.processes for train in mine) + sum(others)
        wanted = run.train.threads * run.train.processes
        return () if self.slots or not busy or busy + wanted <= self._cores else None

    def _free_gpus(self, count: int) -> tuple[str, ...] | None:
        if time.monotonic() - self._asked < GPU_SECONDS:
            return None
        if self._gpus is None:
            self._gpus = self._make_gpus()
        taken = (uuid for lock in self._locks for uuid in lock.device.split(","))  # of a run that is just starting
        ours = {uuid for slot in self._working for uuid in slot.gpus} | set(taken)
        visible = self._gpus.visible()
        if count > len(visible):
            raise UsageError(f"A run needs {count} GPUs, and {len(visible)} are visible here.")
        free = self._gpus.free(ours)
        if len(free) >= count:
            return tuple(gpu.uuid for gpu in free[:count])
        self._asked = time.monotonic()
        others = [gpu.occupation for gpu in visible if gpu.uuid not in ours and not gpu.is_free]
        if others:
            self._waiting_for = f"waiting for {count} free GPU{'s' if count > 1 else ''}: " + "; ".join(others)
        return None

    def _start(self, entry: BoardEntry, gpus: tuple[str, ...]) -> None:
        directory = run_directory_of(entry)
        self.board.register(entry)
        self._tries[directory] = self._tries.get(directory, 0) + 1
        RunFolder(directory).write_spec(entry.run)
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        self._working.append(Slot(entry, start_run(entry.run, directory, devices), gpus))

    def _collect(self) -> bool:
        """Report the runs that have ended; return whether there are some."""
        ended = [slot for slot in self._working if slot.child.process.poll() is not None]
        for slot in ended:
            self._working.remove(slot)
            entry = self.board.refresh(slot.entry)
            if entry.state in ("complete", "diverged"):
                self._say(entry, describe_result(entry))
            elif entry.state == "running":
                self._tries[slot.directory] -= 1  # another runner was faster, and may still fail
                self._say(entry, "another runner is running it")
            else:
                self._say(entry, f"{entry.state}: {self._why(slot, entry)} (see {slot.directory})")
        return bool(ended)

    def _why(self, slot: Slot, entry: BoardEntry) -> str:
        is_of_this_attempt = entry.record != slot.entry.record
        if is_of_this_attempt and (why := explain_failure(entry)):
            return why
        if slot.asked:
            return "stopped by oelm cancel before it began"
        code = slot.child.process.returncode
        if code == -signal.SIGKILL:
            return "killed (signal 9); out of memory is the usual reason"
        return slot.child.last_words or f"exit code {code}"

    def _look_elsewhere(self) -> None:
        """Look at the runs of other runners, at cancellations, and at our own runs that are just starting."""
        if time.monotonic() - self._looked < ELSEWHERE_SECONDS:
            return
        self._looked = time.monotonic()
        self._locks = find_locks_here(self.board.root.parent)
        self._cancelled = cancelled_runs(self.board)
        for entry in list(self.board.entries):
            if entry.state not in ("complete", "diverged") and not entry.trouble:
                self.board.refresh(entry)
        for slot in self._working:
            if slot.entry.run in self._cancelled and not slot.asked:
                self._ask(slot)

    def _ask(self, slot: Slot) -> None:
        """Ask a run to save its state and stop."""
        slot.asked = True
        ask_to_stop(slot.directory, slot.child.process.pid)

    def _stop(self) -> None:
        if not self._working:
            return
        self.console.print("asking the runs to save their state ...")
        for slot in self._working:
            self._ask(slot)
        for slot in self._working:
            slot.child.process.wait()
        # The record decides, not the exit code, since torchrun has its own. A run without a record had nothing to save.
        records = [self.board.refresh(slot.entry).record for slot in self._working]
        lost = sum(record is not None and record.status in ("running", "failed") for record in records)
        failing = f"{lost} of {len(records)} could not save their state (see their stderr.log)"
        self.console.print(f"{failing if lost else 'all saved'}; the same command continues.")

    def _say(self, entry: BoardEntry, words: str) -> None:
        self.console.print(f"{entry.name}: {words}", soft_wrap=True)


def _will_keep_branch(trunk: BoardEntry, run: RunSpec) -> bool:
    """Whether a longer run will keep the checkpoint that `run` can begin with, and has not kept it yet."""
    step = run.train.decay_start
    if step not in trunk.run.train.branch_at or not branches_off(run, trunk.run):
        return False
    return trunk.directory is None or not (RunFolder(trunk.directory).checkpoints / branch_name(step)).exists()


def _stop_signals() -> list[signal.Signals]:
    return [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
