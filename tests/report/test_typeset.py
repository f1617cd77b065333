from __future__ import annotations

import csv
import io
import re

from hypothesis import given
from hypothesis import strategies as st

from oelm.report.render import (
    Answer,
    Column,
    Document,
    Figure,
    Folded,
    Footnote,
    Line,
    Remark,
    Section,
    Table,
    escape_latex,
    render_csv,
    render_latex,
    render_markdown_document,
)

TABLE = Table(
    "t",
    (Column("arm", "arm"), Column("figure", "perplexity (%)"), Column("verdict", "within 5 %")),
    (Line(("a_b & c", "4.06†‡", "met"), tone="met"), Line(("=HYPERLINK(1)", "-1.2 %", "–"))),
    ("a note_",),
)


def test_latex_shows_every_character_as_it_is() -> None:
    text = render_latex(TABLE, "Results at 5 %")
    assert r"a\_b \& c & 4.06\dag{}\ddag{} & met \\" in text
    assert r"\caption{Results at 5 \%}" in text
    assert r"\begin{tabular}{lrl}" in text
    assert text.count(r"\begin{") == text.count(r"\end{")


@given(st.text())
def test_no_name_can_leave_its_cell_in_latex(name: str) -> None:
    rest = escape_latex(name)
    for known in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", r"\dag{}", r"\ddag{}", r"\S{}",
                  r"$\infty$", r"$\pm$", r"$\to$", r"$\times$", r"\textless{}", r"\textgreater{}"):  # fmt: skip
        rest = rest.replace(known, "")
    assert not re.search(r"(?<!\\)[&%$#_{}]|\n", rest)


@given(st.lists(st.tuples(*[st.text(st.characters(exclude_characters="\0", codec="utf-8"))] * 3), max_size=4))
def test_csv_is_read_back_as_it_was(rows: list[tuple[str, str, str]]) -> None:
    table = Table("t", TABLE.columns, tuple(Line(row) for row in rows))
    read = list(csv.reader(io.StringIO(render_csv(table), newline="")))
    flat = [[" ".join(cell.split()) for cell in row] for row in rows]
    assert [line[1] for line in read[1:]] == [row[1] for row in flat]
    assert [[cell.removeprefix("'") for cell in line] for line in read[1:]] == [
        [cell.removeprefix("'") for cell in row] for row in flat
    ]


def test_a_name_that_a_spreadsheet_would_run_is_kept_from_it() -> None:
    assert "'=HYPERLINK(1)" in render_csv(TABLE)
    assert ",-1.2 %," in render_csv(TABLE)


def test_markdown_has_every_part_of_every_section() -> None:
    section = Section(
        "s", "Heading", ("A sentence.",), (Answer("arm", "met", "met", "It is."),), TABLE,
        remarks=(Remark("x", "why", "x.json"), Remark("y", "no")),
        folds=(Folded("seed 0", "spec", (("commit", "c", None),)),),
    )  # fmt: skip
    text = render_markdown_document(Document("Title", "Why?", (section,), "made by"))
    for part in ("# Title", "## Heading", "A sentence.", "**arm: met.** It is.", "| a\\_b &amp; c |",
                 "a note\\_", "[x](x.json): why", "- y: no", "seed 0; commit c", "made by"):  # fmt: skip
        assert part in text


def test_a_long_answer_has_its_figure_and_its_evidence_as_footnotes() -> None:
    note = Footnote("fair_1: +2 %.", (("oelm-freeze", (("0", "a.json"), ("1", "b.json"))),))
    picture = Figure("claim-x", "", lambda: "<svg/>", lambda: b"")
    answer = Answer("A claim", "supported", "supported", "It is.", ("Three seeds.",), picture, (note,), "claim-x")
    text = render_markdown_document(Document("Title", "Why?", (Section("s", "Heading", answers=(answer,)),), "made by"))
    assert (
        "### A claim: supported\n\nIt is.[^claim-x-1]\n\nThree seeds.\n\n![A claim](claim-x.png)\n\n"
        "[^claim-x-1]: fair\\_1: +2 %.\n\n    - oelm-freeze: [0](a.json) [1](b.json)"
    ) in text
