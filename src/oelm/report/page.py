"""Write a report: one page that needs nothing but itself to be read, and beside it Markdown, LaTeX, CSV, figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oelm.analysis.compare import Comparison, compare_folder
from oelm.files import write_atomically
from oelm.record.store import write_study
from oelm.report.content import study_document
from oelm.report.document import Document
from oelm.report.listing import listing_document
from oelm.report.typeset import comma_separated, latex, markdown_document
from oelm.report.wording import HTML_LANGUAGES, Language, wording
from oelm.study import AnyStudy, Listing

PAGE, TEXT, TABLES = "report.html", "report.md", "tables.tex"


@dataclass(frozen=True)
class Written:
    """What a report says, and the comparisons behind it."""

    document: Document
    comparisons: tuple[Comparison, ...]


def report_folder(root: Path, lang: Language) -> Path:
    """Return where a report of some runs lies: each language has a folder of its own, so that both can be kept."""
    return root / ("report" if lang == "en" else f"report-{lang}")


def write_report(study: AnyStudy, root: Path, out: Path, lang: Language = "en") -> Written:
    """Compare the runs of a study below `root` and write the report into `out`.

    Raise IncomparableRuns if the runs of a matrix are not fair to one another; of a listing, the report says so.
    """
    written = compose(study, root, out, lang)
    write_study(root, study)
    write_document(written.document, out, lang)
    return written


def compose(study: AnyStudy, root: Path, out: Path, lang: Language = "en") -> Written:
    """Compare the runs of a study below `root` and return the report, with links relative to `out`."""
    wording(lang)  # an unknown language is refused before anything is read
    if isinstance(study, Listing):
        document, comparisons = listing_document(study, root, out, lang)
    else:
        document, comparison = study_document(compare_folder(study, root), root, out, lang)
        comparisons = [comparison]
    return Written(document, tuple(comparisons))


def write_document(document: Document, out: Path, lang: Language) -> None:
    """Set a document in every medium, each file replaced in one step."""
    for figure in document.figures:
        write_atomically(out / f"{figure.name}.svg", figure.svg)
        write_atomically(out / f"{figure.name}.png", figure.png)
    captions = {section.table.name: section.heading for section in document.sections if section.table}
    for table in document.tables:
        write_atomically(out / f"{table.name}.csv", comma_separated(table))
    if document.tables:
        tables = "\n".join(latex(table, captions[table.name]) for table in document.tables)
        write_atomically(out / TABLES, tables)
    write_atomically(out / PAGE, html(document, lang))
    write_atomically(out / TEXT, markdown_document(document))


def html(document: Document, lang: Language) -> str:
    """Set a report as one HTML page. All text is escaped; the figures are the one thing taken as markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Drawn by us; names in the figures are escaped by matplotlib.
    figures = {figure.name: Markup(figure.svg) for figure in document.figures}  # noqa: S704
    page = environment.get_template("page.html.j2")
    return page.render(document=document, figures=figures, lang=HTML_LANGUAGES[lang], say=wording(lang))
