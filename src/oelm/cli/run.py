"""`oelm run`: a study, from its declaration to its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from oelm.study import load_study


@dataclass
class Arguments:
    """Carry out a study: every run that is not done yet, several at a time, then the comparison.

    The same command again continues where it stopped; Ctrl-C lets the runs save themselves.
    """

    study: tyro.conf.Positional[Path]
    """A Python file that declares `study = oelm.Study(...)`."""
    out: Path = Path("runs")
    """Where the runs go: one folder per study, one per run in it."""
    slots: int | None = None
    """How many runs at a time; by default as many as fit the cores."""


def main(argv: list[str]) -> int:
    """Parse, run, report."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm run")
    study = load_study(arguments.study)

    from oelm.cli.report import conclude
    from oelm.runner.local import run_study

    root = arguments.out / study.name
    failed = run_study(study, root, slots=arguments.slots)
    conclude(study, root, lang="en")
    return 1 if failed else 0
