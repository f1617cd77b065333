"""`oelm status`: where the runs of a study stand, from any terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from oelm.study import load_study


@dataclass
class Arguments:
    """Show where every run of a study stands: done, running (step, loss, time left), queued, waiting, failed and why.

    Reads the run folders, so it works beside a running study and over ssh; where runs were given to Slurm, squeue is
    asked once for all of them.
    """

    study: tyro.conf.Positional[Path]
    """The Python file that declares the study."""
    scale: str | None = None
    """Which of the file's `scales`; by default its `study`."""
    out: Path = Path("runs")
    """Where the runs are: the folder given to `oelm run`."""
    watch: bool = False
    """Keep looking until nothing is left to do; Ctrl-C ends the looking, not the runs."""
    json: bool = False
    """Print for machines."""


def main(argv: list[str]) -> int:
    """Parse, look, show."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm status")
    study = load_study(arguments.study, arguments.scale)

    from rich.console import Console, Group
    from rich.live import Live

    from oelm.runner.display import as_json, reason, table
    from oelm.runner.queue import Board
    from oelm.runner.slurm_queue import ASK_SECONDS

    root = arguments.out / study.name
    board = Board(study, root)
    if arguments.json:
        print(as_json(board))
        return 0

    def drawn(board: Board) -> Group:
        silent = board.slurm.trouble
        unknown = [f"What is queued is not known. {silent}"] if silent else []
        failed = [f"{entry.name}: {reason(entry)}" for entry in board.entries if entry.state in ("failed", "diverged")]
        troubles = "\n".join([*failed, *board.troubles, *unknown])
        return Group(f"{study.name}: {board.progress}", table(board.entries, every=True), troubles)

    console = Console()
    if not arguments.watch:
        console.print(drawn(board), markup=False)
        return 0
    with Live(drawn(board), console=console, refresh_per_second=2, screen=console.is_terminal) as live:
        while board.count("running", "queued", "waiting", "interrupted"):
            time.sleep(ASK_SECONDS if any(entry.job for entry in board.entries) else 1.0)
            board = Board(study, root)
            live.update(drawn(board))
    console.print(drawn(board), markup=False)
    return 0
