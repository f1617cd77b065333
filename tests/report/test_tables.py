from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oelm.analysis.compare import Comparison, compare_records
from oelm.analysis.power import Resampled
from oelm.analysis.statistics import MARGIN, Interval
from oelm.report.render import (
    Column,
    Line,
    Table,
    _break_heading,
    _break_name,
    _move_units,
    escape,
    render_markdown,
    render_terminal,
)
from oelm.report.tables import cost_table, results
from oelm.report.wording import format_percent, format_perplexity, wording
from oelm.spec.study import Arm, Study

say = wording("en")


def made(study: Study, make_record: Any, offset: float = 0.1, **fields: Any) -> Comparison:
    records = [
        (
            Path(str(n)),
            make_record(run, 1.4 + (run.arm != "baseline") * (offset + 0.001 * run.seed), **fields),
        )
        for n, run in enumerate(study.runs())
    ]
    return compare_records(study, records)


def printed(table: Any, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(render_terminal(table, "tiny", width))
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


def test_the_one_sided_bound_is_in_the_table_where_it_decides(study: Study, make_record: Any) -> None:
    def found(spread: float) -> Table:
        losses = {seed: 0.02 + spread * (seed - 1) for seed in (0, 1, 2)}
        records = [
            (Path(str(n)), make_record(run, 1.4 + (run.arm != "baseline") * losses[run.seed]))
            for n, run in enumerate(study.runs())
        ]
        return results(compare_records(study, records), say)

    decided = found(0.0135)  # the two-sided interval reaches beyond 5 %, the one-sided bound does not
    columns = [column.heading for column in decided.columns]
    frozen = dict(zip(columns, decided.lines[1].cells, strict=True))
    assert frozen["within 5 %"] == "met"
    assert frozen["95 % interval"] == "-1.3 to +5.5 %"
    assert frozen["one-sided 95 % bound"] == "+4.4 %"
    assert "one-sided 95 % bound" not in [column.heading for column in found(0.001).columns]


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


def test_an_unknown_tree_and_a_commit_outside_the_history_are_marked(study: Study, make_record: Any) -> None:
    known = make_record(study.runs()[0]).environment
    unknown = results(made(study, make_record, environment=known.model_copy(update={"dirty": None})), say)
    assert unknown.lines[0].cells[2].endswith("¶")
    lost = results(made(study, make_record, environment=known.model_copy(update={"commit": "0" * 40})), say)
    assert lost.lines[0].cells[2].endswith("※")
    assert sum(note.startswith(("¶", "※")) for table in (unknown, lost) for note in table.notes) == 2


def test_a_difference_from_one_pair_is_marked_though_the_arm_has_more_seeds(study: Study, make_record: Any) -> None:
    runs = [run for run in study.runs() if run.arm != "baseline" or run.seed == 0]
    records = [(Path(str(n)), make_record(run)) for n, run in enumerate(runs)]
    lines = results(compare_records(study, records), say).lines
    assert lines[1].cells[1:3] == ("3", "4.48†")


def test_an_arm_without_runs_is_a_line_of_dashes(study: Study) -> None:
    assert results(compare_records(study, []), say).lines[1].cells == (
        "oelm-freeze", "0", "–", "–", "–", "undecided (0 of 3 seeds)",
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
    assert format_perplexity(value, say) == text


def test_percentages_are_signed_unless_they_are_a_margin() -> None:
    assert format_percent(-0.1, say) == "-9.5 %"
    assert format_percent(MARGIN, say, signed=False) == "5 %"


@pytest.mark.parametrize("width", [140, 100, 80, 60, 46])
def test_no_number_is_cut_off_in_a_terminal_of_any_width(study: Study, make_record: Any, width: int) -> None:
    table = results(made(study, make_record), say)
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    for line in table.lines:
        for cell in line.cells:
            assert cell.removesuffix(" %") in text
    assert "…" not in text


def wide(study: Study, make_record: Any, arm: str = "oelm-freeze") -> Table:
    """Format a comparison that has every column there is."""
    renamed = study.model_copy(update={"arms": (study.arms[0], study.arms[1].model_copy(update={"name": arm}))})
    comparison = made(renamed, make_record)
    comparison = replace(comparison, study=renamed.model_copy(update={"tuned": {"train.learning_rate": (1e-3,)}}))
    noise = Resampled(Interval(0.0912, 0.1093), texts=11, over_seeds=False)
    return results(comparison, say, {(arm, ()): noise})


@pytest.mark.parametrize(
    ("width", "gone"),
    [
        (140, ()),
        (110, ("test-set noise",)),
        (82, ("test-set noise", "train.learning_rate")),
        (74, ("test-set noise", "train.learning_rate", "seeds")),
        (70, ("test-set noise", "train.learning_rate", "seeds")),
    ],
)
def test_a_narrow_terminal_leaves_out_noise_then_tuning_then_seeds_and_says_so(
    study: Study, make_record: Any, width: int, gone: tuple[str, ...]
) -> None:
    table = wide(study, make_record, "oelm-random+gain=2+bias")
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    head = text.partition("─")[0]
    assert ("Left out: " + ", ".join(gone) + " (" in " ".join(text.split())) if gone else "Left out" not in text
    assert [word for word in ("noise", "train.learning_rate", "seeds", "perplexity", "interval") if word in head] == [
        *([] if "test-set noise" in gone else ["noise"]),
        *([] if "train.learning_rate" in gone else ["train.learning_rate"]),
        *([] if "seeds" in gone else ["seeds"]),
        "perplexity",
        "interval",
    ]
    assert any("4.49" in line and "+10.4 to +10.9" in line and "not met" in line for line in text.splitlines())


def test_cards_are_what_is_left_where_nothing_else_fits_and_lack_no_column(study: Study, make_record: Any) -> None:
    table = wide(study, make_record, "oelm-random+gain=2+bias")
    text = printed(table, 50)
    assert "Left out" not in text
    assert all(column.heading in text for column in table.columns)
    assert not any("4.49" in line and "not met" in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("oelm-random-matched+low-rank=3+bias-2", "oelm-random-matched", "+low-rank=3+bias-2"),
        ("orthogonal-from-current-trained", "orthogonal-from-current-", "trained"),
    ],
)
def test_names_are_broken_at_their_joints_before_a_table_becomes_cards(
    study: Study, make_record: Any, name: str, begin: str, end: str
) -> None:
    table = wide(study, make_record, name)
    lines = [line.strip() for line in printed(table, 76).splitlines()]
    (begun,) = (place for place, line in enumerate(lines) if line.startswith(begin))
    assert lines[begun].split()[0] == begin
    assert "not met" in lines[begun]
    assert lines[begun + 1] == end


def test_a_name_without_a_joint_in_reach_stays_whole_and_begins_on_the_first_line() -> None:
    assert _break_name("oelm-random-from-current+bias", 20) == "oelm-random-from-current\n +bias"
    assert _break_name("oelm-partial:-2,-1", 10) == "oelm-\n partial:-2,-1"


def test_a_unit_that_a_column_shares_stands_in_its_heading_where_room_is_short(study: Study, make_record: Any) -> None:
    table = wide(study, make_record)
    assert "+10.6 %" in printed(table, 140)
    short = next(text for width in range(140, 60, -1) if "+10.6 %" not in (text := printed(table, width)))
    assert "+10.6" in short
    assert short.partition("─")[0].count("(%)") == 3
    assert "Left out" not in short, "nothing is lost by it, so it comes first"


@pytest.mark.parametrize(
    ("cells", "unit"),
    [
        (("+1.0 %", "–", "-2 to +3 %"), "%"),
        (("+1.0 %", "∞"), "%"),
        (("+1.0 %", "+1.0 %†"), ""),
        (("+1.0 %", "4"), ""),
        (("1 of 3", "2 of 3"), ""),
        (("–", "–"), ""),
        ((), ""),
    ],
)
def test_a_unit_is_a_columns_only_if_every_number_has_it(cells: tuple[str, ...], unit: str) -> None:
    table = Table("t", (Column("x", "x"),), tuple(Line((cell,)) for cell in cells))
    (column,) = _move_units(table).columns
    assert column.heading == (f"x ({unit})" if unit else "x")


def test_chinese_readers_are_told_in_chinese_what_is_left_out(study: Study, make_record: Any) -> None:
    table = results(made(study, make_record), wording("zh"))
    assert "未显示：种子数（" in printed(table, 67)


@pytest.mark.parametrize(
    ("heading", "room", "lines"),
    [
        ("within 1 point and 5 % of the reference's", 9, ["within 1 point", "and 5 % of the", "reference's"]),
        ("within 5 %", 9, ["within", "5 %"]),
        ("95 % interval", 16, ["95 % interval"]),
        ("train.learning_rate", 5, ["train.learning_rate"]),
        ("", 5, [""]),
    ],
)
def test_headings_are_broken_between_words_and_never_before_a_sign(heading: str, room: int, lines: list[str]) -> None:
    assert _break_heading(heading, room).split("\n") == lines


def test_a_wide_terminal_has_one_line_per_arm(study: Study, make_record: Any) -> None:
    text = printed(results(made(study, make_record), say), 140)
    assert any("oelm-freeze" in line and "+10.6 %" in line for line in text.splitlines())


def test_an_arms_name_is_not_markup(study: Study, make_record: Any) -> None:
    named = Arm(name="[red]|<b>", method=study.arms[1].method)
    odd = study.model_copy(update={"arms": (study.arms[0], named)})
    table = results(made(odd, make_record), say)
    assert "[red]|<b>" in printed(table, 140)
    assert "\\[red\\]\\|&lt;b&gt;" in render_markdown(table)


def test_markdown_has_one_cell_per_column(study: Study, make_record: Any) -> None:
    table = results(made(study, make_record), say)
    lines = render_markdown(table).splitlines()
    assert len(lines) == 2 + len(table.lines)
    assert {line.count(" | ") for line in lines} == {len(table.columns) - 1}
    assert lines[1].startswith("| :--- | ---: |")


def test_escaped_text_stays_on_its_line_and_is_no_markup() -> None:
    assert escape("a\n# b_c `d` &lt;") == "a \\# b\\_c \\`d\\` &amp;lt;"
