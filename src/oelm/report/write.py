"""Write reports.

The report of a study is one self-contained HTML page, with Markdown, LaTeX, CSV and figures next to it. The report of
an archive, which is meant to be committed, is one Markdown file per language with one figure. Run folders are not
committed, so there a link to a record becomes a link to the line of the run in a report, and `oelm show` prints the
record. `oelm report` draws the other figures on request.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from oelm.analysis.compare import Comparison, compare_folder
from oelm.errors import UsageError
from oelm.files import write_atomically
from oelm.record.archive import open_archives
from oelm.record.folder import RECORD, write_study
from oelm.record.record import refuse_link
from oelm.report.final import final_document, read_archive
from oelm.report.listing import listing_document
from oelm.report.render import (
    Answer,
    Document,
    Figure,
    Remark,
    Section,
    render_csv,
    render_latex,
    render_markdown_document,
)
from oelm.report.study import study_document
from oelm.report.wording import HTML_LANGUAGES, Language, Say, wording
from oelm.spec.study import AnyStudy, Listing

PAGE, TEXT, TABLES = "report.html", "report.md", "tables.tex"
PALETTE = 128
"""Colours of a committed figure."""
Address = Callable[[str], str | None]
"""Maps a link to a record to the link that replaces it, or to None to remove the link."""


@dataclass(frozen=True)
class Written:
    """A report, and the comparisons that it describes."""

    document: Document
    comparisons: tuple[Comparison, ...]


def report_folder(root: Path, lang: Language) -> Path:
    """Return the folder for the report of some runs. Each language has its own, so that both can be kept."""
    return root / ("report" if lang == "en" else f"report-{lang}")


def write_report(study: AnyStudy, root: Path, out: Path, lang: Language = "en") -> Written:
    """Compare the runs of a study below `root` and write the report into `out`.

    Raise IncomparableRuns if the runs of a matrix cannot be compared fairly. For a listing, the report says so instead.
    """
    written = compose_report(study, root, out, lang)
    write_study(root, study)
    write_document(written.document, out, lang)
    return written


def compose_report(study: AnyStudy, root: Path, out: Path, lang: Language = "en") -> Written:
    """Compare the runs of a study below `root` and return the report, with links relative to `out`."""
    if out.parent == root:
        refuse_link(out)
    wording(lang)  # refuse an unknown language before anything is read
    if isinstance(study, Listing):
        document, comparisons = listing_document(study, root, out, lang)
    else:
        document, comparison = study_document(compare_folder(study, root), root, out, lang)
        comparisons = [comparison]
    return Written(document, tuple(comparisons))


def write_final(root: Path, out: Path, lang: Language, unpacked: Path | None = None) -> Document:
    """Write the report on all studies below `root`. If they are archived, `unpacked` is the folder with their runs."""
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder, so there is nothing to report. Give the folder of `oelm run`.")
    if out.parent == root:
        refuse_link(out)
    readable = unpacked or root
    found = read_archive(readable)
    pages = {}
    for path, study in found.studies:
        folder = root / path.relative_to(readable)
        for page in (folder / shared_name(TEXT, lang), report_folder(folder, lang) / PAGE):
            if page.is_file():
                pages[study.name] = quote(Path(os.path.relpath(page, out)).as_posix())
    document = _link_studies(final_document(found, out, lang), pages)
    write_document(document, out, lang)
    return document


def write_document(document: Document, out: Path, lang: Language) -> None:
    """Write a document in every format, each file in one step."""
    for figure in document.figures:
        write_atomically(out / f"{figure.name}.svg", figure.svg)
        write_atomically(out / f"{figure.name}.png", figure.png)
    captions = {section.table.name: section.heading for section in document.sections if section.table}
    for table in document.tables:
        write_atomically(out / f"{table.name}.csv", render_csv(table))
    if document.tables:
        tables = "\n".join(render_latex(table, captions[table.name]) for table in document.tables)
        write_atomically(out / TABLES, tables)
    write_atomically(out / PAGE, render_html(document, lang))
    write_atomically(out / TEXT, render_markdown_document(document))


def render_html(document: Document, lang: Language) -> str:
    """Render a report as one HTML page. All text is escaped; only the figures are inserted as markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # We draw the figures ourselves, and matplotlib escapes the names in them.
    figures = {figure.name: Markup(figure.svg) for figure in document.figures}  # noqa: S704
    page = environment.get_template("page.html.j2")
    return page.render(document=document, figures=figures, lang=HTML_LANGUAGES[lang], say=wording(lang))


# Reports of archives, to be committed.


def shared_name(name: str, lang: Language) -> str:
    """Return the name of a committed file: "report.md", in Chinese "report.zh.md"."""
    stem, _, suffix = name.rpartition(".")
    return name if lang == "en" else f"{stem}.{lang}.{suffix}"


def write_shared(study: AnyStudy, folder: Path, lang: Language) -> Path:
    """Write the report of a study into the folder of its archive; return the Markdown file."""
    with open_archives(folder) as root:
        document = compose_report(study, root, root, lang).document
    anchors = {fold.anchor for section in document.sections for fold in section.folds}

    def address(href: str) -> str | None:
        anchor = f"run-{_run(href)}"
        return f"#{anchor}" if anchor in anchors else None

    return _write_shared(document, address, folder, lang)


def write_shared_final(folder: Path, lang: Language) -> Path:
    """Write the report on all studies into the folder that contains their archives; return the Markdown file.

    Its links lead into the reports of the studies, so write those first.
    """
    with open_archives(folder) as root:
        found = read_archive(root)
        document = final_document(found, root, lang)
        pages = {study.name: path.relative_to(root) / shared_name(TEXT, lang) for path, study in found.studies}
        texts = {page: (root / page).read_text() for page in pages.values() if (root / page).is_file()}

    def address(href: str) -> str | None:
        page = PurePosixPath(unquote(href)).parent.parent / shared_name(TEXT, lang)
        anchor = f"run-{_run(href)}"
        return f"{page}#{anchor}" if f'id="{anchor}"' in texts.get(Path(page), "") else None

    links = {name: page.as_posix() for name, page in pages.items() if page in texts}
    return _write_shared(_link_studies(document, links), address, folder, lang)


def _link_studies(document: Document, links: Mapping[str, str]) -> Document:
    """Link the list of studies to their reports."""
    sections = [
        replace(section, remarks=tuple(replace(one, href=links.get(one.subject)) for one in section.remarks))
        if section.anchor == "studies" else section
        for section in document.sections
    ]  # fmt: skip
    return replace(document, sections=tuple(sections))


def _write_shared(document: Document, address: Address, folder: Path, lang: Language) -> Path:
    """Write the Markdown and its first figure. The others are drawn on demand."""
    say, shown = wording(lang), False
    sections = []
    for original in document.sections:
        section = _change_links(original, address, say)
        if any(answer.figure for answer in section.answers):
            answers = tuple(replace(answer, figure=None) for answer in section.answers)
            section = replace(section, answers=answers, paragraphs=(*section.paragraphs, say("figures_on_demand")))
        if section.figure and not shown:
            shown = True
            section = replace(section, figure=_write_figure(section.figure, folder, lang))
        elif section.figure:
            note = say("figure_on_demand", caption=section.figure.caption)
            section = replace(section, figure=None, paragraphs=(*section.paragraphs, note))
        sections.append(section)
    path = folder / shared_name(TEXT, lang)
    write_atomically(path, render_markdown_document(replace(document, sections=tuple(sections))))
    return path


def _write_figure(figure: Figure, folder: Path, lang: Language) -> Figure:
    """Write a figure as PNG under a name of its language, and return it with that name.

    A palette makes the file three times smaller without a visible difference.
    """
    from PIL import Image

    name, file = shared_name(f"{figure.name}.png", lang), io.BytesIO()
    with Image.open(io.BytesIO(figure.png)) as image:
        image.convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE).save(file, format="PNG", optimize=True)
    write_atomically(folder / name, file.getvalue())
    return replace(figure, name=name.removesuffix(".png"))


def _change_links(section: Section, address: Address, say: Say) -> Section:
    """Replace the links to records, which are not committed."""
    folds = tuple(replace(fold, href=None) if _run(fold.href) else fold for fold in section.folds)
    example = next((run for fold in section.folds if (run := _run(fold.href))), None)
    note = (say("evidence_show", example=example),) if example else ()
    return replace(
        section,
        paragraphs=(*section.paragraphs, *note),
        answers=tuple(_change_answer(answer, address) for answer in section.answers),
        remarks=tuple(_change_remark(remark, address, say) for remark in section.remarks),
        folds=folds,
    )


def _change_answer(answer: Answer, address: Address) -> Answer:
    """Link the footnotes to lines of reports, and remove the links without a target."""
    footnotes = []
    for footnote in answer.footnotes:
        groups = []
        for name, links in footnote.links:
            known = ((words, address(href) if _run(href) else href) for words, href in links)
            groups.append((name, tuple((words, href) for words, href in known if href)))
        footnotes.append(replace(footnote, links=tuple(group for group in groups if group[1])))
    return replace(answer, footnotes=tuple(footnotes))


def _change_remark(remark: Remark, address: Address, say: Say) -> Remark:
    run = _run(remark.href)
    if not run or not remark.href:
        return remark
    href = address(remark.href)
    return replace(remark, href=href, text=remark.text if href else say("show_run", text=remark.text, run=run))


def _run(href: str | None) -> str | None:
    """Return the name by which `oelm show` finds the run that a link to a record belongs to; None for other links."""
    path = PurePosixPath(unquote(href or ""))
    if path.name != RECORD:
        return None
    found = re.search(r"_([0-9a-f]{8,})$", path.parent.name)
    return found[1] if found else path.parent.name
