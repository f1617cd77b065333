from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.budgets import validation_curves
from oelm.analysis.compare import compare_folder
from oelm.record.folder import read_record, write_record
from oelm.record.record import CostRecord
from oelm.report.sections import equal_section
from oelm.spec.study import Study


def rendered(study: Study, write_run: Any, folder: Path, lang: Any, frozen_flops: int) -> list[Any]:
    for run in study.runs():
        directory = write_run(run, 1.5 + 0.01 * run.seed + 0.1 * (run.arm != "baseline"))
        flops = 100 if run.arm == "baseline" else frozen_flops
        cost = CostRecord(
            forward_flops={"all": flops}, backward_flops={}, removed_flops=0, weight_bytes=1, optimizer_bytes=1
        )
        write_record(directory, read_record(directory).model_copy(update={"cost": cost}))
    comparison = compare_folder(study, folder / "runs")
    curves = {(row.arm, row.cell): validation_curves(row, []) for row in comparison.rows}
    return list(equal_section(comparison, curves, lang))


@pytest.mark.parametrize(("lang", "word"), [("en", "FLOPs"), ("zh", "浮点运算量")])
def test_arms_whose_steps_cost_differently_are_set_against_equal_budgets(
    study: Study, write_run: Any, tmp_path: Path, lang: str, word: str
) -> None:
    (section,) = rendered(study, write_run, tmp_path, lang, frozen_flops=80)
    cells = [line.cells for line in section.table.lines]
    assert [row[0] for row in cells] == ["oelm-freeze"] * 3
    assert cells[2][1] == word
    assert cells[2][2].replace(" ", "") == "80%"
    assert section.figure.svg.startswith("<svg")


def test_arms_whose_steps_cost_the_same_need_no_such_section(study: Study, write_run: Any, tmp_path: Path) -> None:
    assert rendered(study, write_run, tmp_path, "en", frozen_flops=100) == []
