"""Lock a run folder for one process. The lock expires when the process dies, also on a network file system.

A lock is a file `claim.N` in the folder; the one with the highest number counts. It appears complete, by a hard link,
which only one of several processes can make. While the holder lives, it touches the file every few seconds.

A lock whose holder is dead is not removed but succeeded: the next process makes `claim.N+1`. So two processes that find
the same dead lock cannot both follow it, and neither can delete the other's.

On the machine and in the container of the holder its process is looked up by its number and by the clock tick at which
it started, which setting the clock does not change. Elsewhere, and where processes of other users are hidden, a lock is
dead when it has not been touched for `SILENCE_SECONDS` by the clock of the file system, and is not touched while the
next process watches it for `WATCH_SECONDS`: after a step of the clock a live holder touches it again.

A holder that was suspended may have been succeeded. So it calls `Lock.check` before every write, and stops.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from pydantic import Field

from oelm.errors import RunLocked, UsageError
from oelm.record.folder import CLAIM
from oelm.record.record import Record

BEAT_SECONDS = 5.0
SILENCE_SECONDS = 90.0
"""After this time a lock from elsewhere is dead: network file systems may show a touch up to a minute late."""
WATCH_SECONDS = 12.0
"""How long to watch a lock from elsewhere before it is succeeded: more than two beats."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Lock(Record):
    """The process that holds a folder. Process numbers are meaningful within one kernel and one container only."""

    host: str
    place: str
    """Kernel and container: the same text where process numbers mean the same."""
    pid: int = Field(ge=0)
    born: float
    """Time at which the process started. It moves when the clock is set, so `ticks` decides where it is known."""
    threads: int
    device: str
    ticks: int | None = None
    """Clock ticks from boot to the start of the process: process numbers are reused."""
    token: int = 0
    """Random number of this lock, part of the holder's temporary file names."""
    path: Path = Field(default=Path(), exclude=True)

    @property
    def is_here(self) -> bool:
        """Whether the holder is, or was, a process of this machine and this container."""
        return self.place == _place()

    @property
    def is_visible(self) -> bool:
        """Whether this process can see the holder, if it is alive."""
        return self.is_here and not _is_hidden(self.pid)

    @property
    def is_live(self) -> bool:
        """Whether the holder is still running, as far as one look can tell."""
        if self.is_visible:
            return self._is_running()
        if self.host == socket.gethostname() and self._boot != _place().partition("/")[0]:
            return False  # this machine has been rebooted since
        # A date far in the future is as bad as one long past: the clock was set, and no holder has touched it since.
        return abs(_silence(self.path)) < SILENCE_SECONDS

    @property
    def is_held(self) -> bool:
        """Whether this lock, which this process made, still counts."""
        with suppress(OSError):  # an error of a network file system does not end the lock
            if self.path.with_name(f"{CLAIM}{_number(self.path) + 1}").exists():
                return False
        return _is_own(self)

    def check(self) -> None:
        """Raise RunLocked if another process has taken over. Call it before every write in the folder."""
        if not self.is_held:
            raise RunLocked(
                f"Another process has taken over {self.path.parent} while this one was suspended or cut off. This "
                "process stops and writes nothing more. See `oelm status` for the run."
            )

    @property
    def _boot(self) -> str:
        return self.place.partition("/")[0]

    def _is_running(self) -> bool:
        if self.ticks is not None:
            return _start_ticks(self.pid) == self.ticks
        with suppress(psutil.Error):  # no /proc here, or a lock of an older version
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.born) < 5
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        return False


def ask_to_stop(directory: Path, process: int) -> None:
    """Ask the run in a folder, which was started as `process` here, to save its state and stop.

    The signal goes to the holder of the lock, because torchrun gives its processes little time to save when it is asked
    itself. Without a lock nothing has begun that could be lost. A lock of a process that `process` has not started
    belongs to another runner, whose run continues.
    """
    lock = read_holder(directory)
    with suppress(ProcessLookupError, PermissionError):
        is_ours = lock is not None and lock.is_here and lock.pid in _family(process)
        os.kill(lock.pid if lock and is_ours else process, signal.SIGTERM)


def _family(process: int) -> set[int]:
    """Return a process of this machine and all its descendants."""
    with suppress(psutil.Error):
        return {process, *(child.pid for child in psutil.Process(process).children(recursive=True))}
    return {process}


def read_holder(directory: Path) -> Lock | None:
    """Return the live lock of a folder, if there is one."""
    lock = _newest(directory)
    return lock if lock and lock.is_live else None


def read_dead_lock(directory: Path) -> Lock | None:
    """Return the lock that a process of this machine left when it was killed; None if there is none."""
    lock = _newest(directory)
    return lock if lock and lock.is_visible and not lock.is_live else None


def find_locks_here(runs: Path) -> list[Lock]:
    """Return the live locks of this machine on any run below a folder of studies."""
    holders = {path.parent for path in runs.glob(f"*/*/{CLAIM}*")}
    return [lock for directory in sorted(holders) if (lock := read_holder(directory)) and lock.is_here]


@contextmanager
def hold_lock(directory: Path, *, threads: int = 1, device: str = "cpu") -> Iterator[Lock]:
    """Hold the lock of a folder.

    Raises RunLocked while another process holds it, UsageError where nothing can be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = _take(directory, threads, device)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written to ({error.strerror}). Give another folder.") from error
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(lock, ended), daemon=True, name="lock")
    heart.start()
    try:
        yield lock
    finally:
        ended.set()
        heart.join()
        _release(lock)


def _take(directory: Path, threads: int, device: str) -> Lock:
    before = _newest(directory)
    if before is not None and (before.is_live or (not before.is_visible and _is_touched(before.path))):
        raise RunLocked(
            f"Another live process ({before.pid} on {before.host}) is working in {directory}. "
            "Wait for it, stop it, or use another folder."
        )
    process = psutil.Process()
    lock = Lock(
        host=socket.gethostname(),
        place=_place(),
        pid=process.pid,
        born=process.create_time(),
        threads=threads,
        device=device,
        ticks=_start_ticks(process.pid),
        token=random.SystemRandom().getrandbits(62),
        path=directory / f"{CLAIM}{_number(before.path) + 1 if before else 1}",
    )
    aside = directory / f".claim-{uuid.uuid4().hex}"
    aside.write_text(lock.model_dump_json())
    try:
        os.link(aside, lock.path)
    except FileExistsError:
        raise RunLocked(f"Another process has just started to work in {directory}. Wait for it.") from None
    finally:
        aside.unlink()
    return lock


def _is_touched(path: Path) -> bool:
    """Watch a lock from elsewhere by this process's own steady clock; return whether its holder touches it."""
    before = _modified(path)
    until = time.monotonic() + WATCH_SECONDS
    while before is not None and time.monotonic() < until:
        time.sleep(min(0.5, WATCH_SECONDS / 4))
        if (now := _modified(path)) != before:
            return now is not None  # a lock that was removed instead has been released
    return False


def _modified(path: Path) -> int | None:
    try:
        with path.open("rb") as file:  # a network file system asks its server when a file is opened
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    except OSError:
        return 0


def _beat(lock: Lock, ended: threading.Event) -> None:
    while not ended.wait(BEAT_SECONDS):
        if not lock.is_held:
            os.kill(os.getpid(), signal.SIGTERM)  # the next write is refused, and this ends the training until then
            return
        with suppress(OSError):
            os.utime(lock.path)


def _release(lock: Lock) -> None:
    """Remove the lock and the dead ones it has succeeded; the own one last, so that none of them counts again."""
    numbered = sorted(lock.path.parent.glob(f"{CLAIM}*"), key=_number)
    if numbered and _number(numbered[-1]) == _number(lock.path) and _is_own(lock):
        for path in numbered:
            path.unlink(missing_ok=True)


def _is_own(lock: Lock) -> bool:
    """Whether the file of a lock still holds it: successors may have come and gone, and made a file of this name."""
    try:
        return _read(lock.path) == lock
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # unreadable for a moment, or edited: it counts while it is there
        return True


def _newest(directory: Path) -> Lock | None:
    for path in sorted(directory.glob(f"{CLAIM}*"), key=_number, reverse=True):
        try:
            return _read(path)
        except FileNotFoundError:
            continue  # released between the two looks
        except (OSError, ValueError):
            # Locks appear complete, so this one was edited, or cannot be read now. It counts as long as it is touched.
            return Lock(host="?", place="?", pid=0, born=0.0, threads=0, device="?", path=path)
    return None


def _read(path: Path) -> Lock:
    return Lock.model_validate_json(path.read_bytes()).model_copy(update={"path": path})


def _number(path: Path) -> int:
    suffix = path.suffix[1:]
    return int(suffix) if suffix.isascii() and suffix.isdigit() and len(suffix) < 16 else 0


def _silence(path: Path) -> float:
    """Return for how many seconds a file has not been touched, by the clock of its file system.

    Machines disagree about the time, so a new file tells what time it is there.
    """
    probe = path.parent / f".now-{uuid.uuid4().hex}"
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
    except OSError:  # a read-only folder: the clock of this machine has to do
        now = time.time()
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _start_ticks(pid: int) -> int | None:
    """Return the clock tick after boot at which a process started; None if it has ended, or without /proc."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(fields[18])  # field 22 of proc(5); zombies have ended


def _is_hidden(pid: int) -> bool:
    """Whether a process of another user exists that /proc does not show, as where it is mounted with hidepid."""
    if Path(f"/proc/{pid}").exists():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _place() -> str:
    """Name this kernel and this container: the same text where process numbers mean the same."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115  (a name, not a path)
    except OSError:
        return socket.gethostname()
