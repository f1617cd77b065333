"""`oelm status`, `oelm logs` and `oelm cancel`: watch and stop the runs of a study from any terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from oelm.cli.terminal import parse
from oelm.errors import UsageError
from oelm.record.folder import ERRORS, LOG, RECORD, SPEC
from oelm.record.record import refuse_link
from oelm.spec.study import load_study
from oelm.text import say


@dataclass
class StatusArguments:
    """Show the state of every run of a study: done, running (step, loss, time left), queued, waiting, failed.

    The state is read from the run folders, so this also works while the study runs, and over ssh. For runs that were
    submitted to Slurm, squeue is called once for all of them.

      oelm status studies/demo.py --watch
    """

    study: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Python file that declares the study."""
    scale: str | None = None
    """Name of one of the file's `scales`. By default its `study`."""
    runs: Path = Path("runs")
    """Folder with the runs of studies: the --out of `oelm run`."""
    watch: bool = False
    """Update the table until every run has ended. Ctrl-C stops watching, not the runs."""
    json: bool = False
    """Print the states as JSON."""


def status_command(argv: list[str]) -> int:
    """Show the state of a study's runs."""
    arguments = parse(StatusArguments, argv, "oelm status")
    study = load_study(arguments.study, arguments.scale)

    from rich.console import Group
    from rich.live import Live

    from oelm.console import Console
    from oelm.runs.board import ASK_SECONDS, Board
    from oelm.runs.display import as_json, explain_failure, render_board

    root = arguments.runs / study.name
    board = Board(study, root)
    if arguments.json:
        print(as_json(board))
        return 0

    def draw(board: Board) -> Group:
        silent = board.slurm.trouble
        unknown = [f"The state of queued runs is unknown. {silent}"] if silent else []
        failed = [
            f"{entry.name}: {explain_failure(entry)}"
            for entry in board.entries
            if entry.state in ("failed", "diverged", "interrupted") and explain_failure(entry)
        ]
        troubles = "\n".join([*failed, *board.troubles, *unknown])
        return Group(f"{study.name}: {board.progress}", render_board(board.entries, every=True), troubles)

    console = Console()
    if not arguments.watch:
        console.print(draw(board))
        return 0
    with Live(draw(board), console=console, refresh_per_second=2, screen=console.is_terminal) as live:
        while board.count("running", "queued", "waiting", "interrupted"):
            time.sleep(ASK_SECONDS if any(entry.job for entry in board.entries) else 1.0)
            board = Board(study, root)
            live.update(draw(board))
    console.print(draw(board))
    return 0


@dataclass
class CancelArguments:
    """Ask running runs to save a checkpoint and stop. `oelm run` continues them later.

    Runs on this machine get a signal, runs on a cluster are asked through Slurm. Queued jobs are withdrawn, and
    runners do not start the cancelled runs.

      oelm cancel studies/demo.py --only oelm-freeze
    """

    study: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Python file that declares the study."""
    scale: str | None = None
    """Name of one of the file's `scales`. By default its `study`."""
    only: tuple[str, ...] = ()
    """Cancel only these runs: ids, arms, fingerprints, or patterns of them. By default all."""
    runs: Path = Path("runs")
    """Folder with the runs of studies: the --out of `oelm run`."""


def cancel_command(argv: list[str]) -> int:
    """Ask the runs of a study to stop and print which were asked."""
    arguments = parse(CancelArguments, argv, "oelm cancel")
    study = load_study(arguments.study, arguments.scale)

    from oelm.runs.board import Board, cancel

    board = Board(study, arguments.runs / study.name, only=arguments.only)
    answers = cancel(board)
    for answer in answers:
        say(answer)
    if not answers:
        waits = board.count("waiting", "interrupted", "failed")
        print(f"No run of this study is running{', and waiting runners will not start more of them' if waits else ''}.")
    return 1 if board.slurm.trouble else 0


@dataclass
class LogsArguments:
    """Print the log of a run. With --follow, continue until the run ends.

    For example:

      oelm logs baseline-seed0 --follow
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run, or a part of its name or fingerprint that no other run in --runs has."""
    runs: Path = Path("runs")
    """Folder to search."""
    follow: bool = False
    """Continue printing while the run is running."""
    errors: bool = False
    """Print what the run wrote to standard error instead."""


def logs_command(argv: list[str]) -> int:
    """Print the log of a run."""
    arguments = parse(LogsArguments, argv, "oelm logs")

    from oelm.cli.archive import choose_run
    from oelm.runs.lock import read_holder

    directory = Path(arguments.run)
    if not directory.is_dir():
        files = (path for name in (SPEC, RECORD) for path in arguments.runs.glob(f"**/{name}"))
        folders = sorted({path.parent for path in files})
        directory = choose_run(arguments.run, [(folder.name, folder) for folder in folders], [arguments.runs])
    path = directory / (ERRORS if arguments.errors else LOG)
    refuse_link(path)
    if not path.is_file():
        raise UsageError(f"{directory} has no {path.name} yet. `oelm status` shows the state of the run.")
    with path.open(errors="replace") as file:
        while True:
            # Asked before reading, so that the last lines of a run that ends now are printed.
            live = arguments.follow and read_holder(directory) is not None
            for line in file:
                say(line, end="")
            if not live:
                return 0
            time.sleep(0.3)
