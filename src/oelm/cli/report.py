"""`oelm report`: from records to a page."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from oelm.errors import UsageError
from oelm.study import AnyStudy, Study, load_study

if TYPE_CHECKING:
    from oelm.analysis.compare import Comparison
    from oelm.record.schema import RunRecord

Language = Literal["en", "zh"]
UNPACKED = ".runs"
"""Where a report made from an archive keeps the unpacked runs that its links lead to."""


@dataclass
class Arguments:
    """Compare the runs of a study and write a page, Markdown, LaTeX tables, CSV and figures.

    With --all: the final report over every study of a folder of runs.
    """

    study: tyro.conf.Positional[Path | None] = None
    """The Python file that declares the study, or a folder of its runs or of their archive; with --all: a folder of
    such folders."""
    scale: str | None = None
    """Which of the file's scales; by default the study itself."""
    out: Path = Path("runs")
    """Where the runs are: the folder given to `oelm run`, or one that holds the study's runs itself."""
    lang: Language = "en"
    """Language of the report; the Chinese one lies beside the English one, in report-zh."""
    keep: Path | None = None
    """Copy the runs' light files (no weights, no paths of this machine) here, to be committed: docs/results/fair."""
    markdown: bool = False
    """Write only what is committed with an archive: report.md (report.zh.md) and its first figure, next to it."""
    unseal: bool = False
    """First score the final weights of the study's confirming runs on the sealed split of their data (oelm prepare
    --seal). This works once, for a registered study that is done; the result is unsealed.json."""
    all: bool = False
    """The final report: claims, trends and statistics over all studies."""


def main(argv: list[str]) -> int:
    """Parse and write."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm report")
    if arguments.all and arguments.unseal:
        raise UsageError("--unseal opens the sealed split of one study. Give that study, without --all.")
    if arguments.all:
        return _final(arguments)
    if arguments.study is None:
        raise UsageError("which study? Give the file that declares it, a folder of its runs, or --all.")

    from oelm.record.archive import opened
    from oelm.report.page import report_folder
    from oelm.report.share import write_shared

    study, root = study_and_root(arguments.study, arguments.out, arguments.scale)
    if arguments.unseal:
        from oelm.runner.unseal import unseal

        unseal(study, root, say=print)
    if arguments.keep is not None:
        with opened(root) as readable:
            _keep(study, readable, arguments.keep)
        root = arguments.keep
    try:
        if arguments.markdown:
            print(write_shared(study, root, arguments.lang))
            return 0
        out = report_folder(root, arguments.lang)
        with opened(root, keep=out / UNPACKED) as readable:
            conclude(study, readable, arguments.lang, out)
    except PermissionError as error:
        raise UsageError(
            f"{error.filename or root} may not be written. Say --keep with a folder of yours: it gets the report, and "
            "the light files of the runs."
        ) from error
    return 0


def study_and_root(path: Path, out: Path, scale: str | None) -> tuple[AnyStudy, Path]:
    """Find a study and the folder of its runs: from its file, or from the folder alone."""
    from oelm.record.archive import ARCHIVE
    from oelm.record.store import read_study

    if path.name == ARCHIVE:
        path = path.parent
    if path.is_dir():
        return read_study(path), path
    study = load_study(path, scale)
    root = next((folder for folder in (out / study.name, out) if _holds(folder, study)), None)
    if root is None:
        raise UsageError(
            f"nothing of {study.name!r} has been run below {out}. `oelm run {path}` does that; if its runs lie "
            "elsewhere, name the folder with --out."
        )
    return study, root


def _holds(folder: Path, study: AnyStudy) -> bool:
    """Whether a folder is that of a study's runs, by what was declared there or, copied together, by the runs."""
    from oelm.record.stages import by_declaration, stage_of
    from oelm.record.store import RECORD, STUDY, find_records, read_study
    from oelm.spec.run import fingerprint

    if (folder / STUDY).exists():
        return read_study(folder).name == study.name
    if any(folder.glob(f"*/{STUDY}")) or not any(folder.glob(f"*/{RECORD}")):
        return False
    found, _ = find_records(folder)
    known = by_declaration(record for _, record in found)
    return any(fingerprint(run) in known for run in stage_of(study, known).runs)


def _keep(study: AnyStudy, root: Path, target: Path) -> None:
    from oelm.record.keep import keep

    print(f"{keep(study, root, members_of(study, root), target)} runs of {study.name} kept in {target}")


def members_of(study: AnyStudy, root: Path) -> list[tuple[Path, RunRecord]]:
    """Return the runs below a folder that belong to a study; print what cannot be read."""
    from oelm.record.stages import by_declaration, stage_of
    from oelm.record.store import find_records
    from oelm.spec.run import declared, fingerprint

    found, bad = find_records(root)
    for error in bad:
        print(f"not kept: {error}")
    runs = {fingerprint(declared(run)) for run in stage_of(study, by_declaration(r for _, r in found)).runs}
    return [(path, record) for path, record in found if fingerprint(declared(record.spec)) in runs]


def _final(arguments: Arguments) -> int:
    from oelm.record.archive import opened
    from oelm.report.all_studies import write_final
    from oelm.report.page import report_folder
    from oelm.report.share import write_final_page, write_shared_final

    root = arguments.study or arguments.out
    if arguments.markdown:
        print(write_shared_final(root, arguments.lang))
        return 0
    out = report_folder(root, arguments.lang)
    with opened(root, keep=out / UNPACKED) as readable:
        if readable == root:
            write_final(root, out, arguments.lang)
        else:
            write_final_page(root, readable, out, arguments.lang)
    print(f"page: {out / 'report.html'}")
    _mind_the_font(arguments.lang)
    return 0


def conclude(study: AnyStudy, root: Path, lang: Language, out: Path | None = None) -> None:
    """Write the report of a study's runs, by default among them, show its table and say where the page is."""
    from rich.console import Console

    from oelm.report.page import report_folder, write_report
    from oelm.report.registration import registration_lines
    from oelm.report.typeset import terminal
    from oelm.report.wording import wording

    out = out or report_folder(root, lang)
    written = write_report(study, root, out, lang)
    console = Console()
    for line in written.document.notice:
        console.print(line, markup=False, highlight=False)
    for table in written.document.tables[:1]:
        console.print(terminal(table, study.question, console.width))
    for comparison in written.comparisons if isinstance(study, Study) else ():
        for line in registration_lines(comparison, wording(lang)):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for section in written.document.sections:
        if section.anchor == "content" and section.table:
            console.print(terminal(section.table, section.heading, console.width))
    if isinstance(study, Study) and (sample := _sample(written.comparisons)):
        console.print(f"A sample of {study.reference} (from [...] on):\n{sample}\n", markup=False, highlight=False)
    console.print(f"page: {out / 'report.html'}", soft_wrap=True, highlight=False)
    _mind_the_font(lang)


def _mind_the_font(lang: Language) -> None:
    from oelm.report.figures import chinese_fonts

    if lang == "zh" and not chinese_fonts():
        print(
            "note: this machine has no Chinese font, so the labels in the .png files are English; Debian's "
            "fonts-noto-cjk has one.",
            file=sys.stderr,
        )


def _sample(comparisons: Iterable[Comparison]) -> str | None:
    """Return what the first of the reference's runs writes, up to its first empty line."""
    from oelm.report.sections import sample_of

    rows = (comparison.reference(cell) for comparison in comparisons for cell in comparison.cells)
    texts = (sample_of(item) for row in rows for item in row.evidence)
    return next((text.split("\n\n")[0] for text in texts if text), None)
