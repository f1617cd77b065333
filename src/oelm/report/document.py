"""A report as plain values, before it is set as a page, as Markdown, as LaTeX or as CSV."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Column:
    """What stands in a column, and the heading it stands under. Names and badges are words, the rest numbers."""

    name: str
    heading: str

    @property
    def numeric(self) -> bool:
        """Whether the cells are numbers."""
        return self.name not in ("arm", "name", "verdict", "words", "state", "measure")


@dataclass(frozen=True)
class Line:
    """The formatted cells of one row, in the order of the columns."""

    cells: tuple[str, ...]
    tone: str | None = None
    """Of the verdict in it."""
    href: str | None = None
    """Where the numbers of the line were born."""
    links: dict[int, str] = field(default_factory=dict)
    """Place of a cell -> an address of its own."""


@dataclass(frozen=True)
class Table:
    """Results as text, ready to be set in any medium. `name` is that of its files."""

    name: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    left_out: str = ""
    """What a terminal too narrow for every column says of those it leaves out, with {} for them. Empty: it leaves out
    none."""


@dataclass(frozen=True)
class Figure:
    """A drawing, as an element of a page and as pixels. `name` is that of its files."""

    name: str
    svg: str
    png: bytes
    caption: str


@dataclass(frozen=True)
class Footnote:
    """What an answer rests on: a sentence, and below it groups of links with the name of each group."""

    text: str
    links: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """Name of the group, and the words and address of each link."""


@dataclass(frozen=True)
class Answer:
    """What was found about one thing, in a word and in a sentence; a long one may have a figure and footnotes."""

    subject: str
    tone: str
    word: str
    sentence: str
    needs: tuple[str, ...] = ()
    """What would decide it."""
    figure: Figure | None = None
    footnotes: tuple[Footnote, ...] = ()
    """Folded on a page, at the end of the section in Markdown."""
    anchor: str = ""


@dataclass(frozen=True)
class Remark:
    """A line about something; `href` leads to its record, if it left one."""

    subject: str
    text: str
    href: str | None = None


@dataclass(frozen=True)
class Fold:
    """Something long, folded under its summary. `facts` are terms and what they are, with an address or None."""

    summary: str
    text: str = ""
    facts: tuple[tuple[str, str, str | None], ...] = ()
    anchor: str | None = None
    href: str | None = None
    title: str | None = None
    """A heading above it, where a new group begins, and the anchor of that heading."""
    title_anchor: str | None = None


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; all parts may be absent."""

    anchor: str
    heading: str
    paragraphs: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    table: Table | None = None
    figure: Figure | None = None
    remarks: tuple[Remark, ...] = ()
    folds: tuple[Fold, ...] = ()
    first_open: bool = False


@dataclass(frozen=True)
class Document:
    """A report, ready to be set."""

    title: str
    question: str
    sections: tuple[Section, ...]
    footer: str
    notice: tuple[str, ...] = ()
    """What a reader must know before any answer: the first lines."""

    @property
    def tables(self) -> list[Table]:
        """All tables, in order."""
        return [section.table for section in self.sections if section.table]

    @property
    def figures(self) -> list[Figure]:
        """All figures, in order."""
        of_answers = (answer.figure for section in self.sections for answer in section.answers)
        return [*filter(None, of_answers), *(section.figure for section in self.sections if section.figure)]
