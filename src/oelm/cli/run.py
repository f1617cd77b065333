"""A study before and while it runs: `oelm plan` counts its runs, and `oelm run` starts them and writes their report.

What few plans need (the power of a study, the settings of the published study) is imported only for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from pydantic import NonNegativeInt

from oelm.cli import say
from oelm.cli.terminal import Count, parse
from oelm.errors import UsageError
from oelm.record.stages import EXTENSIONS, stage_of
from oelm.spec.run import RunSpec, SlurmSpec, TrackerName, with_tracker
from oelm.spec.study import AnyStudy, Listing, Study, load_study

if TYPE_CHECKING:
    from oelm.analysis.power import Need, SeedSpread
    from oelm.console import Console
    from oelm.runs.board import BoardEntry
    from oelm.runs.display import RunTable
    from oelm.runs.plan import Plan


# oelm plan.


@dataclass
class PlanArguments:
    """Show every run of a study: what it trains and freezes, its FLOPs, memory and time, and whether it is done.

    Nothing is trained or downloaded. Times are FLOPs divided by the device's peak and one fixed utilisation.

      oelm plan studies/demo.py
      oelm plan studies/fair.py --scale core-speeches --power
    """

    study: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Python file that declares `study = oelm.Study(...)`."""
    scale: str | None = None
    """Name of one of the file's `scales`. By default its `study`."""
    device: Literal["cpu", "a5000", "a100", "h100", "rtx4090"] | None = None
    """Device to plan for: cpu is this machine, measured briefly; the others are taken from their data sheets. By
    default cpu, or a5000 for runs that use cuda."""
    only: tuple[str, ...] = ()
    """Show only these runs: ids, arms, fingerprints, or patterns of them."""
    calibrate: bool = False
    """Time some real steps of each kind of run on this CPU instead. This takes seconds, and the result is cached."""
    runs: Path = Path("runs")
    """Folder with the runs of studies, the --out of `oelm run`: finished runs are shown as done."""
    json: bool = False
    """Print the plan, or with --settings or --power what they print, as JSON."""
    settings: bool = False
    """Print every setting of the runs instead, and for published runs where each value comes from. Use --only for one
    run."""
    power: bool = False
    """Print how many seeds each margin needs instead, from the spread of similar arms in the studies on record."""
    record: tuple[Path, ...] = (Path("docs/results"),)
    """Folders of studies on record for --power, in addition to --runs."""


def plan_command(argv: list[str]) -> int:
    """Count the runs of a study and show them."""
    asked = parse(PlanArguments, argv, "oelm plan")
    study = load_study(asked.study, asked.scale)
    if asked.power:
        return _show_power(study, (asked.runs, *asked.record), as_json=asked.json)

    from rich.text import Text

    from oelm.console import Console
    from oelm.runs.board import Board

    if asked.settings:
        entries = Board(study, asked.runs / study.name, only=asked.only).entries
        if asked.json:
            runs = [{"run": entry.name, "settings": _settings_data(entry.run)} for entry in entries]
            print(json.dumps({"study": study.name, "runs": runs}, indent=1))
        else:
            for entry in entries:
                print("\n".join([entry.name, *_setting_lines(entry.run)]))
        return 0

    from oelm.runs.plan import calibrate, plan

    first = study.listed[0] if isinstance(study, Listing) else study.base
    device = asked.device or ("a5000" if first.train.device == "cuda" else "cpu")
    with Console(stderr=True).status("counting") as status:
        board = Board(study, asked.runs / study.name, only=asked.only)
        calibration = calibrate if asked.calibrate else None
        result = plan(board, device, calibration=calibration, progress=lambda now: status.update(Text(now)))
    if asked.json:
        print(json.dumps(plan_data(result, study), indent=1, allow_nan=False))
    else:
        _print_plan(result, Console())
    return 0


def plan_data(plan: Plan, study: AnyStudy) -> dict[str, Any]:
    """Return a plan as plain data; for published runs with the sources of their settings."""
    from oelm.published.claims import published, published_run

    runs = study.listed if isinstance(study, Listing) else ()
    is_published = any(published_run(run) for run in runs)
    sources = [source.model_dump(mode="json", exclude_none=True) for source in published().settings]
    return plan.as_dict() | ({"sources": sources} if is_published else {})


def _settings_data(run: RunSpec) -> list[dict[str, Any]]:
    """Return every setting of a run; for a published one with the source of its value."""
    from oelm.published.claims import published_settings, setting_values

    sources = {setting.field: asdict(setting) for setting in published_settings(run)}
    settings = [sources.get(field, {"field": field, "value": value}) for field, value in setting_values(run)]
    return [{name: text for name, text in setting.items() if text is not None} for setting in settings]


def _setting_lines(run: RunSpec) -> Iterator[str]:
    """Yield a line for every setting of a run."""
    from oelm.published.claims import BASES

    for setting in _settings_data(run):
        said = f"  {BASES[setting['basis']]}: {setting['where']}" if "basis" in setting else ""
        yield f"  {setting['field']:24} {setting['value']:24}{said}".rstrip()
        if "differs" in setting:
            yield f"  {'':24} {'':24}  but {setting['differs']}"


def _print_plan(plan: Plan, console: Console) -> None:
    from oelm.runs.display import format_duration

    console.print(f"{plan.study}: {plan.question}")
    console.print(_plan_table(plan))
    time = format_duration(plan.seconds) or "an unknown time"
    total = f"{len(plan.runs)} runs, {time} on {plan.device} one after another"
    peaks = ", ".join(f"{name}: {peak / 1e12:.3g} TFLOP/s" for name, peak in plan.peak_flops.items())
    basis = (
        "measured on some steps of each kind of run"
        if plan.calibrated
        else f"peak {peaks}, of which {100 * plan.utilisation:.0f} % is assumed to be reached"
    )
    console.print(f"{total}; {basis}")
    place = "the memory that is free here now" if plan.device == "cpu" else f"the memory of one {plan.device}"
    if too_large := [run.run for run in plan.runs if run.fits is False]:
        console.print(
            f"! {len(too_large)} of them do not fit into {place}: {', '.join(too_large[:8])}. Set train.accumulation "
            "or train.processes, or choose a larger device.",
        )
    for warning in dict.fromkeys(run.warning for run in plan.runs if run.warning):
        console.print(f"! {warning}")
    if plan.confirm_runs:
        time = format_duration(plan.confirm_seconds) or "an unknown time"
        console.print(f"then {plan.confirm_runs} confirming runs, each arm at its own best setting, {time}")
        console.print(
            "The grid may grow: if an arm is best at an end of it, it gets one more value there for every arm, up to "
            f"{EXTENSIONS} times.",
            soft_wrap=True,
        )
    if plan.core_hours is not None:
        console.print(f"{plan.core_hours:.1f} core-hours in all for the runs that are not done")


def _plan_table(plan: Plan) -> RunTable:
    """Return a table with one line per run. Its time and state stay visible in the narrowest terminal."""
    from rich.text import Text

    from oelm.runs.display import RunTable, format_duration

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
            "time": format_duration(run.seconds) or "?",
        }
        for run in plan.runs
    ]
    return RunTable(
        headings=tuple(rows[0]) if rows else (),
        rows=tuple(tuple(map(Text, row.values())) for row in rows),
        # A sentence below the table names the runs that do not fit into memory, so that column may be left out.
        expendable=("fingerprint", "TFLOP/step", "s/step", "memory", "stage", "frozen", "trained", "steps"),
        elsewhere="a wider terminal or --json",
    )


def _show_power(study: AnyStudy, roots: Sequence[Path], *, as_json: bool) -> int:
    """Print how many seeds each margin needs, and the studies whose spread over seeds this is based on."""
    from oelm.analysis.power import needs, spreads_on_record

    if not isinstance(study, Study) or study.is_screen:
        raise UsageError(
            f"--power needs a study that compares arms over seeds, and {study.name!r} does not. Give another study."
        )
    spreads, complaints = spreads_on_record(study, [root for root in roots if root.is_dir()])
    found = needs(study, spreads)
    if as_json:
        print(json.dumps({
            "study": study.name,
            "unit": _unit(study),
            "power": 0.8,
            "spreads": [asdict(spread) for spread in spreads],
            "needs": [asdict(need) for need in found],
            "unreadable": complaints,
        }, indent=1))  # fmt: skip
        return 0
    say("\n".join(_power_lines(study, spreads, found, roots)))
    for complaint in complaints:
        say(f"not read: {complaint}")
    return 0


def _power_lines(
    study: Study, spreads: Sequence[SeedSpread], found: Sequence[Need], roots: Sequence[Path]
) -> Iterator[str]:
    unit = _unit(study)
    yield f"{study.name} has {len(study.seeds)} seeds. Seeds for 80 % power (one-sided 5 %, plain t, each arm alone):"
    absent = {arm.method.arm_class for arm in study.arms if arm.name != study.reference} - {
        s.arm_class for s in spreads
    }
    for spread in spreads:
        yield from _class_lines(study, spread, [need for need in found if need.arm_class == spread.arm_class], unit)
    for kind in sorted(absent):
        yield f"{kind} arms: none on record in {', '.join(map(str, roots))}, so their spread is unknown"


def _class_lines(study: Study, spread: SeedSpread, found: Sequence[Need], unit: str) -> Iterator[str]:
    from oelm.analysis.evidence import measure_of
    from oelm.analysis.statistics import MOST_SEEDS

    scaled = measure_of(study.base.data, []).scaled
    where = "of the same model, data and steps" if spread.alike else "of other models, data or steps: only a guess"
    yield (
        f"{spread.arm_class} arms: typical deviation {scaled(spread.typical):.2g} {unit}, largest "
        f"{scaled(spread.largest):.2g}; {spread.arms} arms, {spread.freedom} degrees of freedom, {where}"
    )
    yield f"  from {', '.join(spread.studies)}"
    for need in found:
        seeds, most = (str(count) if count else f"more than {MOST_SEEDS}" for count in (need.seeds, need.seeds_largest))
        yield f"  margin {need.margin:g} {unit}, true difference {need.truth:g}: {seeds}; the largest deviation: {most}"
    if spread.prior:
        freedom, deviation = spread.prior
        yield f"  as a declared prior: prior={{{spread.arm_class!r}: ({freedom:.3g}, {deviation:.3g})}}"


def _unit(study: Study) -> str:
    from oelm.analysis.evidence import measure_of

    return "% of perplexity" if measure_of(study.base.data, []).name == "perplexity" else "points"


# oelm run.


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
