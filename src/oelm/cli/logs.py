"""`oelm logs`: what a run has said."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from oelm.errors import UsageError
from oelm.record.store import ERRORS, LOG


@dataclass
class Arguments:
    """Print a run's log; with --follow go on as it grows, until the run ends."""

    run: tyro.conf.Positional[Path]
    """A run's folder, or enough of its name to tell it from the others below --out."""
    out: Path = Path("runs")
    """Where to look for it."""
    follow: bool = False
    """Go on printing while the run is at work."""
    errors: bool = False
    """What it wrote to standard error instead."""


def main(argv: list[str]) -> int:
    """Parse and print."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm logs")

    from oelm.runner.claim import holder

    directory = _found(arguments.run, arguments.out)
    path = directory / (ERRORS if arguments.errors else LOG)
    if not path.exists():
        raise UsageError(f"{directory} holds no {path.name}: the run has not said anything yet (oelm status tells).")
    with path.open(errors="replace") as file:
        while True:
            live = arguments.follow and holder(directory) is not None  # asked before reading, so that no end is missed
            for line in file:
                sys.stdout.write(line)
            sys.stdout.flush()
            if not live:
                return 0
            time.sleep(0.3)


def _found(run: Path, out: Path) -> Path:
    if run.is_dir():
        return run
    folders = [path.parent for path in out.glob("**/spec.json")] + [path.parent for path in out.glob("**/record.json")]
    found = sorted({folder for folder in folders if str(run) in folder.name})
    if len(found) == 1:
        return found[0]
    names = ", ".join(folder.name for folder in (found or sorted(set(folders)))[:12])
    count = "no run" if not found else f"{len(found)} runs"
    names = names or "there are none"
    raise UsageError(f"{run} fits {count} below {out}. Give a folder, or enough of its name: {names}.")
