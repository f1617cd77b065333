"""The report of an archived study, to be committed: one Markdown file per language, with one figure.

Run folders are not committed, so links to records become links to the line of the run in a report, which `oelm show`
continues. Of the figures only the first is kept, which shows the answer; `oelm report` draws the others.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from oelm.files import write_atomically
from oelm.record.archive import opened
from oelm.record.store import RECORD
from oelm.report.all_studies import final_document, read_archive
from oelm.report.document import Answer, Document, Figure, Remark, Section
from oelm.report.page import PAGE, compose, report_folder, write_document
from oelm.report.typeset import markdown_document
from oelm.report.wording import Language, Say, wording
from oelm.study import AnyStudy

Address = Callable[[str], str | None]
"""Where a link to a record leads instead; None: nowhere."""
PALETTE = 128


def shared_name(name: str, lang: Language) -> str:
    """Return the name of a committed file: "report.md", in Chinese "report.zh.md"."""
    stem, _, suffix = name.rpartition(".")
    return name if lang == "en" else f"{stem}.{lang}.{suffix}"


def write_shared(study: AnyStudy, folder: Path, lang: Language) -> Path:
    """Write the report of a study into the folder of its archive; return the Markdown file."""
    with opened(folder) as root:
        document = compose(study, root, root, lang).document
    anchors = {fold.anchor for section in document.sections for fold in section.folds}

    def address(href: str) -> str | None:
        anchor = f"run-{_run(href)}"
        return f"#{anchor}" if anchor in anchors else None

    return _write(_with_addresses(document, address, wording(lang)), folder, lang)


def write_shared_final(folder: Path, lang: Language) -> Path:
    """Write the final report of all studies into the folder of their folders; return the Markdown file.

    Links lead into the studies' reports, so those are written first.
    """
    with opened(folder) as root:
        found = read_archive(root)
        document = final_document(found, root, lang)
        pages = {study.name: path.relative_to(root) / shared_name("report.md", lang) for path, study in found.studies}
        texts = {page: (root / page).read_text() for page in pages.values() if (root / page).is_file()}

    def address(href: str) -> str | None:
        page = PurePosixPath(unquote(href)).parent.parent / shared_name("report.md", lang)
        anchor = f"run-{_run(href)}"
        return f"{page}#{anchor}" if f'id="{anchor}"' in texts.get(Path(page), "") else None

    links = {name: page.as_posix() for name, page in pages.items() if page in texts}
    return _write(_with_addresses(with_study_links(document, links), address, wording(lang)), folder, lang)


def write_final_page(root: Path, readable: Path, out: Path, lang: Language) -> Document:
    """Write the final report of the studies below `root` in every medium, from its archives unpacked in `readable`."""
    found = read_archive(readable)
    pages = {}
    for path, study in found.studies:
        folder = root / path.relative_to(readable)
        for page in (folder / shared_name("report.md", lang), report_folder(folder, lang) / PAGE):
            if page.is_file():
                pages[study.name] = page
    links = {name: quote(Path(os.path.relpath(page, out)).as_posix()) for name, page in pages.items()}
    document = with_study_links(final_document(found, out, lang), links)
    write_document(document, out, lang)
    return document


def with_study_links(document: Document, links: Mapping[str, str]) -> Document:
    """Let the list of studies in a final report lead to their reports."""
    sections = [
        replace(section, remarks=tuple(replace(one, href=links.get(one.subject)) for one in section.remarks))
        if section.anchor == "studies" else section
        for section in document.sections
    ]  # fmt: skip
    return replace(document, sections=tuple(sections))


def _write(document: Document, folder: Path, lang: Language) -> Path:
    """Write the Markdown, the first figure, and the small figures of single answers."""
    say, shown = wording(lang), None
    sections = []
    for section in document.sections:
        section = replace(section, answers=tuple(_with_figure(answer, folder, lang) for answer in section.answers))  # noqa: PLW2901
        if section.figure and shown is None:
            shown = _written(section.figure, folder, lang)
            sections.append(replace(section, figure=shown))
        elif section.figure:
            note = say("figure_on_demand", caption=section.figure.caption)
            sections.append(replace(section, figure=None, paragraphs=(*section.paragraphs, note)))
        else:
            sections.append(section)
    path = folder / shared_name("report.md", lang)
    write_atomically(path, markdown_document(replace(document, sections=tuple(sections))))
    return path


def _with_figure(answer: Answer, folder: Path, lang: Language) -> Answer:
    return replace(answer, figure=_written(answer.figure, folder, lang)) if answer.figure else answer


def _written(figure: Figure, folder: Path, lang: Language) -> Figure:
    """Write a figure as pixels, under a name of its language; return it with that name."""
    name = shared_name(f"{figure.name}.png", lang)
    write_atomically(folder / name, _with_few_colours(figure.png))
    return replace(figure, name=name.removesuffix(".png"))


def _with_addresses(document: Document, address: Address, say: Say) -> Document:
    return replace(document, sections=tuple(_section(section, address, say) for section in document.sections))


def _section(section: Section, address: Address, say: Say) -> Section:
    folds = tuple(replace(fold, href=None) if _run(fold.href) else fold for fold in section.folds)
    example = next((run for fold in section.folds if (run := _run(fold.href))), None)
    note = (say("evidence_show", example=example),) if example else ()
    return replace(
        section,
        paragraphs=(*section.paragraphs, *note),
        answers=tuple(_answer(answer, address) for answer in section.answers),
        remarks=tuple(_remark(remark, address, say) for remark in section.remarks),
        folds=folds,
    )


def _answer(answer: Answer, address: Address) -> Answer:
    """Let the links of the footnotes lead to lines of reports; those that lead nowhere are left out."""
    footnotes = []
    for footnote in answer.footnotes:
        groups = []
        for name, links in footnote.links:
            known = ((words, address(href) if _run(href) else href) for words, href in links)
            groups.append((name, tuple((words, href) for words, href in known if href)))
        footnotes.append(replace(footnote, links=tuple(group for group in groups if group[1])))
    return replace(answer, footnotes=tuple(footnotes))


def _remark(remark: Remark, address: Address, say: Say) -> Remark:
    run = _run(remark.href)
    if not run or not remark.href:
        return remark
    href = address(remark.href)
    return replace(remark, href=href, text=remark.text if href else say("show_run", text=remark.text, run=run))


def _run(href: str | None) -> str | None:
    """Return the name by which `oelm show` finds the run whose record a link leads to; None for another link."""
    path = PurePosixPath(unquote(href or ""))
    if path.name != RECORD:
        return None
    found = re.search(r"_([0-9a-f]{8,})$", path.parent.name)
    return found[1] if found else path.parent.name


def _with_few_colours(png: bytes) -> bytes:
    """Return the picture with a palette: a third of the size, and the same to the eye."""
    from PIL import Image

    file = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE).save(file, format="PNG", optimize=True)
    return file.getvalue()
