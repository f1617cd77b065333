"""`oelm cancel`: ask the runs of a study to save themselves and stop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from oelm.study import load_study


@dataclass
class Arguments:
    """Ask runs at work to save themselves and stop; `oelm run` continues them later.

    Runs of this machine are asked by a signal, runs of a Slurm cluster through Slurm; queued jobs are taken back, and
    runners start nothing more of what was cancelled.
    """

    study: tyro.conf.Positional[Path]
    """The Python file that declares the study."""
    scale: str | None = None
    """Which of the file's `scales`; by default its `study`."""
    only: tuple[str, ...] = ()
    """Only these runs: ids, arms, fingerprints, or patterns of them; by default all."""
    out: Path = Path("runs")
    """Where the runs are: the folder given to `oelm run`."""


def main(argv: list[str]) -> int:
    """Parse, ask, say whom."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm cancel")
    study = load_study(arguments.study, arguments.scale)

    from oelm.runner.cancel import cancel
    from oelm.runner.queue import Board

    board = Board(study, arguments.out / study.name, only=arguments.only)
    answers = cancel(board)
    for answer in answers:
        print(answer)
    if not answers:
        waits = board.count("waiting", "interrupted", "failed")
        print(f"nothing of this study is at work{'; a runner that waits will start no more of it' if waits else ''}.")
    return 1 if board.slurm.trouble else 0
