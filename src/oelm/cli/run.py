"""`oelm run`: a study, from its declaration to its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from oelm.cli import parse
from oelm.errors import UsageError
from oelm.spec.slurm import SlurmSpec
from oelm.study import load_study

if TYPE_CHECKING:
    from rich.console import Console

    from oelm.runner.queue import Entry


@dataclass
class Arguments:
    """Carry out a study: every run that is not done yet, several at a time, then the comparison.

    The same command again continues where it stopped; Ctrl-C lets the runs save themselves. Two of them share the work.
    """

    study: tyro.conf.Positional[Path]
    """A Python file that declares `study = oelm.Study(...)`."""
    scale: str | None = None
    """Which of the file's `scales` to run, e.g. mini; by default its `study`."""
    only: tuple[str, ...] = ()
    """Only these runs: ids (GPT-06), arms (oelm-freeze), fingerprints, or patterns of them (GPT-*)."""
    out: Path = Path("runs")
    """Where the runs go: one folder per study, one per run in it."""
    slots: int | None = None
    """How many runs at a time, whatever their threads; by default as many as fit the cores or the free GPUs, or as
    Slurm lets in."""
    retries: int = 0
    """How often to start a run again that failed. What Slurm lost (node failure, scancel) is besides submitted again,
    up to three times."""
    slurm: bool = False
    """Give each run to Slurm as a job, and watch; any --slurm.* option means it, too. Ctrl-C ends the watching, not the
    jobs; the same command watches again and submits what is left."""
    wish: Annotated[SlurmSpec, tyro.conf.arg(name="slurm")] = SlurmSpec()


def _tell_troubles(entries: Sequence[Entry], console: Console) -> None:
    """Say once what is in the way of several runs, and stop if it is in the way of all."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        if entry.trouble:
            names.setdefault(entry.trouble, []).append(entry.name)
    if sum(map(len, names.values())) == len(entries) and len(names) == 1:
        (trouble,) = names
        raise UsageError(f"nothing of the study can be run: {trouble}")
    for trouble, stuck in names.items():
        others = f" and {len(stuck) - 1} more" if len(stuck) > 1 else ""
        console.print(f"{stuck[0]}{others} cannot be run: {trouble}", markup=False, highlight=False, soft_wrap=True)


def main(argv: list[str]) -> int:
    """Parse, run, report."""
    arguments = parse(Arguments, argv, "oelm run")
    study = load_study(arguments.study, arguments.scale)

    from rich.console import Console

    from oelm.cli.report import conclude
    from oelm.record.registration import refuse_changed
    from oelm.record.store import write_study
    from oelm.runner.bind import bound
    from oelm.runner.local import LocalRunner
    from oelm.runner.queue import Board
    from oelm.runner.slurm import SlurmRunner

    console = Console()
    console.print(f"{study.name}: {study.question}", highlight=False)
    root = arguments.out / study.name
    refuse_changed(root, study)
    board = Board(study, root, only=arguments.only, bind=lambda run: bound(run)[0])
    for trouble in board.troubles:
        console.print(trouble, markup=False, highlight=False, soft_wrap=True)
    _tell_troubles(board.entries, console)
    if done := board.count("complete", "diverged"):
        console.print(f"{done} of {len(board.entries)} runs are done already.", highlight=False)
    write_study(root, study)
    slots, retries = arguments.slots, arguments.retries
    runner: LocalRunner | SlurmRunner
    if arguments.slurm or any(word.startswith("--slurm.") for word in argv):
        runner = SlurmRunner(board, arguments.wish, slots=slots, retries=retries, console=console)
    else:
        runner = LocalRunner(board, slots=slots, retries=retries, console=console)
    undone = runner.run()
    if held := sum(map(board.is_held_back, board.stage.confirm)):
        console.print(
            f"{held} runs of held-back sizes wait: every other confirming run has to end first, then prediction.json "
            "is written and they start.",
            highlight=False,
        )
    if queued := board.count("queued"):
        console.print(f"{queued} runs are queued in Slurm; with --slurm this command watches them.", highlight=False)
    conclude(study, root, lang="en")
    return 1 if undone or board.lost else 0
