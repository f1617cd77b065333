"""`oelm report`: compare the runs of a study and write its report."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from oelm.cli import say
from oelm.cli.terminal import parse
from oelm.errors import UsageError
from oelm.spec.study import AnyStudy, Study

if TYPE_CHECKING:
    from oelm.analysis.compare import Comparison
    from oelm.record.record import RunRecord

ReportLanguage = Literal["en", "zh"]
UNPACKED = ".runs"
"""Folder next to the report of an archive, with the unpacked runs that its links lead to."""


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

    from oelm.analysis.compare import find_study
    from oelm.record.archive import open_archives
    from oelm.record.keep import keep
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
    from oelm.record.folder import find_records
    from oelm.record.stages import index_by_declaration, stage_of
    from oelm.spec.run import declared_fingerprint

    found, bad = find_records(root)
    for error in bad:
        say(f"not kept: {error}")
    runs = {declared_fingerprint(run) for run in stage_of(study, index_by_declaration(r for _, r in found)).runs}
    return [(path, record) for path, record in found if declared_fingerprint(record.spec) in runs]


def _report_all(arguments: ReportArguments) -> int:
    from oelm.record.archive import open_archives
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
