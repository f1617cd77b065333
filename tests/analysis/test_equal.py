from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.budgets import SeedCurves, at_equal_budgets, mean_line, with_as_many_parameters
from oelm.analysis.compare import Comparison, compare_records
from oelm.analysis.evidence import Cell
from oelm.record.record import CostRecord, MetricRecord
from oelm.spec.method import named_method
from oelm.spec.study import Arm, Study

STEPS = (0, 50, 100)


def curve(losses: tuple[float, ...], seconds_per_step: float) -> list[MetricRecord]:
    return [
        MetricRecord(kind="val", step=step, loss=loss, seconds=9.0 * step, processor_seconds=seconds_per_step * step)
        for step, loss in zip(STEPS, losses, strict=True)
    ]


def cost(flops: int) -> CostRecord:
    return CostRecord(
        forward_flops={"all": flops}, backward_flops={}, removed_flops=0, weight_bytes=1, optimizer_bytes=1
    )


def made(
    study: Study, make_record: Any, frozen: tuple[float, ...], seconds: float = 1.0, flops: int = 50
) -> tuple[Comparison, dict[tuple[str, Cell], SeedCurves]]:
    """Give the baseline 2 seconds and 100 FLOPs per step, and losses that fall from 4 to 3 to 2."""
    records, curves = [], {}
    for number, run in enumerate(study.runs()):
        is_frozen = run.arm == "oelm-freeze"
        records.append((Path(str(number)), make_record(run, cost=cost(flops if is_frozen else 100), step=100)))
        own = curve(frozen, seconds) if is_frozen else curve((4.0, 3.0, 2.0), 2.0)
        shifted = [point.model_copy(update={"loss": point.loss + 0.001 * run.seed * is_frozen}) for point in own]
        curves.setdefault((run.arm, ()), {})[run.seed] = shifted
    return compare_records(study, records), curves


def test_a_cheaper_arm_is_compared_where_it_ends(study: Study, make_record: Any) -> None:
    comparison, curves = made(study, make_record, (4.0, 3.2, 2.4))
    found = {item.budget: item for item in at_equal_budgets(comparison, curves)}
    assert found["tokens"].difference.mean == pytest.approx(2.4 + 0.001 - 2.0)
    assert found["tokens"].cut is None
    # With half the seconds per step the arm ends where the baseline is at step 50, at a loss of 3.
    assert found["processor"].difference.mean == pytest.approx(2.4 + 0.001 - 3.0)
    assert (found["processor"].cut, found["processor"].share) == ("reference", pytest.approx(0.5))
    assert found["flops"].difference.mean == pytest.approx(2.4 + 0.001 - 3.0)


def test_a_dearer_arm_is_cut_off_where_the_reference_ends(study: Study, make_record: Any) -> None:
    comparison, curves = made(study, make_record, (4.0, 3.0, 2.0), seconds=4.0, flops=200)
    found = {item.budget: item for item in at_equal_budgets(comparison, curves)}
    assert found["processor"].cut == found["flops"].cut == "arm"
    assert found["processor"].difference.mean == pytest.approx(3.0 + 0.001 - 2.0)


def test_the_place_where_two_curves_cross_is_found_on_their_lines(study: Study, make_record: Any) -> None:
    comparison, curves = made(study, make_record, (4.2, 3.1, 1.899))
    tokens = next(item for item in at_equal_budgets(comparison, curves) if item.budget == "tokens")
    assert tokens.crossing == pytest.approx(0.75, abs=0.01)  # 0.1 behind at half way, 0.1 ahead at the end
    comparison, curves = made(study, make_record, (4.2, 3.1, 2.1))
    tokens = next(item for item in at_equal_budgets(comparison, curves) if item.budget == "tokens")
    assert tokens.crossing is None


def test_seconds_of_two_machines_are_not_compared(study: Study, make_record: Any) -> None:
    comparison, curves = made(study, make_record, (4.0, 3.2, 2.4))
    there = comparison.rows[0].evidence[0].record.environment.model_copy(update={"device": "B processor"})
    records = [
        (item.directory, item.record.model_copy(update={"environment": there} if row.arm != "baseline" else {}))
        for row in comparison.rows
        for item in row.evidence
    ]
    found = at_equal_budgets(compare_records(study, records), curves)
    assert {item.budget for item in found} == {"tokens", "flops"}


def test_old_curves_without_processor_time_are_compared_by_wall_time(study: Study, make_record: Any) -> None:
    comparison, curves = made(study, make_record, (4.0, 3.2, 2.4))
    old = {
        place: {
            seed: [point.model_copy(update={"processor_seconds": None}) for point in points]
            for seed, points in by_seed.items()
        }
        for place, by_seed in curves.items()
    }
    found = {item.budget: item for item in at_equal_budgets(comparison, old)}
    assert set(found) == {"tokens", "seconds", "flops"}
    assert found["seconds"].share == pytest.approx(1.0)
    assert mean_line(comparison.rows[0], old["baseline", ()], "seconds")[1] == pytest.approx((450.0, 3.0))


def test_a_frozen_arm_meets_a_trained_one_of_as_many_trained_parameters(study: Study, make_record: Any) -> None:
    thin = Arm(name="thin", method=named_method("baseline"), model={"dropout": 0.05})
    wider = study.model_copy(update={"arms": (*study.arms, thin)})
    records = []
    for number, run in enumerate(wider.runs()):
        record = make_record(run, {"baseline": 1.4, "thin": 1.6}.get(run.arm, 1.5) + 0.01 * number)
        trained = {"baseline": 1000, "thin": 905}.get(run.arm, 900)
        parameters = record.parameters.model_copy(update={"trainable": trained})
        records.append((Path(str(number)), record.model_copy(update={"parameters": parameters})))
    (found,) = with_as_many_parameters(compare_records(wider, records))
    assert (found.arm, found.control) == ("oelm-freeze", "thin")
    assert found.difference.mean == pytest.approx(-0.1 - 0.01)
