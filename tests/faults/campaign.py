"""Carry out a run under injected faults, in processes that are forked from this one, and judge how each trial ended.

`python campaign.py SPEC FOLDER CLASS TRIALS SEED` with faults.c in LD_PRELOAD prints one JSON line for each trial. The
rule: identical, or a clear error and identical after the same command once more, or a reported loss. Everything else
(a silent difference, a hang, a traceback) is bad.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from oelm.cli import dispatch
from oelm.errors import CheckpointError, RunLocked
from oelm.files import parse_checked, sha256_of, strip_checksum
from oelm.record import folder as record_folder
from oelm.runs import lock
from oelm.runs.execute import execute
from oelm.runs.lock import hold_lock
from oelm.runs.resolve import resolve
from oelm.spec.run import RunSpec
from oelm.train.checkpoint import read_checkpoint

PATIENCE = 240.0
"""Seconds after which a trial counts as hanging, on a machine that may be heavily loaded."""
ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EIO", "ESTALE", "EINTR")}
shim = ctypes.CDLL(None)


class Bad(Exception):
    """A trial that broke the rule."""


def start(spec: Path, folder: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Fork a process that carries out the run in a folder; its messages go to a file next to it."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        out = os.open(f"{folder}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        prepare()
        code = dispatch(["train", "--spec", str(spec), "--out", str(folder), "--quiet"])
    except BaseException:  # noqa: BLE001  (as Python itself would: a traceback, which is what the trial looks for)
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(process: int, *, stops: bool = False) -> int | None:
    """Wait for a process; return its exit code, or None if it stopped. One that hangs is killed and is bad."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found, status = os.waitpid(process, os.WNOHANG | (os.WUNTRACED if stops else 0))
        if found:
            return None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise Bad("it hangs")


def said(folder: Path) -> str:
    """Return what a process printed; a traceback is bad."""
    text = Path(f"{folder}.out").read_text(errors="replace")
    if "Traceback" in text:
        raise Bad(f"a traceback: {text[-600:]}")
    return text


def results(folder: Path) -> dict[str, Any]:
    """Return everything about a complete run that must not depend on faults."""
    record = parse_checked((folder / "record.json").read_bytes())
    if record["status"] != "complete":
        raise Bad(f"the run is {record['status']}")
    points = [json.loads(strip_checksum(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("val_loss", "test_loss", "best_val_loss", "best_step", "train_tokens")
    return {
        "result": {name: record["result"][name] for name in kept},
        "frozen": record["frozen_hashes"],
        "metrics": [[each.get(name) for name in ("kind", "step", "loss", "learning_rate")] for each in points],
        "attention": (folder / "attention.jsonl").read_text(),
        "losses": (folder / "test_losses.json").read_text(),
        "weights": sha256_of(folder / "checkpoints" / "latest" / "model.safetensors"),
        "best": sha256_of(folder / "checkpoints" / "best" / "model.safetensors"),
        "damage": record["damage"],
    }


def is_refused(checkpoint: Path) -> bool:
    """Whether reading a checkpoint raises an error."""
    try:
        read_checkpoint(checkpoint)
    except CheckpointError:
        return True
    return False


def files(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file of a finished run, without the locks."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and "claim" not in path.name)
    return {str(path.relative_to(folder)): sha256_of(path) for path in paths}


class Campaign:
    """The trials of one class of faults."""

    def __init__(self, spec: Path, folder: Path, seed: int) -> None:
        self.spec, self.root, self.draw = spec, folder, random.Random(seed)
        self.whole = folder / "whole"
        if not (self.whole / "record.json").exists() and wait(start(spec, self.whole, self._count)) != 0:
            raise Bad(f"the run without faults fails: {said(self.whole)}")
        self.reference = results(self.whole)
        self.calls = int(Path(f"{self.whole}.calls").read_text())

    def _count(self) -> None:
        shim.fault_arm(os.fsencode(f"{self.whole}/"), ctypes.c_long(-1), 0, 0)
        real = os._exit

        def leave(code: int) -> None:
            Path(f"{self.whole}.calls").write_text(str(shim.fault_calls()))
            real(code)

        os._exit = leave  # type: ignore[assignment]

    def arm(self, folder: Path, kind: int, *, lasts: bool = False) -> Callable[[], None]:
        call = self.draw.randrange(self.calls)
        return lambda: shim.fault_arm(os.fsencode(f"{folder}/"), ctypes.c_long(call), kind, int(lasts))

    def finish(self, folder: Path) -> str:
        """Carry out the rest of a run without faults, and compare."""
        if wait(start(self.spec, folder)) != 0:
            raise Bad(f"the same command does not finish the run: {said(folder)[-600:]}")
        said(folder)
        found = results(folder)
        if found == self.reference:
            return "identical"
        differ = [name for name in found if found[name] != self.reference[name]]
        if found["damage"] and set(differ) <= {"damage", "metrics", "attention"}:
            return "reported"
        if differ == ["best"] and is_refused(folder / "checkpoints" / "best"):
            return "error when read"  # training does not read it, and whoever does gets an error
        raise Bad(f"a silent difference in {differ}")

    def kill(self, folder: Path) -> str:
        """Kill -9 at a system call."""
        wait(start(self.spec, folder, self.arm(folder, -signal.SIGKILL)))
        return self.finish(folder)

    def time(self, folder: Path) -> str:
        """Kill -9 after a random time."""
        process = start(self.spec, folder)
        time.sleep(self.draw.uniform(0.05, 3.0))
        os.kill(process, signal.SIGKILL)
        wait(process)
        return self.finish(folder)

    def error(self, folder: Path) -> str:
        """One system call fails."""
        name = self.draw.choice(sorted(ERRORS))
        code = wait(start(self.spec, folder, self.arm(folder, ERRORS[name])))
        text = said(folder)
        if code not in (0, 1, 2):
            raise Bad(f"{name}: exit code {code}: {text[-600:]}")
        if code and "oelm:" not in text:
            raise Bad(f"{name}: no message: {text[-600:]}")
        return ("error, then " if code else "") + self.finish(folder)

    def full(self, folder: Path) -> str:
        """The disk is full from some call on."""
        kind = self.draw.choice((errno.ENOSPC, errno.EDQUOT))
        code = wait(start(self.spec, folder, self.arm(folder, kind, lasts=True)))
        text = said(folder)
        if code and "oelm:" not in text:
            raise Bad(f"no message, exit code {code}: {text[-600:]}")
        return ("error, then " if code else "") + self.finish(folder)

    def sleep(self, folder: Path) -> str:
        """Suspend a holder at a system call; a process elsewhere takes over and finishes; then wake the holder."""
        holder = start(self.spec, folder, self.arm(folder, -signal.SIGSTOP))
        if wait(holder, stops=True) is not None:
            return self.finish(folder)  # it ended before that call

        def elsewhere() -> None:
            lock._place = lambda: "another kernel/another container"
            lock.socket.gethostname = lambda: "elsewhere"  # type: ignore[assignment]
            lock.SILENCE_SECONDS, lock.WATCH_SECONDS = 0.0, 0.05
            record_folder.is_open_elsewhere = lambda _: False  # /proc there does not show the files of the holder

        try:
            if wait(start(self.spec, folder, elsewhere)) != 0:
                raise Bad(f"the run is not taken over: {said(folder)[-600:]}")
            before = files(folder)
        finally:
            os.kill(holder, signal.SIGCONT)
            code = wait(holder)
        if results(folder) != self.reference:
            raise Bad("other results")
        after = files(folder)
        changed = {name for name in before if after.get(name) != before[name]}
        if changed:
            raise Bad(f"the sleeper changed {sorted(changed)}; its exit code is {code}")
        return "identical"

    def clock(self, folder: Path) -> str:
        """Set the clock while a run is carried out, and let a second process try to take over."""
        step = self.draw.choice((-1, 1)) * self.draw.uniform(6, 1e6)
        holder = start(self.spec, folder)
        while not list(folder.glob("claim.*")):
            time.sleep(0.005)
        refused = 0
        real, now = psutil.Process.create_time, time.time
        psutil.Process.create_time = lambda self: real(self) + step  # type: ignore[method-assign]
        time.time = lambda: now() + step
        try:
            while os.waitpid(holder, os.WNOHANG)[0] == 0:
                for path in folder.glob("claim.*"):
                    os.utime(path, (now() + step, now() + step))
                try:
                    with hold_lock(folder):
                        if parse_checked((folder / "record.json").read_bytes())["status"] != "complete":
                            raise Bad("two processes hold the run")
                except RunLocked:
                    refused += 1
                except FileNotFoundError:
                    pass
                time.sleep(0.02)
        finally:
            psutil.Process.create_time, time.time = real, now  # type: ignore[method-assign]
        said(folder)
        if not refused:
            raise Bad("the second process was never refused")
        return self.finish(folder)

    def two(self, folder: Path) -> str:
        """Two processes start one run at the same time, and one of them is killed at some call."""
        first = start(self.spec, folder, self.arm(folder, -signal.SIGKILL))
        second = start(self.spec, folder)
        wait(first), wait(second)
        return self.finish(folder)

    def damage(self, folder: Path) -> str:
        """Damage a file of a half-trained run, then continue it."""
        wait(start(self.spec, folder, self.arm_late(folder)))
        paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "stderr.log"
                 and not path.name.startswith("claim.") and path.stat().st_size]  # fmt: skip
        if not paths:
            return self.finish(folder)
        path = self.draw.choice(sorted(paths))
        kind = self.draw.choice(("flip", "cut", "digit"))
        path.write_bytes(spoil(path.read_bytes(), kind, self.draw))
        code = wait(start(self.spec, folder))
        text = said(folder)
        if code:
            if "oelm:" not in text:
                raise Bad(f"{path.name}, {kind}: no message: {text[-600:]}")
            return "error"
        try:
            return self.finish(folder)
        except Bad as bad:
            raise Bad(f"{path.relative_to(folder)}, {kind}: {bad}") from bad

    def arm_late(self, folder: Path) -> Callable[[], None]:
        call = self.draw.randrange(self.calls // 3, self.calls)
        return lambda: shim.fault_arm(os.fsencode(f"{folder}/"), ctypes.c_long(call), -signal.SIGKILL, 0)


def spoil(content: bytes, kind: str, draw: random.Random) -> bytes:
    """Return bytes with one flipped bit, cut short, or with one other digit."""
    if kind == "cut":
        return content[: draw.randrange(len(content))]
    changed = bytearray(content)
    digits = [place for place, byte in enumerate(content) if chr(byte).isdigit()] if kind == "digit" else []
    if digits:
        place = draw.choice(digits)
        changed[place] = ord(draw.choice([each for each in "0123456789" if ord(each) != content[place]]))
    else:
        changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def main(spec: str, folder: str, kind: str, trials: str, seed: str) -> None:
    """Carry out the trials of one class, and print how each ended."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as warm:  # whatever a run imports is loaded once, and not in every process
        run, data = resolve(RunSpec.model_validate(parse_checked(Path(spec).read_bytes())))
        execute(run, data, Path(warm), quiet=True)
    campaign = Campaign(Path(spec), Path(folder), int(seed))
    for number in range(int(trials)):
        place = Path(folder) / f"{kind}-{seed}-{number}"
        try:
            outcome, bad = getattr(campaign, kind)(place), False
        except Bad as error:
            outcome, bad = str(error), True
        sys.stdout.write(json.dumps({"class": kind, "trial": number, "outcome": outcome, "bad": bad}) + "\n")
        sys.stdout.flush()
        if not bad:
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
