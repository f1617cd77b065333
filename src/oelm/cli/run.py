"""`oelm run`: run a study and write its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from pydantic import NonNegativeInt

from oelm.cli.terminal import Count, parse
from oelm.errors import UsageError
from oelm.spec.run import SlurmSpec, TrackerName, with_tracker
from oelm.spec.study import load_study

if TYPE_CHECKING:
    from oelm.console import Console
    from oelm.runs.board import BoardEntry


@dataclass
class RunArguments:
    """Run a study: prepare its data, start every run that is not done, several at a time, then write the report.

    The same command continues an interrupted study. Ctrl-C lets the runs save a checkpoint first. Two such commands
    share the work.

      oelm run studies/demo.py
      oelm run studies/fair.py --scale core-speeches --only oelm-freeze --slots 4
    """

    study: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Python file that declares `study = oelm.Study(...)`."""
    scale: str | None = None
    """Name of one of the file's `scales`, for example mini. By default its `study`."""
    only: tuple[str, ...] = ()
    """Run only these: ids (GPT-06), arms (oelm-freeze), fingerprints, or patterns of them (GPT-*)."""
    out: Path = Path("runs")
    """Folder to write. Each study gets a folder in it, and each run a folder in that."""
    track: TrackerName | None = None
    """Experiment tracker that gets the curves in addition to metrics.jsonl: wandb (offline, unless WANDB_MODE is set),
    trackio (local) or tensorboard."""
    slots: Count | None = None
    """Number of runs at a time, whatever their threads. By default as many as fit the cores or the free GPUs, or as
    Slurm accepts."""
    retries: NonNegativeInt = 0
    """How often to start a failed run again. Jobs that Slurm loses (node failure, scancel) are also submitted again,
    up to three times."""
    slurm: bool = False
    """Submit each run to Slurm as a job and watch them. Any --slurm.* option implies this. Ctrl-C stops watching, not
    the jobs; the same command watches again and submits the rest."""
    options: Annotated[SlurmSpec, tyro.conf.arg(name="slurm")] = SlurmSpec()


def _print_troubles(entries: Sequence[BoardEntry], console: Console) -> None:
    """Print each problem once with the runs it stops, and raise an error if it stops all runs."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        if entry.trouble:
            names.setdefault(entry.trouble, []).append(entry.name)
    if sum(map(len, names.values())) == len(entries) and len(names) == 1:
        (trouble,) = names
        raise UsageError(f"no run of the study can start: {trouble}")
    for trouble, stuck in names.items():
        others = f" and {len(stuck) - 1} more" if len(stuck) > 1 else ""
        console.print(f"{stuck[0]}{others} cannot start: {trouble}", soft_wrap=True)


def run_command(argv: list[str]) -> int:
    """Run a study and write its report."""
    arguments = parse(RunArguments, argv, "oelm run")
    study = load_study(arguments.study, arguments.scale)

    from oelm.cli.report import conclude
    from oelm.console import Console
    from oelm.interop.trackers import refuse_missing
    from oelm.record.folder import write_study
    from oelm.record.registration import refuse_changed
    from oelm.record.stages import stage_of
    from oelm.runs.board import Board
    from oelm.runs.local import LocalRunner
    from oelm.runs.resolve import prepare_data, resolve
    from oelm.runs.slurm import SlurmRunner

    console = Console()
    console.print(f"{study.name}: {study.question}")
    refuse_missing(arguments.track)
    root = arguments.out / study.name
    refuse_changed(root, study)
    with console.status("preparing the data"):
        for corpus, data in prepare_data(stage_of(study, {}).runs):
            console.print(f"data: {corpus}, checksum {data.checksum[:12]}")
    board = Board(study, root, only=arguments.only, bind=lambda run: with_tracker(resolve(run).spec, arguments.track))
    for trouble in board.troubles:
        console.print(trouble, soft_wrap=True)
    _print_troubles(board.entries, console)
    if done := board.count("complete", "diverged"):
        console.print(f"{done} of {len(board.entries)} runs are done already.")
    write_study(root, study)
    slots, retries = arguments.slots, arguments.retries
    runner: LocalRunner | SlurmRunner
    if arguments.slurm or any(word.startswith("--slurm.") for word in argv):
        runner = SlurmRunner(board, arguments.options, slots=slots, retries=retries, console=console)
    else:
        runner = LocalRunner(board, slots=slots, retries=retries, console=console)
    undone = runner.run()
    if held := sum(map(board.is_held_back, board.stage.confirm)):
        console.print(
            f"{held} runs of held-back sizes wait. They start when every other confirming run has ended and "
            "prediction.json is written.",
        )
    if queued := board.count("queued"):
        console.print(f"{queued} runs are queued in Slurm. Add --slurm to watch them.")
    conclude(study, root, lang="en")
    return 1 if undone or board.lost else 0
