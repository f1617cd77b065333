"""`oelm plan`: what a study takes, before anything of it runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from oelm.study import Listing, load_study

if TYPE_CHECKING:
    from rich.console import Console

    from oelm.runner.display import RunTable
    from oelm.runner.plan import Plan


@dataclass
class Arguments:
    """Show every run of a study's stage: what it trains and freezes, its FLOPs, memory and time, what is done already.

    Nothing is trained, downloaded or written. Times are FLOPs over the device's peak and one fixed utilisation.
    """

    study: tyro.conf.Positional[Path]
    """A Python file that declares `study = oelm.Study(...)`."""
    scale: str | None = None
    """Which of the file's `scales`; by default its `study`."""
    device: Literal["cpu", "a5000", "a100", "h100", "rtx4090"] | None = None
    """cpu: this machine, by a short probe; the others by their data sheets. By default cpu, or a5000 for cuda runs."""
    only: tuple[str, ...] = ()
    """Only these runs: ids, arms, fingerprints, or patterns of them."""
    calibrate: bool = False
    """Time some real steps of each kind of run on this CPU instead (seconds for each kind, kept for the next plan)."""
    out: Path = Path("runs")
    """Where the runs are: what is done there is shown as done."""
    json: bool = False
    """Print the matrix as data."""
    power: bool = False
    """Print instead how many seeds each margin needs, from the spread of like arms in the studies on record."""
    record: tuple[Path, ...] = (Path("docs/results"),)
    """With --power: folders of studies on record, in addition to --out."""


def main(argv: list[str]) -> int:
    """Parse, count, show."""
    asked = tyro.cli(Arguments, args=argv, prog="oelm plan", config=(tyro.conf.FlagCreatePairsOff,))
    study = load_study(asked.study, asked.scale)
    if asked.power:
        from oelm.cli.power import show_power

        return show_power(study, (asked.out, *asked.record), as_json=asked.json)

    from rich.console import Console

    from oelm.runner.calibrate import calibrate
    from oelm.runner.plan import plan
    from oelm.runner.queue import Board

    first = study.listed[0] if isinstance(study, Listing) else study.base
    device = asked.device or ("a5000" if first.train.device == "cuda" else "cpu")
    with Console(stderr=True).status("counting") as status:
        board = Board(study, asked.out / study.name, only=asked.only)
        calibration = calibrate if asked.calibrate else None
        result = plan(board, device, calibration=calibration, progress=status.update)
    if asked.json:
        print(json.dumps(result.as_dict(), indent=1, allow_nan=False))
    else:
        _show(result, Console())
    return 0


def _show(plan: Plan, console: Console) -> None:
    from oelm.runner.display import duration

    console.print(f"{plan.study}: {plan.question}", highlight=False, markup=False)
    console.print(_table(plan), highlight=False)
    total = f"{len(plan.runs)} runs, {duration(plan.seconds) or 'an unknown time'} on {plan.device} one after another"
    peaks = ", ".join(f"{name}: {peak / 1e12:.3g} TFLOP/s" for name, peak in plan.peak_flops.items())
    basis = (
        "measured on some steps of each kind of run"
        if plan.calibrated
        else f"peak {peaks}, {100 * plan.utilisation:.0f} % of it taken to be reached"
    )
    console.print(f"{total}; {basis}", highlight=False)
    if too_large := [run.run for run in plan.runs if run.fits is False]:
        console.print(
            f"! {len(too_large)} of them do not fit into the memory of one {plan.device}: {', '.join(too_large)}. Give "
            "train.accumulation or train.processes, or name a larger device.",
            highlight=False,
            markup=False,
        )
    if plan.confirm_runs:
        time = duration(plan.confirm_seconds) or "an unknown time"
        console.print(
            f"then {plan.confirm_runs} runs to confirm, each arm at its own best setting, {time}", highlight=False
        )
    if plan.core_hours is not None:
        console.print(f"{plan.core_hours:.1f} core-hours in all for what is not done", highlight=False)


def _table(plan: Plan) -> RunTable:
    """Set a line per run; how long it takes and whether it is done stay in the narrowest terminal."""
    from rich.text import Text

    from oelm.runner.display import RunTable, duration

    rows = [
        {
            "run": run.run,
            "fingerprint": run.fingerprint[:8],
            "stage": run.stage,
            "state": run.state,
            "trained": f"{run.trained:,}",
            "frozen": f"{run.frozen:,}",
            "steps": f"{run.steps:,}" if run.steps else "?",
            "TFLOP/step": f"{run.step_flops / 1e12:.4f}",
            "memory": f"{run.memory_bytes / 2**20:,.0f} MiB{' !' if run.fits is False else ''}",
            "s/step": f"{run.step_seconds:.3g}",
            "time": duration(run.seconds) or "?",
        }
        for run in plan.runs
    ]
    return RunTable(
        headings=tuple(rows[0]) if rows else (),
        rows=tuple(tuple(map(Text, row.values())) for row in rows),
        # What does not fit into memory is told in a sentence as well.
        expendable=("fingerprint", "TFLOP/step", "s/step", "memory", "stage", "frozen", "trained", "steps"),
        elsewhere="a wider terminal or --json",
    )
