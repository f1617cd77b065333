"""Reports as plain values, and their rendering for a terminal and as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import html
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.console
    import rich.table
    import rich.text


@dataclass(frozen=True)
class Column:
    """The kind of content of a column, and its heading."""

    name: str
    heading: str

    @property
    def numeric(self) -> bool:
        """Whether the cells are numbers and not words."""
        return self.name not in ("arm", "name", "verdict", "words", "state", "measure")


@dataclass(frozen=True)
class Line:
    """The formatted cells of one row, in the order of the columns."""

    cells: tuple[str, ...]
    tone: str | None = None
    """The verdict in the line, which gives its colour."""
    href: str | None = None
    """Link to the source of the numbers in the line."""
    links: dict[int, str] = field(default_factory=dict)
    """Index of a cell -> link of this cell."""


@dataclass(frozen=True)
class Table:
    """A table of formatted cells. Its files are called `name`."""

    name: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    left_out: str = ""
    """The note that names the columns ({}) that a narrow terminal omits. If it is empty, no column is omitted."""


@dataclass(frozen=True)
class Figure:
    """A figure, which is drawn only when it is needed. Its files are called `name`."""

    name: str
    caption: str
    draw_svg: Callable[[], str]
    draw_png: Callable[[], bytes]

    @cached_property
    def svg(self) -> str:
        """The figure as an SVG element."""
        return self.draw_svg()

    @cached_property
    def png(self) -> bytes:
        """The figure as PNG."""
        return self.draw_png()


@dataclass(frozen=True)
class Footnote:
    """Evidence for an answer: a sentence, and named groups of links."""

    text: str
    links: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """Name of the group, and the text and address of each link."""


@dataclass(frozen=True)
class Answer:
    """The result for one subject, in a word and in a few sentences, optionally with a figure and footnotes."""

    subject: str
    tone: str
    word: str
    sentence: str
    needs: tuple[str, ...] = ()
    """Experiments that would decide it."""
    figure: Figure | None = None
    footnotes: tuple[Footnote, ...] = ()
    """Collapsed in HTML, after the answer in Markdown."""
    anchor: str = ""


@dataclass(frozen=True)
class Remark:
    """A line about a subject, with a link to its record if there is one."""

    subject: str
    text: str
    href: str | None = None


@dataclass(frozen=True)
class Folded:
    """Long text that is collapsed under its summary. `facts` are terms, values and links."""

    summary: str
    text: str = ""
    facts: tuple[tuple[str, str, str | None], ...] = ()
    anchor: str | None = None
    href: str | None = None
    title: str | None = None
    """A heading above it, if a new group begins here."""
    title_anchor: str | None = None


@dataclass(frozen=True)
class Section:
    """A heading and its contents, all of them optional."""

    anchor: str
    heading: str
    paragraphs: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    table: Table | None = None
    figure: Figure | None = None
    remarks: tuple[Remark, ...] = ()
    folds: tuple[Folded, ...] = ()
    first_open: bool = False


@dataclass(frozen=True)
class Document:
    """A report, ready to be rendered."""

    title: str
    question: str
    sections: tuple[Section, ...]
    footer: str
    notice: tuple[str, ...] = ()
    """First lines, which a reader must know before any answer."""

    @property
    def tables(self) -> list[Table]:
        """All tables, in order."""
        return [section.table for section in self.sections if section.table]

    @property
    def figures(self) -> list[Figure]:
        """All figures, in order."""
        of_answers = (answer.figure for section in self.sections for answer in section.answers)
        return [*filter(None, of_answers), *(section.figure for section in self.sections if section.figure)]


TERMINAL_COLOURS = {
    "met": "green", "not met": "red", "undecided": "yellow",
    "supported": "green", "contradicted": "red", "no effect": "red", "not yet tested": "dim",
}  # fmt: skip

EXPENDABLE = ("noise", "penalty", "tuned", "seeds")
"""Columns that a narrow terminal omits, the least important first. A difference keeps its interval."""
HEADING_LINES, HEADING_ROOM = 3, 20
"""Most lines of a heading, and its width in a table with one column per arm."""
NAME_ROOM = 20
"""Least width of a name, even on a narrow terminal."""


def render_terminal(table: Table, title: str, width: int) -> rich.console.Group:
    """Render the table for a terminal of the given width.

    If it does not fit, move units into the headings, then omit the least important columns (a note names them), then
    break names. If that is not enough, transpose the table, in as many parts as needed. No number is cut off.
    """
    from rich.console import Group
    from rich.text import Text

    for narrowed in _narrow(table, width):
        upright = _render_rows(narrowed)
        if _natural_width(upright) <= width:
            return Group(Text(title, "bold"), upright, Text("\n".join(narrowed.notes), "dim"))
    parts = [_render_columns(table, table.lines)]
    for size in range(len(table.lines) - 1, 0, -1):
        if all(_natural_width(part) <= width for part in parts):
            break
        parts = [_render_columns(table, table.lines[at : at + size]) for at in range(0, len(table.lines), size)]
    return Group(Text(title, "bold"), *parts, Text("\n".join(table.notes), "dim"))


def _narrow(table: Table, width: int) -> Iterator[Table]:
    """Yield the table and narrower versions of it, with notes about the omitted columns."""
    yield table
    gone: list[str] = []
    rest = _move_units(table)
    yield rest
    for name in EXPENDABLE if table.left_out else ():
        kept = [place for place, column in enumerate(rest.columns) if column.name != name]
        if len(kept) == len(rest.columns):
            continue
        gone += [column.heading for column in table.columns if column.name == name]
        rest = replace(
            rest,
            columns=tuple(rest.columns[place] for place in kept),
            lines=tuple(Line(tuple(line.cells[place] for place in kept), line.tone) for line in rest.lines),
            notes=(table.left_out.format(", ".join(gone)), *table.notes),
        )
        yield rest
    yield _break_names(rest, _natural_width(_render_rows(rest)) - width)


def _move_units(table: Table) -> Table:
    """Move the common unit of a column into its heading."""
    units = [_unit([line.cells[place] for line in table.lines]) if column.numeric and column.name != "axis" else ""
             for place, column in enumerate(table.columns)]  # fmt: skip
    return replace(
        table,
        columns=tuple(
            replace(column, heading=f"{column.heading} ({unit})") if unit else column
            for column, unit in zip(table.columns, units, strict=True)
        ),
        lines=tuple(
            replace(line, cells=tuple(
                cell.removesuffix(f" {unit}") if unit else cell for cell, unit in zip(line.cells, units, strict=True)
            ))
            for line in table.lines
        ),
    )  # fmt: skip


def _unit(cells: Iterable[str]) -> str:
    ends = {cell.rpartition(" ")[2] for cell in cells if re.search(r"\d", cell)}
    unit = ends.pop() if len(ends) == 1 else ""
    return "" if re.search(r"\d", unit) else unit


def _break_names(table: Table, excess: int) -> Table:
    """Break the names of arms into lines, to save `excess` characters of width."""
    place = next((place for place, column in enumerate(table.columns) if column.name == "arm"), None)
    if place is None:
        return table
    room = max(NAME_ROOM, max((len(line.cells[place]) for line in table.lines), default=0) - excess)
    broken = (
        (*line.cells[:place], _break_name(line.cells[place], room), *line.cells[place + 1 :]) for line in table.lines
    )
    return replace(
        table, lines=tuple(replace(line, cells=cells) for line, cells in zip(table.lines, broken, strict=True))
    )


def _break_name(name: str, room: int) -> str:
    lines = [""]
    joint = r"(?=\+)" if "+" in name else "(?<=[a-z]-)(?=[a-z])"  # before each repair, or else between words
    for part in re.split(joint, name):
        if lines[-1] and len(lines[-1] + part) > room:
            lines.append(" ")  # indent the rest of a name, or it would look like the next name
        lines[-1] += part
    return "\n".join(lines)


def _render_rows(table: Table) -> rich.table.Table:
    """Return a table with one line per arm. Headings are as wide as their column if their words allow it."""
    from rich.cells import cell_len

    shown = _plain_table()
    for place, column in enumerate(table.columns):
        room = max((cell_len(part) for line in table.lines for part in line.cells[place].split("\n")), default=0)
        shown.add_column(_text(_break_heading(column.heading, room)), justify="right" if column.numeric else "left")
    for line in table.lines:
        shown.add_row(*(_text(cell, line, column) for cell, column in zip(line.cells, table.columns, strict=True)))
    return shown


def _render_columns(table: Table, lines: Sequence[Line]) -> rich.table.Table:
    """Return a table with one column per arm."""
    shown = _plain_table(show_header=False)
    room = max(HEADING_ROOM, *(len(word) for column in table.columns for word in column.heading.split()))
    for justify in ("left", *["right"] * len(lines)):
        shown.add_column(justify="left" if justify == "left" else "right", overflow="fold")
    for place, column in enumerate(table.columns):
        cells = (_text(line.cells[place], line, column) for line in lines)
        shown.add_row(_text(_break_heading(column.heading, room)), *cells, end_section=column.name == "arm")
    return shown


def _break_heading(heading: str, room: int) -> str:
    """Break a heading between words into at most HEADING_LINES lines, as near to the given width as possible."""
    glued = heading.replace(" %", "\u00a0%")  # keep the sign on the line of its number
    settings = (
        textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False) for width in count(max(room, 1))
    )
    return "\n".join(next(lines for lines in settings if len(lines) <= HEADING_LINES)).replace("\u00a0", " ")


def _plain_table(*, show_header: bool = True) -> rich.table.Table:
    import rich.box
    import rich.table

    return rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_header=show_header)


def _text(cell: str, line: Line | None = None, column: Column | None = None) -> rich.text.Text:
    """Return a cell, with the colour of its verdict. Text, unlike str, is never parsed as markup."""
    from rich.text import Text

    tone = line.tone if line and column and column.name == "verdict" else None
    return Text(cell, TERMINAL_COLOURS.get(tone or "", ""))


def _natural_width(shown: rich.table.Table) -> int:
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=10_000)
    return Measurement.get(console, console.options, shown).maximum


def render_markdown(table: Table) -> str:
    """Render a table as Markdown."""
    return "\n".join([
        _markdown_line(column.heading for column in table.columns),
        _markdown_line(("---:" if column.numeric else ":---" for column in table.columns), literal=True),
        *(_markdown_line(line.cells) for line in table.lines),
    ])  # fmt: skip


def _markdown_line(cells: Iterable[str], *, literal: bool = False) -> str:
    return "| " + " | ".join(cell if literal else escape(cell) for cell in cells) + " |"


def escape(text: str) -> str:
    """Escape text for Markdown: no markup, no HTML, no new cell."""
    flat = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|#~" else letter for letter in flat)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "†": r"\dag{}", "‡": r"\ddag{}",
    "§": r"\S{}", "∞": r"$\infty$", "–": "--", "±": r"$\pm$", "→": r"$\to$", "×": r"$\times$", "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip


def render_latex(table: Table, caption: str) -> str:
    """Render a table as LaTeX with booktabs. For Chinese, the document of the reader must load ctex."""
    columns = "".join("r" if column.numeric else "l" for column in table.columns)
    notes = "".join(f"  % {' '.join(note.split())}\n" for note in table.notes)
    body = "".join(f"    {_latex_line(line.cells)}\n" for line in table.lines)
    return (
        f"% needs \\usepackage{{booktabs}}\n\\begin{{table}}\n  \\centering\n  \\caption{{{escape_latex(caption)}}}\n"
        f"{notes}  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n"
        f"    {_latex_line(column.heading for column in table.columns)}\n    \\midrule\n{body}"
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(map(escape_latex, cells)) + r" \\"


def escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def render_csv(table: Table) -> str:
    """Render a table as CSV. A cell that a spreadsheet would read as a formula gets a leading apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.heading for column in table.columns])
    writer.writerows([_disarm(cell, column) for cell, column in zip(line.cells, table.columns, strict=True)]
                     for line in table.lines)  # fmt: skip
    return file.getvalue()


def _disarm(cell: str, column: Column) -> str:
    flat = " ".join(cell.split())
    return f"'{flat}" if not column.numeric and flat[:1] in tuple("=+-@") else flat


def render_markdown_document(document: Document) -> str:
    """Render a report as Markdown. Its figures are files in the same folder."""
    blocks = [f"# {escape(document.title)}", f"*{escape(document.question)}*"]
    blocks += map(escape, document.notice)
    for section in document.sections:
        blocks += [f"## {escape(section.heading)}", *_section(section)]
    return "\n\n".join([*blocks, escape(document.footer)]) + "\n"


def _section(section: Section) -> Iterator[str]:
    if section.paragraphs:
        yield "\n\n".join(map(escape, section.paragraphs))
    if any(answer.figure or answer.footnotes for answer in section.answers):
        for answer in section.answers:
            yield from _long_answer(answer)
    elif section.answers:
        yield "\n".join(
            f"- **{escape(answer.subject)}: {answer.word}.** {escape(answer.sentence)}" for answer in section.answers
        )
    if section.figure:
        yield f"![{escape(section.heading)}]({section.figure.name}.png)"
        yield escape(section.figure.caption)
    if section.table:
        yield render_markdown(section.table)
        yield from map(escape, section.table.notes)
    if section.remarks:
        yield "\n".join(map(_remark, section.remarks))
    if section.folds:
        yield "\n".join(
            (f'- <a id="{html.escape(fold.anchor)}"></a>' if fold.anchor else "- ")
            + (f"{escape(fold.title)}, " if fold.title else "")
            + (f"[{escape(fold.summary)}]({fold.href})" if fold.href else escape(fold.summary))
            + "".join(f"; {escape(term)} {escape(value)}" for term, value, _ in fold.facts)
            for fold in section.folds
        )


def _long_answer(answer: Answer) -> Iterator[str]:
    """Yield an answer with a heading, its figure, and its footnotes, with one line of links per arm."""
    names = [f"[^{answer.anchor}-{number}]" for number, _ in enumerate(answer.footnotes, 1)]
    yield f"### {escape(answer.subject)}: {answer.word}"
    yield f"{escape(answer.sentence)}{''.join(names)}"
    yield from map(escape, answer.needs)
    if answer.figure:
        yield f"![{escape(answer.subject)}]({answer.figure.name}.png)"
    for name, footnote in zip(names, answer.footnotes, strict=True):
        lines = [f"{name}: {escape(footnote.text)}"]
        for group, links in footnote.links:
            shown = " ".join(f"[{escape(words)}]({href})" for words, href in links)
            lines.append(f"    - {escape(group)}: {shown}")
        yield f"{lines[0]}\n\n" + "\n".join(lines[1:]) if footnote.links else lines[0]


def _remark(remark: Remark) -> str:
    subject = escape(remark.subject)
    return f"- {f'[{subject}]({remark.href})' if remark.href else subject}: {escape(remark.text)}"
