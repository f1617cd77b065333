"""What the records of runs say: `oelm compare` prints it, and `oelm report` writes it as a report."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from oelm.analysis.ablation import ablations
from oelm.analysis.budgets import Saving, savings
from oelm.analysis.compare import Comparison, Gathering, compare_folder, find_runs, find_study, gather
from oelm.analysis.content import RatioSet
from oelm.analysis.power import reach_of
from oelm.analysis.regime import find_regimes
from oelm.analysis.statistics import Difference, Interval, percent
from oelm.cli import say
from oelm.cli.terminal import parse
from oelm.errors import UsageError
from oelm.published.claims import contradictions_about, published_flop_share, published_run
from oelm.record.archive import open_archives, original_path
from oelm.record.folder import STUDY, find_records
from oelm.record.keep import keep
from oelm.record.stages import index_by_declaration, stage_of
from oelm.spec.run import declared_fingerprint
from oelm.spec.study import AnyStudy, Listing, Study

if TYPE_CHECKING:
    from oelm.record.record import RunRecord
    from oelm.report.render import Table
    from oelm.report.wording import Say

ReportLanguage = Literal["en", "zh"]
UNPACKED = ".runs"
"""Folder next to the report of an archive, with the unpacked runs that its links lead to."""


# oelm compare.


@dataclass
class CompareArguments:
    """Compare the runs of a study, or any runs: each arm with the reference, seed by seed.

    Runs that differ in more than method and seed are refused, and the error names the field. Runs on several corpora
    are compared corpus by corpus.

      oelm compare runs/demo
      oelm compare runs/baseline-seed0_1f0c runs/oelm-freeze-seed0_93ab --json
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Python file of a study, folder with its runs, or any folders with runs (also folders of single runs)."""
    force: bool = False
    """Compare unfair runs anyway. The output lists everything that is unfair about them."""
    json: bool = False
    """Print the comparison as JSON."""
    runs: Path = Path("runs")
    """Folder with the runs of studies: the --out of `oelm run`."""
    scale: str | None = None
    """Name of one of the study file's `scales`. By default its `study`."""


def compare_command(argv: list[str]) -> int:
    """Compare runs and print the result."""
    arguments = parse(CompareArguments, argv, "oelm compare")
    with ExitStack() as stack:
        gathering = _gather(arguments, lambda root: stack.enter_context(open_archives(root)))
        if arguments.json:
            say(json.dumps(_comparisons_as_data(gathering), indent=1, ensure_ascii=False))
        else:
            _print_comparisons(gathering)
    return 0


def _gather(arguments: CompareArguments, readable: Callable[[Path], Path]) -> Gathering:
    """Compare the given runs; `readable` turns a folder of archives into a folder of runs."""
    if len(arguments.paths) == 1 and _is_study(arguments.paths[0]):
        study, root = find_study(arguments.paths[0], arguments.runs, arguments.scale)
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


def _is_study(path: Path) -> bool:
    """Whether a path declares arms, axes and tuned fields; otherwise they are inferred from the runs."""
    return path.suffix == ".py" or (path / STUDY).is_file()


def _print_comparisons(gathering: Gathering) -> None:
    from oelm.console import Console
    from oelm.report.render import render_terminal
    from oelm.report.sections import content_table, regime_lines
    from oelm.report.tables import ablation_table
    from oelm.report.wording import wording

    console, say = Console(), wording("en")
    for comparison in gathering.comparisons:
        complaints: list[str] = []
        regimes = find_regimes(comparison, gathering.root, complaints)
        for line in regime_lines(comparison, regimes, say):
            console.print(line)
        console.print(render_terminal(_results_table(comparison, say), comparison.study.name, console.width))
        found = ablations(comparison)
        if found:
            console.print(render_terminal(ablation_table(comparison, found, say), "", console.width))
        known = [regime for regime in regimes.values() if regime.same_text]
        if known:
            console.print(render_terminal(content_table(comparison, known, say), say("heading_content"), console.width))
        for note in (*notes(comparison), *complaints):
            console.print(f"- {note}", soft_wrap=True)
        console.print()
    for line in (*gathering.alone, *gathering.unreadable):
        console.print(f"- {line}", soft_wrap=True)


def _results_table(comparison: Comparison, say: Say) -> Table:
    """Return the results; a screen has only the values that it ranks by."""
    from oelm.analysis.tuning import sensitivities
    from oelm.report.tables import results, tuning_table

    if comparison.study.is_screen:
        return tuning_table(comparison, sensitivities(comparison), Path(), say)
    return results(comparison, say)


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield what a reader must know before believing the numbers."""
    for reason in comparison.unfair:
        yield f"unfair: {reason}"
    for row in comparison.rows:
        if row.awaits and row.verdict == "undecided":
            yield f"{row.arm}: undecided ({row.awaits[0]} of {row.awaits[1]} seeds). The verdict needs the others."
    if any(row.difference and row.difference.pairs == 1 for row in comparison.rows):
        yield "one seed: a single pair has no interval and decides nothing; add seeds."
    for saving in savings(comparison, published_flop_share):
        if saving.unexplained:
            yield _explain_doubt(saving)
    known = (published_run(item.spec) for row in comparison.rows for item in row.evidence)
    for item in contradictions_about({run.id for run in known if run}):
        yield f"{', '.join(item.runs)}: {item.en}"
    yield from _list_environments(comparison)
    for gap in comparison.gaps:
        yield f"no figure: {gap.arm} with seed {gap.seed} ({gap.state})."
    for ignored in comparison.ignored:
        why = f"repeats {original_path(ignored.twin)}" if ignored.twin else f"departs in {', '.join(ignored.differs)}"
        yield f"left out: {original_path(ignored.directory)} {why}."


def _list_environments(comparison: Comparison) -> Iterator[str]:
    """Yield what differs between the machines and programs of the runs, and how many ran uncommitted code."""
    environments = [item.record.environment for row in comparison.rows for item in row.evidence]
    for name, found in (
        ("versions of torch", {each.torch for each in environments}),
        ("kinds of CPU or GPU", {each.device for each in environments}),
    ):
        if len(found) > 1:
            yield f"{len(found)} {name} ({', '.join(sorted(found))}): results agree statistically, but not bit for bit."
    if dirty := sum(bool(each.dirty) for each in environments):
        yield f"{dirty} of {len(environments)} runs ran code with uncommitted changes, so no commit names it."


def _explain_doubt(saving: Saving) -> str:
    return (
        f"{saving.arm} took {100 * (saving.time or 0):.0f} % less time, and the method can explain at most "
        f"{100 * (saving.flops or 0):.1f} % (its share of a step's FLOPs). Look for another cause."
    )


def _comparisons_as_data(gathering: Gathering) -> dict[str, Any]:
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
                "records": [str(original_path(item.directory)) for item in row.evidence],
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
            for step in (*item.steps, *([item.whole] if len(item.steps) > 1 else []))
        ],
        "savings": [
            asdict(saving) | {"unexplained": saving.unexplained} for saving in savings(comparison, published_flop_share)
        ],
        "notes": list(notes(comparison)),
    }


def _registration(comparison: Comparison) -> dict[str, Any] | None:
    """Return the registration, or None: screens and loose runs have none."""
    found = comparison.registration
    if found is None or found.record is None:
        return None
    return {
        **found.record.model_dump(mode="json", include={"digest", "registered", "commit", "dirty", "margin_resolved"}),
        "changed": {field: {"registered": before, "now": now} for field, before, now in found.changed},
        "older_runs": [str(directory) for directory, _ in found.older],
    }


def _content(comparison: Comparison, root: Path | None) -> dict[str, Any]:
    """Return what content is worth in each cell of the axes, as far as it is known."""
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
                    "interval": _confidence_set(item.interval),
                }
                for item in regime.worth.kept
            ],
        }
        for cell, regime in regimes.items()
    ]
    return {"content": known, "content_complaints": complaints}


def _finite(value: float | None) -> float | None:
    """Return a number that JSON can hold; infinity becomes null."""
    return value if value is not None and math.isfinite(value) else None


def _confidence_set(interval: RatioSet | None) -> dict[str, Any] | None:
    """Return a confidence set; an infinite bound becomes null."""
    if interval is None:
        return None
    return {"kind": interval.kind, "bounds": [_finite(interval.low), _finite(interval.high)]}


def _difference(difference: Difference | None, *, relative: bool) -> dict[str, Any] | None:
    """Return a difference in percent of perplexity or points of accuracy; larger is worse."""
    if difference is None:
        return None
    interval, reach = difference.interval, reach_of(difference)

    def scale(value: float) -> float:
        return percent(value) if relative else value

    return {
        "unit": "percent of perplexity" if relative else "points of accuracy lost",
        "pairs": difference.pairs,
        "mean": scale(difference.mean),
        "interval": _bounds(interval, scale),
        "plain_interval": _bounds(difference.plain, scale),
        "robust_interval": _bounds(difference.robust, scale),
        "degrees_of_freedom": difference.freedom,
        "like_arms": difference.prior.arms if difference.prior else None,
        "skewness": difference.skewness,
        "look": {
            "number": look.number, "of": len(look.seeds), "seeds": look.count, "level": look.level,
            "bounds": _bounds(difference.bounds, scale),
        } if (look := difference.look) else None,
        "detectable": {name: scale(value) for name, value in asdict(reach).items()} if reach else None,
    }  # fmt: skip


def _bounds(interval: Interval | None, scale: Callable[[float], float]) -> list[float] | None:
    return [scale(interval.low), scale(interval.high)] if interval else None


# oelm report.


@dataclass
class ReportArguments:
    """Compare the runs of a study and write its report: HTML, Markdown, LaTeX tables, CSV and figures.

    With --all, write the final report over every study in a folder.

      oelm report runs/demo
      oelm report docs/results --all --lang zh
    """

    study: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")] = None
    """Python file that declares the study, or folder with its runs or their archive. With --all, a folder of such
    folders."""
    scale: str | None = None
    """Name of one of the file's `scales`. By default its `study`."""
    runs: Path = Path("runs")
    """Folder with the runs of studies (the --out of `oelm run`), or with the runs of this study."""
    lang: ReportLanguage = "en"
    """Language of the report. The Chinese report is written into report-zh, next to the English one."""
    keep: Path | None = None
    """Folder that gets a copy of the runs' small files (no weights, no paths of this machine) and the report, for
    example docs/results/fair."""
    markdown: bool = False
    """Write only the files that are committed with an archive: report.md (report.zh.md) and its first figure."""
    unseal: bool = False
    """First score the final weights of the study's confirming runs on the sealed split of their data (oelm prepare
    --seal). This works once, for a registered study that is done. The result is unsealed.json."""
    all: bool = False
    """Write the final report: claims, trends and statistics over all studies."""


def report_command(argv: list[str]) -> int:
    """Write the report of a study, or of all studies."""
    arguments = parse(ReportArguments, argv, "oelm report")
    if arguments.all and arguments.unseal:
        raise UsageError("--unseal opens the sealed split of one study. Give that study without --all.")
    if arguments.all:
        return _report_all(arguments)
    if arguments.study is None:
        raise UsageError("STUDY is missing. Give the file that declares the study, the folder with its runs, or --all.")

    from oelm.report.write import report_folder, write_shared

    study, root = find_study(arguments.study, arguments.runs, arguments.scale)
    if arguments.unseal:
        from oelm.runs.restore import unseal

        unseal(study, root, say=print)
    if arguments.keep is not None:
        with open_archives(root) as readable:
            count = keep(study, readable, find_members(study, readable), arguments.keep)
        say(f"{count} runs of {study.name} kept in {arguments.keep}")
        root = arguments.keep
    try:
        if arguments.markdown:
            say(str(write_shared(study, root, arguments.lang)))
            return 0
        out = report_folder(root, arguments.lang)
        with open_archives(root, keep=out / UNPACKED) as readable:
            conclude(study, readable, arguments.lang, out)
    except PermissionError as error:
        raise UsageError(
            f"{error.filename or root} is not writable. Give --keep with a folder of yours: it gets the report and "
            "the small files of the runs."
        ) from error
    return 0


def find_members(study: AnyStudy, root: Path) -> list[tuple[Path, RunRecord]]:
    """Return the runs in a folder that belong to a study, and print which records are unreadable."""
    found, bad = find_records(root)
    for error in bad:
        say(f"not kept: {error}")
    runs = {declared_fingerprint(run) for run in stage_of(study, index_by_declaration(r for _, r in found)).runs}
    return [(path, record) for path, record in found if declared_fingerprint(record.spec) in runs]


def _report_all(arguments: ReportArguments) -> int:
    from oelm.report.write import report_folder, write_final, write_shared_final

    root = arguments.study or arguments.runs
    if arguments.markdown:
        say(str(write_shared_final(root, arguments.lang)))
        return 0
    out = report_folder(root, arguments.lang)
    gc.disable()  # all records live until the end: to search them again and again takes a seventh of the time
    try:
        with open_archives(root, keep=out / UNPACKED) as readable:
            write_final(root, out, arguments.lang, readable)
    finally:
        gc.enable()
    say(f"page: {out / 'report.html'}")
    _warn_without_font(arguments.lang)
    return 0


def conclude(study: AnyStudy, root: Path, lang: ReportLanguage, out: Path | None = None) -> None:
    """Write the report of a study (by default next to its runs), print its first table and where the page is."""
    from oelm.console import Console
    from oelm.report.render import render_terminal
    from oelm.report.study import registration_lines
    from oelm.report.wording import wording
    from oelm.report.write import report_folder, write_report

    out = out or report_folder(root, lang)
    written = write_report(study, root, out, lang)
    console = Console()
    for line in written.document.notice:
        console.print(line)
    for table in written.document.tables[:1]:
        console.print(render_terminal(table, study.question, console.width))
    for comparison in written.comparisons if isinstance(study, Study) else ():
        for line in registration_lines(comparison, wording(lang)):
            console.print(line, soft_wrap=True)
    for section in written.document.sections:
        if section.anchor == "content" and section.table:
            console.print(render_terminal(section.table, section.heading, console.width))
    if isinstance(study, Study) and (sample := _find_sample(written.comparisons)):
        console.print(f"A sample of {study.reference} (from [...] on):\n{sample}\n")
    console.print(f"page: {out / 'report.html'}", soft_wrap=True)
    _warn_without_font(lang)


def _warn_without_font(lang: ReportLanguage) -> None:
    from oelm.report.figures import chinese_fonts

    if lang == "zh" and not chinese_fonts():
        say(
            "note: this machine has no Chinese font, so the labels in the .png files are English. Install "
            "fonts-noto-cjk for Chinese labels.",
            stderr=True,
        )


def _find_sample(comparisons: Iterable[Comparison]) -> str | None:
    """Return the first sample of the reference, up to its first empty line."""
    from oelm.report.study import sample_of

    rows = (comparison.reference(cell) for comparison in comparisons for cell in comparison.cells)
    texts = (sample_of(item) for row in rows for item in row.evidence)
    return next((text.split("\n\n")[0] for text in texts if text), None)
