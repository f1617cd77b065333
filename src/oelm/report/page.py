"""One page that answers the study's question and needs nothing but itself to be read; beside it, Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from oelm.analysis.compare import Comparison, Row, compare_folder
from oelm.errors import BadRecord
from oelm.files import write_atomically
from oelm.record.schema import MetricRecord
from oelm.record.store import read_metrics
from oelm.report.content import Content, Remark, content
from oelm.report.figures import Panel, convergence_png, convergence_svg, curve
from oelm.report.tables import escaped, markdown
from oelm.report.wording import Language, Say, wording
from oelm.study import Study

PAGE, TEXT, FIGURE = "report.html", "report.md", "convergence"


def write_report(study: Study, root: Path, out: Path, lang: Language = "en") -> Comparison:
    """Compare the study's runs below `root` and write the report into `out`.

    There will be `report.html`, `report.md` and, where a run has a curve, `convergence.svg` and
    `convergence.png`; each is replaced in one step. Raise IncomparableRuns if the runs are not fair to one
    another.
    """
    say = wording(lang)
    comparison = compare_folder(study, root)
    drawn, complaints = panels(comparison)
    comparison = replace(comparison, unreadable=(*comparison.unreadable, *complaints))
    said = content(comparison, root, out, say)
    svg = convergence_svg(drawn, lang) if drawn else None
    if svg:
        write_atomically(out / f"{FIGURE}.svg", svg)
        write_atomically(out / f"{FIGURE}.png", convergence_png(drawn, lang))
    write_atomically(out / PAGE, html(said, svg, lang))
    write_atomically(out / TEXT, text(said, say, figure=bool(svg)))
    return comparison


def panels(comparison: Comparison) -> tuple[list[Panel], list[str]]:
    """Read the curves behind a comparison, a panel per place on the axes; tell what could not be read."""
    arms = [comparison.study.reference]
    arms += [arm.name for arm in comparison.study.arms if arm.name not in arms]
    found: list[Panel] = []
    complaints: list[str] = []
    for cell in dict.fromkeys(row.cell for row in comparison.rows):
        rows = [row for row in comparison.rows if row.cell == cell]
        drawn = [curve(row.arm, arms.index(row.arm), _metrics(row, complaints)) for row in rows]
        curves = tuple(item for item in drawn if item)
        title = ", ".join(f"{axis} = {value}" for axis, value in cell)
        if curves:
            found.append(Panel(title, curves, _validation_floor(rows)))
    return found, complaints


def _metrics(row: Row, complaints: list[str]) -> list[list[MetricRecord]]:
    read = []
    for item in row.evidence:
        try:
            read.append(read_metrics(item.directory))
        except BadRecord as error:
            complaints.append(str(error))
    return [points for points in read if points]


def _validation_floor(rows: Sequence[Row]) -> float | None:
    data = [item.record.data for row in rows for item in row.evidence if item.record.data]
    return next((found.floor["val"] for found in data if "val" in found.floor), None)


def html(said: Content, svg: str | None, lang: Language) -> str:
    """Set a report as one HTML page. All text is escaped; the figure is the one thing taken as markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figure = Markup(svg) if svg else None  # noqa: S704  (drawn by us; names in it are escaped by matplotlib)
    page = environment.get_template("page.html.j2")
    return page.render(said=said, figure=figure, lang={"en": "en", "zh": "zh-CN"}[lang], say=wording(lang))


def text(said: Content, say: Say, *, figure: bool) -> str:
    """Set a report as Markdown."""
    return "\n\n".join(_blocks(said, say, figure=figure)) + "\n"


def _blocks(said: Content, say: Say, *, figure: bool) -> Iterator[str]:
    yield f"# {escaped(said.title)}"
    yield f"*{escaped(said.question)}*"
    yield f"## {say('heading_verdict')}"
    yield escaped(say("join").join(said.lead))
    yield "\n".join(
        f"- **{escaped(answer.arm)}: {answer.word}.** {escaped(answer.sentence)}" for answer in said.answers
    )
    yield f"## {say('heading_table')}"
    yield markdown(said.table)
    yield from map(escaped, said.table.notes)
    if said.floor:
        yield escaped(said.floor)
    if figure:
        yield f"## {say('heading_plot')}"
        yield f"![{say('heading_plot')}]({FIGURE}.png)"
        yield escaped(say("plot_caption"))
    yield f"## {say('heading_evidence')}"
    yield "\n".join(
        f"- {escaped(heading)}, {say('seed')} {item.seed}: [{item.perplexity}]({item.href}), "
        f"{say('commit')} {escaped(item.commit)}, {say('command')} {escaped(item.command)}"
        for heading, certificates in said.evidence
        for item in certificates
    )
    for heading, remarks in {"heading_gaps": said.gaps, "heading_ignored": said.ignored}.items():
        if remarks:
            yield f"## {say(heading)}"
            yield "\n".join(map(_remark, remarks))
    if said.unreadable:
        yield f"## {say('heading_unreadable')}"
        yield "\n".join(f"- {escaped(line)}" for line in said.unreadable)
    yield escaped(said.footer)


def _remark(remark: Remark) -> str:
    subject = escaped(remark.subject)
    return f"- {f'[{subject}]({remark.href})' if remark.href else subject}: {escaped(remark.text)}"
