from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.budgets import area_under, convergence_of, reaching, validation_curves
from oelm.analysis.compare import compare_folder
from oelm.record.folder import METRICS
from oelm.record.record import MetricRecord
from oelm.spec.study import Study


def points(losses: dict[int, float]) -> list[MetricRecord]:
    return [MetricRecord(kind="val", step=step, loss=loss, seconds=step / 10) for step, loss in losses.items()]


def test_the_area_is_the_mean_height_of_the_curve() -> None:
    assert area_under(points({0: 4.0, 10: 2.0, 30: 2.0})) == pytest.approx((3 * 10 + 2 * 20) / 30)
    assert area_under(points({0: 4.0})) is None


def test_a_loss_is_reached_between_two_points_by_a_straight_line() -> None:
    found = reaching(points({0: 4.0, 10: 2.0, 30: 1.0}), 3.0)
    assert found is not None
    assert (found.steps, found.seconds) == pytest.approx((5.0, 0.5))
    assert reaching(points({0: 4.0, 10: 2.0}), 1.0) is None


def test_arms_are_measured_against_the_reference_of_the_same_seed(study: Study, write_run: Any, tmp_path: Path) -> None:
    for run in study.runs():
        write_run(run, 1.4 - 0.1 * (run.arm != "baseline") + 0.01 * run.seed)
    comparison = compare_folder(study, tmp_path / "runs")
    complaints: list[str] = []
    curves = {(row.arm, row.cell): validation_curves(row, complaints) for row in comparison.rows}
    baseline, frozen = convergence_of(comparison, curves)
    assert (len(baseline.reached), baseline.steps) == (3, 100)
    assert frozen.steps is not None
    assert frozen.steps < 100
    assert frozen.area_interval is not None
    assert frozen.area_interval.high < 0


def test_an_arm_that_never_gets_there_is_counted_and_a_damaged_curve_is_reported(
    study: Study, write_run: Any, tmp_path: Path
) -> None:
    for run in study.runs():
        directory = write_run(run, 1.4 + 0.1 * (run.arm != "baseline"))
    (directory / METRICS).write_text("garbage\n")
    comparison = compare_folder(study, tmp_path / "runs")
    complaints: list[str] = []
    curves = {(row.arm, row.cell): validation_curves(row, complaints) for row in comparison.rows}
    frozen = convergence_of(comparison, curves)[1]
    assert (frozen.seeds, frozen.reached, frozen.steps) == (2, (), None)
    assert "is damaged and left out" in complaints[0]
