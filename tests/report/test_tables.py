from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oelm.analysis.compare import Comparison, compare
from oelm.analysis.statistics import MARGIN
from oelm.report.numbers import shown_percent, shown_perplexity
from oelm.report.tables import cost_table, results
from oelm.report.typeset import escaped, markdown, terminal
from oelm.report.wording import wording
from oelm.study import Arm, Study

say = wording("en")


def made(study: Study, make_record: Any, offset: float = 0.1, **fields: Any) -> Comparison:
    records = [
        (
            Path(str(n)),
            make_record(run, 1.4 + (run.arm != "baseline") * (offset + 0.001 * run.seed), **fields),
        )
        for n, run in enumerate(study.runs())
    ]
    return compare(study, records)


def printed(table: Any, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(terminal(table, "tiny", width))
    return file.getvalue()


def test_a_line_says_what_the_row_found(study: Study, make_record: Any) -> None:
    table = results(made(study, make_record), say)
    assert [column.heading for column in table.columns] == [
        "arm", "seeds", "test perplexity", "against baseline", "95 % interval", "within 5 %",
    ]  # fmt: skip
    assert table.lines[0].cells == (
        "baseline", "3", "4.06", "–", "–", "reference",
    )  # fmt: skip
    assert table.lines[1].cells == (
        "oelm-freeze", "3", "4.49", "+10.6 %", "+10.4 to +10.9 %", "not met",
    )  # fmt: skip


def test_chinese_readers_get_the_same_numbers(study: Study, make_record: Any) -> None:
    table = results(made(study, make_record), wording("zh"))
    assert table.columns[2].heading == "测试困惑度"
    assert table.lines[1].cells[2:6] == ("4.49", "+10.6%", "+10.4% 至 +10.9%", "未达到")


def test_a_single_seed_and_a_dirty_tree_are_marked_and_the_marks_explained(study: Study, make_record: Any) -> None:
    plain = results(made(study, make_record), say)
    assert not any(mark in note for note in plain.notes for mark in "†‡")
    dirty = make_record(study.runs()[0]).environment.model_copy(update={"dirty": True})
    single = study.model_copy(update={"seeds": (0,)})
    marked = results(made(single, make_record, environment=dirty), say)
    assert [line.cells[2] for line in marked.lines] == ["4.06†‡", "4.48†‡"]
    assert sum(note.startswith(("†", "‡")) for note in marked.notes) == 2


def test_a_difference_from_one_pair_is_marked_though_the_arm_has_more_seeds(study: Study, make_record: Any) -> None:
    runs = [run for run in study.runs() if run.arm != "baseline" or run.seed == 0]
    records = [(Path(str(n)), make_record(run)) for n, run in enumerate(runs)]
    lines = results(compare(study, records), say).lines
    assert lines[1].cells[1:3] == ("3", "4.48†")


def test_an_arm_without_runs_is_a_line_of_dashes(study: Study) -> None:
    assert results(compare(study, []), say).lines[1].cells == (
        "oelm-freeze", "0", "–", "–", "–", "undecided",
    )  # fmt: skip


def test_what_a_schedule_begins_with_is_not_its_cost(study: Study, make_record: Any) -> None:
    moving = Study(**{**study.model_dump(exclude={"arms"}), "arms": ("baseline", "unfreeze-late:0.8")})
    plain, scheduled = cost_table(made(moving, make_record), (), say).lines
    assert plain.cells[1] != say("none")
    assert scheduled.cells[1:3] == (say("none"), say("none"))


def test_machines_that_differ_are_named(study: Study, make_record: Any) -> None:
    comparison = replace(made(study, make_record), mixed={"device": ("A", "B")})
    assert results(comparison, say).notes[-1].startswith("The runs differ in device (A, B)")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (4.273, "4.27"), (99.994, "99.99"), (1234.56, "1,234.6"), (math.inf, "∞"), (math.nan, "∞")],
)
def test_perplexities_have_as_many_digits_as_they_deserve(value: float | None, text: str) -> None:
    assert shown_perplexity(value, say) == text


def test_percentages_are_signed_unless_they_are_a_margin() -> None:
    assert shown_percent(-0.1, say) == "-9.5 %"
    assert shown_percent(MARGIN, say, signed=False) == "5 %"


@pytest.mark.parametrize("width", [140, 100, 80, 60, 46])
def test_no_number_is_cut_off_in_a_terminal_of_any_width(study: Study, make_record: Any, width: int) -> None:
    table = results(made(study, make_record), say)
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    for line in table.lines:
        for cell in line.cells:
            assert cell in text
    assert "…" not in text


def test_a_wide_terminal_has_one_line_per_arm(study: Study, make_record: Any) -> None:
    text = printed(results(made(study, make_record), say), 140)
    assert any("oelm-freeze" in line and "+10.6 %" in line for line in text.splitlines())


def test_an_arms_name_is_not_markup(study: Study, make_record: Any) -> None:
    named = Arm(name="[red]|<b>", method=study.arms[1].method)
    odd = study.model_copy(update={"arms": (study.arms[0], named)})
    table = results(made(odd, make_record), say)
    assert "[red]|<b>" in printed(table, 140)
    assert "\\[red\\]\\|&lt;b&gt;" in markdown(table)


def test_markdown_has_one_cell_per_column(study: Study, make_record: Any) -> None:
    table = results(made(study, make_record), say)
    lines = markdown(table).splitlines()
    assert len(lines) == 2 + len(table.lines)
    assert {line.count(" | ") for line in lines} == {len(table.columns) - 1}
    assert lines[1].startswith("| :--- | ---: |")


def test_escaped_text_stays_on_its_line_and_is_no_markup() -> None:
    assert escaped("a\n# b_c `d` &lt;") == "a \\# b\\_c \\`d\\` &amp;lt;"
