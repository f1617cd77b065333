from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from oelm.record.folder import write_study
from oelm.record.record import ParametersRecord
from oelm.report.write import write_final, write_report
from oelm.spec.method import named_method
from oelm.spec.study import Arm, Study

COUNTED = {
    "baseline": ParametersRecord(total=1000, trainable=1000, frozen=0, qk=200),
    "oelm-freeze": ParametersRecord(total=1000, trainable=800, frozen=200, qk=200),
    "oelm+core": ParametersRecord(total=1016, trainable=816, frozen=200, qk=200, repair=16),
    "baseline+core": ParametersRecord(total=1016, trainable=1016, frozen=0, qk=200, repair=16),
}
PERCENTS = {"baseline": 0.0, "oelm-freeze": 12.0, "oelm+core": 3.0, "baseline+core": -2.0}


@pytest.fixture
def priced(study: Study, write_run: Any) -> Study:
    arms = tuple(Arm(name=name, method=named_method(name)) for name in COUNTED)
    wide = study.model_copy(update={"arms": arms})
    for run in wide.runs():
        loss = 1.5 + math.log1p(PERCENTS[run.arm] / 100) + 0.0003 * (run.seed - 1) * list(PERCENTS).index(run.arm)
        write_run(run, loss, parameters=COUNTED[run.arm])
    return wide


def test_a_report_names_the_cheapest_arm_within_each_margin_and_says_where_there_is_none(
    priced: Study, tmp_path: Path
) -> None:
    write_report(priced, tmp_path / "runs", tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith(("| 5 %", "| 1 %"))]
    assert [[cell.strip() for cell in line.strip("|").split("|")][:4] for line in lines] == [
        ["5 %", "none trained", "oelm+core", "8.0 %"],
        ["5 %", "all trained", "baseline", "100.0 %"],
        ["1 %", "none trained", "none with 95 % confidence", "–"],
        ["1 %", "all trained", "baseline", "100.0 %"],
    ]


def test_the_final_report_says_of_every_study_what_staying_within_the_margin_takes(
    priced: Study, tmp_path: Path
) -> None:
    write_study(tmp_path / "runs", priced)
    document = write_final(tmp_path / "runs", tmp_path / "final", "en")
    assert (
        "tiny: oelm+core, which trains 8.0 % of the number of parameters of Q and K, +3.0 %"
        in document.sections[0].paragraphs[-1]
    )
    (price,) = [section.table for section in document.sections if section.anchor == "price" and section.table]
    assert [line.cells[:4] for line in price.lines][:2] == [
        ("tiny", "5 %", "none trained", "oelm+core"),
        ("tiny", "5 %", "all trained", "baseline"),
    ]


def test_a_report_sets_the_repair_alone_beside_freezing_under_it(priced: Study, tmp_path: Path) -> None:
    write_report(priced, tmp_path / "runs", tmp_path / "report", "zh")
    text = (tmp_path / "report" / "report.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("| oelm+core | baseline+core |")]
    assert "-2.0%" in line
    assert "+5.1%" in line
    assert "修补相对 baseline" in text


def test_a_study_of_all_or_nothing_has_neither_section(study: Study, write_run: Any, tmp_path: Path) -> None:
    for run in study.runs():
        write_run(run, 1.5 + 0.01 * run.seed * len(run.arm), parameters=COUNTED[run.arm])
    write_report(study, tmp_path / "runs", tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "How little must be trained" not in text
    assert "freezing under it" not in text
