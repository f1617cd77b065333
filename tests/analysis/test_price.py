from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.budgets import CLOSE, cheapest, kind_of, same_repairs
from oelm.analysis.compare import Comparison, compare_records
from oelm.analysis.statistics import MARGIN
from oelm.record.record import ParametersRecord
from oelm.spec.method import named_method
from oelm.spec.study import Arm, Study

REPAIRED = "oelm+core+diagonal"
CONTROL = "baseline+core+diagonal"


def parameters(method: str, qk: int = 200, repair: int = 0) -> ParametersRecord:
    """Count a model of 1000 scalars whose Q and K have 200 of them."""
    frozen = {"frozen": qk, "partly": qk // 2, "trained": 0}[kind_of(named_method(method))]
    total = 1000 - (200 - qk) + repair
    return ParametersRecord(total=total, trainable=total - frozen, frozen=frozen, qk=qk, repair=repair)


def compared(study: Study, make_record: Any, percents: dict[str, float], **fields: Any) -> Comparison:
    """Compare methods that lose so many percent, with a little spread over seeds."""
    arms = tuple(Arm(name=name, method=named_method(name)) for name in percents)
    wide = study.model_copy(update={"arms": arms, **fields})
    records = [
        (
            Path(str(n)),
            make_record(
                run,
                1.5 + math.log1p(percents[run.arm] / 100) + 0.0003 * (run.seed - 1) * list(percents).index(run.arm),
                parameters=parameters(run.arm, repair=16 if "core" in run.arm else 0),
            ),
        )
        for n, run in enumerate(wide.runs())
    ]
    return compare_records(wide, records)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("baseline", "trained"),
        (CONTROL, "trained"),
        ("oelm-freeze", "frozen"),
        (REPAIRED, "frozen"),
        ("uniform", "frozen"),
        ("oelm-q-only", "partly"),
        ("oelm-partial:-1", "partly"),
        ("unfreeze-late:0.7", "partly"),
        ("train-then-freeze:0.3", "partly"),
        ("oelm-every:4", "partly"),
    ],
)
def test_a_method_freezes_all_of_q_and_k_or_some_or_none(method: str, kind: str) -> None:
    assert kind_of(named_method(method)) == kind


def test_the_cheapest_within_each_margin_is_found_for_every_kind(study: Study, make_record: Any) -> None:
    percents = {"baseline": 0.0, "oelm-freeze": 12.0, REPAIRED: 3.0, "oelm-q-only": 0.2, CONTROL: -2.0}
    found = {(item.margin, item.kind): item for item in cheapest(compared(study, make_record, percents))}
    arms = {place: item.row.arm if item.row else None for place, item in found.items()}
    assert arms == {
        (MARGIN, "frozen"): REPAIRED, (MARGIN, "partly"): "oelm-q-only", (MARGIN, "trained"): "baseline",
        (CLOSE, "frozen"): None, (CLOSE, "partly"): "oelm-q-only", (CLOSE, "trained"): "baseline",
    }  # fmt: skip
    assert found[MARGIN, "frozen"].share == pytest.approx(0.08)
    assert found[CLOSE, "partly"].share == pytest.approx(0.5)
    assert found[CLOSE, "frozen"].share is None


def test_of_two_arms_within_a_margin_the_one_that_trains_less_is_cheaper_though_it_loses_more(
    study: Study, make_record: Any
) -> None:
    percents = {"baseline": 0.0, "oelm-freeze": 3.0, REPAIRED: 1.0}
    first = cheapest(compared(study, make_record, percents))[0]
    assert first.row is not None
    assert (first.row.arm, first.share) == ("oelm-freeze", 0)


def test_a_study_whose_arms_train_all_of_q_and_k_or_nothing_has_no_price_to_tell(
    study: Study, make_record: Any
) -> None:
    assert cheapest(compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 12.0})) == []


def test_a_seed_lost_to_divergence_keeps_an_arm_from_being_the_cheapest(study: Study, make_record: Any) -> None:
    whole = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 12.0, REPAIRED: 3.0})
    records = [(item.directory, item.record) for row in whole.rows for item in row.evidence]
    broken = [
        (directory, record.model_copy(update={"status": "failed", "failure": "diverged", "result": None}))
        if (record.spec.arm, record.spec.seed) == (REPAIRED, 2)
        else (directory, record)
        for directory, record in records
    ]
    assert cheapest(whole)[0].row is not None
    assert all(item.row is None for item in cheapest(compare_records(whole.study, broken)) if item.kind == "frozen")


def test_a_repair_and_the_freezing_under_it_add_up_to_the_whole_difference(study: Study, make_record: Any) -> None:
    comparison = compared(study, make_record, {"baseline": 0.0, REPAIRED: 3.0, CONTROL: -4.0, "oelm-freeze": 12.0})
    (pair,) = same_repairs(comparison)
    assert (pair.frozen, pair.control) == (REPAIRED, CONTROL)
    whole = comparison.row(REPAIRED, ()).difference
    assert pair.repair
    assert pair.freezing
    assert whole
    assert pair.repair.mean == pytest.approx(math.log(0.96), abs=0.002)
    assert pair.repair.mean + pair.freezing.mean == pytest.approx(whole.mean)


def test_a_control_of_another_model_is_no_control(study: Study, make_record: Any) -> None:
    arms = (
        Arm(name="baseline", method=named_method("baseline")),
        Arm(name="frozen", method=named_method(REPAIRED)),
        Arm(name="control", method=named_method(CONTROL), model={"num_heads": 1}),
    )
    wide = study.model_copy(update={"arms": arms})
    records = [(Path(str(n)), make_record(run, 1.5 + 0.01 * run.seed)) for n, run in enumerate(wide.runs())]
    assert same_repairs(compare_records(wide, records)) == []


def test_a_declared_margin_of_one_percent_is_asked_about_once(study: Study, make_record: Any) -> None:
    comparison = compared(study, make_record, {"baseline": 0.0, REPAIRED: 0.1}, margin=1.0)
    assert [item.kind for item in cheapest(comparison)] == ["frozen", "trained"]


def test_arms_without_a_repair_have_no_control_for_one(study: Study, make_record: Any) -> None:
    arms = (
        Arm(name="baseline", method=named_method("baseline")),
        Arm(name="thin", method=named_method("baseline"), model={"qk_head_size": 4}),
        Arm(name="thin and frozen", method=named_method("oelm-freeze"), model={"qk_head_size": 4}),
    )
    wide = study.model_copy(update={"arms": arms})
    records = [(Path(str(n)), make_record(run, 1.5 + 0.01 * run.seed)) for n, run in enumerate(wide.runs())]
    assert same_repairs(compare_records(wide, records)) == []
