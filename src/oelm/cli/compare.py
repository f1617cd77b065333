"""`oelm compare`: what runs say about one another, if they may be compared at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from oelm.analysis.ablation import ablations
from oelm.analysis.compare import Comparison, compare_folder
from oelm.analysis.content import RatioSet
from oelm.analysis.gather import Gathering, find_runs, gather
from oelm.analysis.power import reach_of
from oelm.analysis.published import contradictions_about, published_run
from oelm.analysis.regime import find_regimes
from oelm.analysis.savings import Saving, savings
from oelm.analysis.statistics import Difference, Interval, percent
from oelm.cli.report import study_and_root
from oelm.record.archive import opened, original
from oelm.record.store import STUDY
from oelm.study import Listing

if TYPE_CHECKING:
    from oelm.report.document import Table
    from oelm.report.wording import Say


@dataclass
class Arguments:
    """Compare the runs of a study, or any runs, arm against reference and seed by seed.

    Runs that differ in more than method and seed are refused, by the field's name. Runs on several corpora are
    compared corpus by corpus.
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """A study's Python file or the folder of its runs; or any folders of runs (a run's own, or one with runs below)."""
    force: bool = False
    """Compare unfair runs all the same; everything that is unfair about them is said."""
    json: bool = False
    """Print the comparison for a machine."""
    out: Path = Path("runs")
    """Where a study's runs are: the folder given to `oelm run`."""
    scale: str | None = None
    """Which of the study file's scales."""


def main(argv: list[str]) -> int:
    """Parse, compare, show."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm compare")
    with ExitStack() as stack:
        gathering = _gathered(arguments, lambda root: stack.enter_context(opened(root)))
        if arguments.json:
            print(json.dumps(_plain(gathering), indent=1, ensure_ascii=False))
        else:
            _show(gathering)
    return 0


def _gathered(arguments: Arguments, readable: Callable[[Path], Path]) -> Gathering:
    """Compare what the arguments name; `readable` turns a folder of archives into one of runs."""
    if len(arguments.paths) == 1 and _declares(arguments.paths[0]):
        study, root = study_and_root(arguments.paths[0], arguments.out, arguments.scale)
        root = readable(root)
        if not isinstance(study, Listing):
            comparison = compare_folder(study, root, force=arguments.force)
            return Gathering((comparison,), (), comparison.unreadable, root)
        from oelm.report.listing import listed_records

        found, unreadable = find_runs([root])
        members = list(listed_records(study, found).values())
        return gather(members, force=arguments.force, unreadable=unreadable)
    found, unreadable = find_runs(list(map(readable, arguments.paths)))
    return gather(found, force=arguments.force, unreadable=unreadable)


def _declares(path: Path) -> bool:
    """Whether a path says what is an arm, an axis, tuned; else the runs alone must tell."""
    return path.suffix == ".py" or (path / STUDY).is_file()


def _show(gathering: Gathering) -> None:
    from rich.console import Console

    from oelm.report.tables import ablation_table
    from oelm.report.typeset import terminal
    from oelm.report.wording import wording
    from oelm.report.worth import content_table, regime_lines

    console, say = Console(), wording("en")
    for comparison in gathering.comparisons:
        complaints: list[str] = []
        regimes = find_regimes(comparison, gathering.root, complaints)
        for line in regime_lines(comparison, regimes, say):
            console.print(line, markup=False, highlight=False)
        console.print(terminal(_table(comparison, say), comparison.study.name, console.width))
        found = ablations(comparison)
        if found:
            console.print(terminal(ablation_table(comparison, found, say), "", console.width))
        known = [regime for regime in regimes.values() if regime.same_text]
        if known:
            console.print(terminal(content_table(comparison, known, say), say("heading_content"), console.width))
        for note in (*notes(comparison), *complaints):
            console.print(f"- {note}", markup=False, highlight=False, soft_wrap=True)
        console.print()
    for line in (*gathering.alone, *gathering.unreadable):
        console.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)


def _table(comparison: Comparison, say: Say) -> Table:
    """Return the figures; a screen has none but those it ranks by."""
    from oelm.analysis.tuning import sensitivities
    from oelm.report.tables import results, tuning_table

    if comparison.study.is_screen:
        return tuning_table(comparison, sensitivities(comparison), Path(), say)
    return results(comparison, say)


def notes(comparison: Comparison) -> Iterator[str]:
    """Say what a reader must know before believing the figures."""
    for reason in comparison.unfair:
        yield f"unfair: {reason}"
    for row in comparison.rows:
        if row.awaits and row.verdict == "undecided":
            yield f"{row.arm}: undecided ({row.awaits[0]} of {row.awaits[1]} seeds). The verdict waits for the others."
    if any(row.difference and row.difference.pairs == 1 for row in comparison.rows):
        yield "one seed: a single pair has no interval and decides nothing; add seeds."
    for saving in savings(comparison):
        if saving.unexplained:
            yield _doubt(saving)
    known = (published_run(item.spec) for row in comparison.rows for item in row.evidence)
    for item in contradictions_about({run.id for run in known if run}):
        yield f"{', '.join(item.runs)}: {item.en}"
    for gap in comparison.gaps:
        yield f"no figure: {gap.arm} with seed {gap.seed} ({gap.state})."
    for ignored in comparison.ignored:
        why = f"repeats {original(ignored.twin)}" if ignored.twin else f"departs in {', '.join(ignored.differs)}"
        yield f"left out: {original(ignored.directory)} {why}."


def _doubt(saving: Saving) -> str:
    return (
        f"{saving.arm} took {100 * (saving.time or 0):.0f} % less time, and the method can explain at most "
        f"{100 * (saving.flops or 0):.1f} % (its share of a step's FLOPs). Look for another cause."
    )


def _plain(gathering: Gathering) -> dict[str, Any]:
    return {
        "comparisons": [
            _comparison(comparison) | _content(comparison, gathering.root) for comparison in gathering.comparisons
        ],
        "alone": list(gathering.alone),
        "unreadable": list(gathering.unreadable),
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    relative = comparison.measure.name == "perplexity"
    return {
        "study": comparison.study.name,
        "reference": comparison.study.reference,
        "stage": comparison.stage.name,
        "measure": comparison.measure.name,
        "split": comparison.judged,
        "unfair": list(comparison.unfair),
        "registration": _registration(comparison),
        "arms": [
            {
                "arm": row.arm,
                "cell": dict(row.cell),
                "seeds": sorted(row.by_seed),
                comparison.measure.name: row.figure,
                "verdict": row.verdict,
                "awaits": dict(zip(("pairs", "seeds"), row.awaits, strict=True)) if row.awaits else None,
                "adjusted_p": row.adjusted,
                "more_seeds": row.more_seeds,
                "difference": _difference(row.difference, relative=relative),
                "records": [str(original(item.directory)) for item in row.evidence],
            }
            for row in comparison.rows
        ],
        "steps": [
            {
                "step": step.name,
                "from": step.start,
                "to": step.end,
                "cell": dict(item.cell),
                "difference": _difference(step.difference, relative=relative),
            }
            for item in ablations(comparison)
            for step in _with_whole(item.steps, item.whole)
        ],
        "savings": [asdict(saving) | {"unexplained": saving.unexplained} for saving in savings(comparison)],
        "notes": list(notes(comparison)),
    }


def _registration(comparison: Comparison) -> dict[str, Any] | None:
    """Return what was registered; None where nothing was, as for a screen or for runs gathered from anywhere."""
    found = comparison.registration
    if found is None or found.record is None:
        return None
    return {
        **found.record.model_dump(mode="json", include={"digest", "registered", "commit", "dirty", "margin_resolved"}),
        "changed": {field: {"registered": before, "now": now} for field, before, now in found.changed},
        "older_runs": [str(directory) for directory, _ in found.older],
    }


def _content(comparison: Comparison, root: Path | None) -> dict[str, Any]:
    """Return what is known about what content is worth, for each place on the axes; empty where nothing is."""
    complaints: list[str] = []
    regimes = find_regimes(comparison, root, complaints)
    known = [
        {
            "cell": dict(cell),
            "study": regime.study,
            "same_text": regime.same_text,
            "trained": regime.worth.arms.trained,
            "position_only": regime.worth.arms.position,
            "position_only_is_exact": regime.worth.arms.is_exact,
            "representative": regime.is_representative,
            "criteria": [asdict(criterion) | {"value": _finite(criterion.value)} for criterion in regime.criteria],
            "worth": _difference(regime.worth.value, relative=True),
            "frozen": [
                {
                    "arm": item.arm,
                    "cost": _difference(item.cost, relative=True),
                    "kept": item.share,
                    "interval": _set(item.interval),
                }
                for item in regime.worth.kept
            ],
        }
        for cell, regime in regimes.items()
    ]
    return {"content": known, "content_complaints": complaints}


def _finite(value: float | None) -> float | None:
    """Return a number that JSON has; null stands for infinity."""
    return value if value is not None and math.isfinite(value) else None


def _set(interval: RatioSet | None) -> dict[str, Any] | None:
    """Return a confidence set; a bound that is infinite is null."""
    if interval is None:
        return None
    return {"kind": interval.kind, "bounds": [_finite(interval.low), _finite(interval.high)]}


def _with_whole(steps: Sequence[Any], whole: Any) -> list[Any]:
    return [*steps, whole] if len(steps) > 1 else list(steps)


def _difference(difference: Difference | None, *, relative: bool) -> dict[str, Any] | None:
    """Return a difference as percent of perplexity or points of accuracy; more is worse."""
    if difference is None:
        return None
    interval, reach = difference.interval, reach_of(difference)

    def scaled(value: float) -> float:
        return percent(value) if relative else value

    return {
        "unit": "percent of perplexity" if relative else "points of accuracy lost",
        "pairs": difference.pairs,
        "mean": scaled(difference.mean),
        "interval": _bounds(interval, scaled),
        "plain_interval": _bounds(difference.plain, scaled),
        "robust_interval": _bounds(difference.robust, scaled),
        "degrees_of_freedom": difference.freedom,
        "like_arms": difference.prior.arms if difference.prior else None,
        "skewness": difference.skewness,
        "look": {
            "number": look.number, "of": len(look.seeds), "seeds": look.count, "level": look.level,
            "bounds": _bounds(difference.bounds, scaled),
        } if (look := difference.look) else None,
        "detectable": {name: scaled(value) for name, value in asdict(reach).items()} if reach else None,
    }  # fmt: skip


def _bounds(interval: Interval | None, scaled: Callable[[float], float]) -> list[float] | None:
    return [scaled(interval.low), scaled(interval.high)] if interval else None
