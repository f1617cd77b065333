"""Who is at a run: a claim on its directory that dies with its holder, also on a network file system.

A claim is a file `claim.N` in the run's directory; the holder is the one with the highest number. It appears whole, by
a hard link, which only one of several processes can make. While it lives, its holder touches it every few seconds.

A claim whose holder is dead is not removed but succeeded: the next process makes `claim.N+1`. So two that find the
same dead claim cannot both follow it, and neither can delete the other's. On the machine where the holder runs,
its process is looked at; elsewhere, and in other containers, a claim is dead when it has not been touched for a while
by the file system's own clock, since machines disagree about the time. A holder that was only asleep finds that it
has been succeeded when it wakes, and stops.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from oelm.errors import RunLocked, UsageError
from oelm.record.store import CLAIM

BEAT_SECONDS = 5.0
SILENCE_SECONDS = 90.0
"""After this a claim from elsewhere is dead: network file systems may show a touch up to a minute late."""


@dataclass(frozen=True)
class Claim:
    """A process and where it lives. Numbers of processes mean something within one kernel and one container only."""

    host: str
    place: str
    pid: int
    born: float
    """When the process began: numbers of processes are used again."""
    threads: int
    device: str
    path: Path

    @property
    def is_here(self) -> bool:
        """Whether its process, if alive, is one that we can see."""
        return self.place == _place()

    @property
    def is_live(self) -> bool:
        """Whether its holder is still at work."""
        if self.is_here:
            with suppress(psutil.Error):
                process = psutil.Process(self.pid)
                same = abs(process.create_time() - self.born) < 5  # setting the clock moves it
                return bool(same and process.status() != psutil.STATUS_ZOMBIE)
            return False
        return _silence(self.path) < SILENCE_SECONDS


def ask_to_stop(directory: Path, process: int) -> None:
    """Ask the run in a directory, which was started as `process` here, to save itself and stop.

    By its claim if it has one, since torchrun, told to stop, gives its processes only so long to save themselves.
    Without a claim nothing has begun that could be lost. A claim of nobody that `process` has started is another
    runner's, who came first: its run goes on.
    """
    claim = holder(directory)
    with suppress(ProcessLookupError, PermissionError):
        is_ours = claim is not None and claim.is_here and claim.pid in _family(process)
        os.kill(claim.pid if claim and is_ours else process, signal.SIGTERM)


def _family(process: int) -> set[int]:
    """Return a process of this machine and all that it has started."""
    with suppress(psutil.Error):
        return {process, *(child.pid for child in psutil.Process(process).children(recursive=True))}
    return {process}


def holder(directory: Path) -> Claim | None:
    """Return the live claim on a run's directory, if there is one."""
    claim = _newest(directory)
    return claim if claim and claim.is_live else None


def claims_here(runs: Path) -> list[Claim]:
    """Return the live claims of this machine on any run below a folder of studies."""
    holders = {path.parent for path in runs.glob("*/*/claim.*")}
    return [claim for directory in sorted(holders) if (claim := holder(directory)) and claim.is_here]


@contextmanager
def claimed(directory: Path, *, threads: int = 1, device: str = "cpu") -> Iterator[Claim]:
    """Hold a run's directory.

    Raises RunLocked while another process holds it, UsageError where nothing can be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        claim = _taken(directory, threads, device)
    except OSError as error:
        raise UsageError(
            f"the run was to be kept in {directory}, which cannot be written to ({error.strerror}). "
            "Give another folder."
        ) from error
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(claim, ended), daemon=True, name="claim")
    heart.start()
    try:
        yield claim
    finally:
        ended.set()
        heart.join()
        _release(claim)


def _taken(directory: Path, threads: int, device: str) -> Claim:
    before = _newest(directory)
    if before is not None and before.is_live:
        raise RunLocked(
            f"another live process ({before.pid} on {before.host}) is working in {directory}. "
            "Wait for it, stop it, or use another folder."
        )
    path = directory / f"{CLAIM}{_number(before.path) + 1 if before else 1}"
    process = psutil.Process()
    claim = Claim(socket.gethostname(), _place(), process.pid, process.create_time(), threads, device, path)
    whole = directory / f".claim-{uuid.uuid4().hex}"
    whole.write_text(json.dumps(_plain(claim)))
    try:
        os.link(whole, path)
    except FileExistsError:
        raise RunLocked(f"another process has just begun to work in {directory}. Wait for it.") from None
    finally:
        whole.unlink()
    return claim


def _beat(claim: Claim, ended: threading.Event) -> None:
    while not ended.wait(BEAT_SECONDS):
        newest = _newest(claim.path.parent)  # never raises: a heart that stops loses the run
        if not _is_own(claim) or (newest is not None and _number(newest.path) > _number(claim.path)):
            os.kill(os.getpid(), signal.SIGTERM)  # saves and leaves, as if asked to from outside
            return
        with suppress(OSError):
            os.utime(claim.path)


def _release(claim: Claim) -> None:
    """Take the claim back, and the dead ones it has succeeded; the own one last, so that none of them comes to life."""
    numbered = sorted(claim.path.parent.glob(f"{CLAIM}*"), key=_number)
    if numbered and _number(numbered[-1]) == _number(claim.path) and _is_own(claim):
        for path in numbered:
            path.unlink(missing_ok=True)


def _is_own(claim: Claim) -> bool:
    """Whether the file of a claim is still its own: whoever succeeded it may have come and gone, and others after."""
    try:
        return bool(json.loads(claim.path.read_text()) == _plain(claim))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):  # it may not be read just now, or someone has edited it: it holds while it is there
        return True


def _plain(claim: Claim) -> dict[str, object]:
    return {name: value for name, value in asdict(claim).items() if name != "path"}


def _newest(directory: Path) -> Claim | None:
    for path in sorted(directory.glob(f"{CLAIM}*"), key=_number, reverse=True):
        try:
            return Claim(**json.loads(path.read_text()), path=path)
        except FileNotFoundError:
            continue  # released between the two looks
        except (OSError, ValueError, TypeError):
            # Claims appear whole, so someone has edited it, or it may not be read just now: whoever it is of holds it
            # as long as it is touched.
            return Claim("?", "?", 0, 0.0, 0, "?", path)
    return None


def _number(path: Path) -> int:
    suffix = path.suffix[1:]
    return int(suffix) if suffix.isdigit() else 0


def _silence(path: Path) -> float:
    """Return for how many seconds a file has not been touched, by the clock of its file system."""
    probe = path.parent / f".now-{uuid.uuid4().hex}"
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
    except OSError:  # a folder that may only be read: the own clock will have to do
        now = time.time()
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _place() -> str:
    """Name this kernel and this container: the same text where numbers of processes mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115  (a name, not a path)
    except OSError:
        return socket.gethostname()
