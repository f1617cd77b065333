"""The process that carries out a run: the same whoever starts it, this machine's runner or a job of Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oelm.record.store import ERRORS, SPEC
from oelm.spec.run import RunSpec


@dataclass(frozen=True)
class Child:
    """A started process, and where in its run's stderr.log its own words begin."""

    process: subprocess.Popen[bytes]
    errors: Path
    begins: int

    @property
    def last_words(self) -> str:
        """The last line it wrote to stderr; nothing if it wrote none."""
        with self.errors.open("rb") as file:
            file.seek(self.begins)
            lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def start(run: RunSpec, directory: Path, environment: Mapping[str, str] | None = None) -> Child:
    """Start the run whose spec lies in a directory, with variables of its own besides ours.

    What it says is appended: two runners may start one run at the same moment, and the one that finds it taken must
    not wipe out what the other's process has said.
    """
    with (directory / ERRORS).open("ab") as errors:
        begins = errors.tell()
        process = subprocess.Popen(  # noqa: S603  (a command of our own)
            command(run, directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": str(run.train.threads), **(environment or {})},
        )
    return Child(process, directory / ERRORS, begins)


def command(run: RunSpec, directory: Path) -> list[str]:
    """Return the command that carries out a run in its directory."""
    train = ["-m", "oelm", "train", "--spec", str(directory / SPEC), "--out", str(directory), "--quiet"]
    if run.train.processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={run.train.processes}"]
        return [sys.executable, *launcher, *train]
    return [sys.executable, *train]
