"""A document or a table, set for a terminal, as Markdown, as LaTeX, as CSV."""

from __future__ import annotations

import csv
import html
import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from oelm.report.document import Answer, Column, Document, Line, Remark, Section, Table

if TYPE_CHECKING:
    import rich.console
    import rich.table
    import rich.text

COLOURS = {
    "met": "green", "not met": "red", "undecided": "yellow",
    "supported": "green", "contradicted": "red", "no effect": "red", "not yet tested": "dim",
}  # fmt: skip

EXPENDABLE = ("noise", "penalty", "tuned", "seeds")
"""Columns that a narrow terminal leaves out, the least important first. A difference keeps its interval."""
HEADING_LINES, HEADING_ROOM = 3, 20
"""So many lines a heading may have; so wide it may be beside a card."""
NAME_ROOM = 20
"""A name gets no less, however narrow the terminal."""


def terminal(table: Table, title: str, width: int) -> rich.console.Group:
    """Set the table for a terminal of some width.

    Where it does not fit, units go into the headings, then what matters least is left out, which is said, then names
    are broken. Where even that does not fit, the whole is laid on its side, in as many parts as it takes: no number is
    cut off.
    """
    from rich.console import Group
    from rich.text import Text

    for narrowed in _narrowed(table, width):
        upright = _upright(narrowed)
        if _natural_width(upright) <= width:
            return Group(Text(title, "bold"), upright, Text("\n".join(narrowed.notes), "dim"))
    parts = [_on_side(table, table.lines)]
    for size in range(len(table.lines) - 1, 0, -1):
        if all(_natural_width(part) <= width for part in parts):
            break
        parts = [_on_side(table, table.lines[at : at + size]) for at in range(0, len(table.lines), size)]
    return Group(Text(title, "bold"), *parts, Text("\n".join(table.notes), "dim"))


def _narrowed(table: Table, width: int) -> Iterator[Table]:
    """Yield the table, then ever narrower ones, which note what they lack."""
    yield table
    gone: list[str] = []
    rest = _with_units_above(table)
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
    yield _with_broken_names(rest, _natural_width(_upright(rest)) - width)


def _with_units_above(table: Table) -> Table:
    """Move the unit that all numbers of a column have into its heading."""
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


def _with_broken_names(table: Table, excess: int) -> Table:
    """Break the names of arms at their joints, so that they need so much less room."""
    place = next((place for place, column in enumerate(table.columns) if column.name == "arm"), None)
    if place is None:
        return table
    room = max(NAME_ROOM, max((len(line.cells[place]) for line in table.lines), default=0) - excess)
    broken = (
        (*line.cells[:place], _broken_name(line.cells[place], room), *line.cells[place + 1 :]) for line in table.lines
    )
    return replace(
        table, lines=tuple(replace(line, cells=cells) for line, cells in zip(table.lines, broken, strict=True))
    )


def _broken_name(name: str, room: int) -> str:
    lines = [""]
    joint = r"(?=\+)" if "+" in name else "(?<=[a-z]-)(?=[a-z])"  # a method and what it is given; else its words
    for part in re.split(joint, name):
        if lines[-1] and len(lines[-1] + part) > room:
            lines.append(" ")  # what continues a name is set in, or it would pass for the next
        lines[-1] += part
    return "\n".join(lines)


def _upright(table: Table) -> rich.table.Table:
    """Set one line per arm, with headings as wide as what stands under them where their words allow it."""
    from rich.cells import cell_len

    shown = _plain_table()
    for place, column in enumerate(table.columns):
        room = max((cell_len(part) for line in table.lines for part in line.cells[place].split("\n")), default=0)
        shown.add_column(_text(_broken(column.heading, room)), justify="right" if column.numeric else "left")
    for line in table.lines:
        shown.add_row(*(_text(cell, line, column) for cell, column in zip(line.cells, table.columns, strict=True)))
    return shown


def _on_side(table: Table, lines: Sequence[Line]) -> rich.table.Table:
    """Set one column per arm."""
    shown = _plain_table(show_header=False)
    room = max(HEADING_ROOM, *(len(word) for column in table.columns for word in column.heading.split()))
    for justify in ("left", *["right"] * len(lines)):
        shown.add_column(justify="left" if justify == "left" else "right", overflow="fold")
    for place, column in enumerate(table.columns):
        cells = (_text(line.cells[place], line, column) for line in lines)
        shown.add_row(_text(_broken(column.heading, room)), *cells, end_section=column.name == "arm")
    return shown


def _broken(heading: str, room: int) -> str:
    """Break a heading between words, to be no wider than the room, or as little wider as so many lines allow."""
    glued = heading.replace(" %", "\u00a0%")  # a sign of its own line says nothing
    settings = (
        textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False) for width in count(max(room, 1))
    )
    return "\n".join(next(lines for lines in settings if len(lines) <= HEADING_LINES)).replace("\u00a0", " ")


def _plain_table(*, show_header: bool = True) -> rich.table.Table:
    import rich.box
    import rich.table

    return rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_header=show_header)


def _text(cell: str, line: Line | None = None, column: Column | None = None) -> rich.text.Text:
    """Return a cell, a verdict in its colour. As Text, not str: a name is never read as markup."""
    from rich.text import Text

    tone = line.tone if line and column and column.name == "verdict" else None
    return Text(cell, COLOURS.get(tone or "", ""))


def _natural_width(shown: rich.table.Table) -> int:
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=10_000)
    return Measurement.get(console, console.options, shown).maximum


def markdown(table: Table) -> str:
    """Set a table in Markdown."""
    return "\n".join([
        _markdown_line(column.heading for column in table.columns),
        _markdown_line(("---:" if column.numeric else ":---" for column in table.columns), literal=True),
        *(_markdown_line(line.cells) for line in table.lines),
    ])  # fmt: skip


def _markdown_line(cells: Iterable[str], *, literal: bool = False) -> str:
    return "| " + " | ".join(cell if literal else escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, no HTML, no new cell."""
    flat = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|#~" else letter for letter in flat)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "†": r"\dag{}", "‡": r"\ddag{}",
    "§": r"\S{}", "∞": r"$\infty$", "–": "--", "±": r"$\pm$", "→": r"$\to$", "×": r"$\times$", "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip


def latex(table: Table, caption: str) -> str:
    """Set a table in LaTeX, with booktabs' rules; Chinese needs ctex, which the reader's document brings."""
    columns = "".join("r" if column.numeric else "l" for column in table.columns)
    notes = "".join(f"  % {' '.join(note.split())}\n" for note in table.notes)
    body = "".join(f"    {_latex_line(line.cells)}\n" for line in table.lines)
    return (
        f"% needs \\usepackage{{booktabs}}\n\\begin{{table}}\n  \\centering\n  \\caption{{{latex_escaped(caption)}}}\n"
        f"{notes}  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n"
        f"    {_latex_line(column.heading for column in table.columns)}\n    \\midrule\n{body}"
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(map(latex_escaped, cells)) + r" \\"


def latex_escaped(text: str) -> str:
    """Return text that LaTeX shows as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def comma_separated(table: Table) -> str:
    """Set a table as CSV. A cell that a spreadsheet would take for a formula gets a leading apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.heading for column in table.columns])
    writer.writerows([_harmless(cell, column) for cell, column in zip(line.cells, table.columns, strict=True)]
                     for line in table.lines)  # fmt: skip
    return file.getvalue()


def _harmless(cell: str, column: Column) -> str:
    flat = " ".join(cell.split())
    return f"'{flat}" if not column.numeric and flat[:1] in tuple("=+-@") else flat


def markdown_document(document: Document) -> str:
    """Set a report as Markdown; its figures lie beside it."""
    blocks = [f"# {escaped(document.title)}", f"*{escaped(document.question)}*"]
    blocks += map(escaped, document.notice)
    for section in document.sections:
        blocks += [f"## {escaped(section.heading)}", *_section(section)]
    return "\n\n".join([*blocks, escaped(document.footer)]) + "\n"


def _section(section: Section) -> Iterator[str]:
    if section.paragraphs:
        yield "\n\n".join(map(escaped, section.paragraphs))
    if any(answer.figure for answer in section.answers):
        for answer in section.answers:
            yield from _long_answer(answer)
    elif section.answers:
        yield "\n".join(
            f"- **{escaped(answer.subject)}: {answer.word}.** {escaped(answer.sentence)}" for answer in section.answers
        )
    if section.figure:
        yield f"![{escaped(section.heading)}]({section.figure.name}.png)"
        yield escaped(section.figure.caption)
    if section.table:
        yield markdown(section.table)
        yield from map(escaped, section.table.notes)
    if section.remarks:
        yield "\n".join(map(_remark, section.remarks))
    if section.folds:
        yield "\n".join(
            (f'- <a id="{html.escape(fold.anchor)}"></a>' if fold.anchor else "- ")
            + (f"{escaped(fold.title)}, " if fold.title else "")
            + (f"[{escaped(fold.summary)}]({fold.href})" if fold.href else escaped(fold.summary))
            + "".join(f"; {escaped(term)} {escaped(value)}" for term, value, _ in fold.facts)
            for fold in section.folds
        )


def _long_answer(answer: Answer) -> Iterator[str]:
    """Yield an answer with a heading of its own, its figure, and its footnotes, each arm's links on a line."""
    names = [f"[^{answer.anchor}-{number}]" for number, _ in enumerate(answer.footnotes, 1)]
    yield f"### {escaped(answer.subject)}: {answer.word}"
    yield f"{escaped(answer.sentence)}{''.join(names)}"
    yield from map(escaped, answer.needs)
    if answer.figure:
        yield f"![{escaped(answer.subject)}]({answer.figure.name}.png)"
    for name, footnote in zip(names, answer.footnotes, strict=True):
        lines = [f"{name}: {escaped(footnote.text)}"]
        for group, links in footnote.links:
            shown = " ".join(f"[{escaped(words)}]({href})" for words, href in links)
            lines.append(f"    - {escaped(group)}: {shown}")
        yield f"{lines[0]}\n\n" + "\n".join(lines[1:]) if footnote.links else lines[0]


def _remark(remark: Remark) -> str:
    subject = escaped(remark.subject)
    return f"- {f'[{subject}]({remark.href})' if remark.href else subject}: {escaped(remark.text)}"
