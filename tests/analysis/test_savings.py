from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.budgets import Saving, qk_trained, savings
from oelm.analysis.compare import compare_records
from oelm.analysis.evidence import Evidence
from oelm.record.record import CostRecord, ParametersRecord, SecondsRecord
from oelm.spec.method import named_method
from oelm.spec.study import Arm, Study


def cost(removed: int, optimizer: int = 800) -> CostRecord:
    return CostRecord(
        forward_flops={"q": 100, "head": 200}, backward_flops={"q": 200 - removed, "head": 400},
        removed_flops=removed, weight_bytes=400, optimizer_bytes=optimizer,
    )  # fmt: skip


def seconds(train: float) -> SecondsRecord:
    return SecondsRecord(total=2 * train, train=train, validation=1.0, checkpoint=0.0)


def saved(study: Study, make_record: Any, faster: float) -> Saving:
    records = []
    for number, run in enumerate(study.runs()):
        frozen = run.arm != "baseline"
        spent = 100 * (1 - faster * frozen) + 0.1 * run.seed * frozen
        fields = {"cost": cost(90, 720) if frozen else cost(0), "seconds": seconds(spent)}
        records.append((Path(str(number)), make_record(run, **fields)))
    (found,) = savings(compare_records(study, records))
    return found


def test_savings_are_shares_of_the_reference_next_to_the_bound(study: Study, make_record: Any) -> None:
    found = saved(study, make_record, 0.05)
    assert (found.trained, found.optimizer, found.flops) == pytest.approx((0.1, 0.1, 0.1))
    assert found.time == pytest.approx(0.05, abs=0.002)
    assert not found.unexplained


def test_the_time_of_a_step_is_that_of_the_steps_that_were_timed(study: Study, make_record: Any) -> None:
    half = {"seconds": seconds(50).model_copy(update={"timed_steps": 50})}
    whole = {"seconds": seconds(100)}
    records = [
        (Path(str(number)), make_record(run, **(whole if run.arm == "baseline" else half)))
        for number, run in enumerate(study.runs())
    ]
    (found,) = savings(compare_records(study, records))
    assert found.time == 0.0


def test_runs_of_two_machines_make_no_pair(study: Study, make_record: Any) -> None:
    here = make_record(study.runs()[0]).environment
    there = here.model_copy(update={"platform": "another kernel"})
    records = []
    for number, run in enumerate(study.runs()):
        moved = run.arm != "baseline" and run.seed == 0
        spent = 10 if moved else 95 if run.arm != "baseline" else 100
        fields = {"seconds": seconds(spent), "environment": there if moved else here}
        records.append((Path(str(number)), make_record(run, **fields)))
    (found,) = savings(compare_records(study, records))
    assert found.time == pytest.approx(0.05)


def test_more_time_than_the_flops_removed_is_not_explained_by_the_method(study: Study, make_record: Any) -> None:
    assert saved(study, make_record, 0.57).unexplained


def test_a_single_pair_is_doubted_only_beyond_what_one_pair_can_differ_by(study: Study, make_record: Any) -> None:
    single = study.model_copy(update={"seeds": (0,)})
    assert not saved(single, make_record, 0.15).unexplained
    assert saved(single, make_record, 0.57).unexplained


def test_records_that_say_nothing_about_cost_save_nothing_known(study: Study, make_record: Any) -> None:
    (found,) = savings(compare_records(study, [(Path(str(n)), make_record(run)) for n, run in enumerate(study.runs())]))
    assert (found.optimizer, found.flops, found.time) == (None, None, None)
    assert not found.unexplained


@pytest.mark.parametrize(
    ("method", "frozen", "qk", "repair", "share"),
    [
        ("baseline", 0, 200, 0, 1.0),
        ("oelm-freeze", 200, 200, 0, 0.0),
        ("oelm+core", 200, 200, 14, 0.07),
        ("oelm-q-only", 100, 200, 0, 0.5),
        ("baseline", 0, 25, 0, 0.125),  # thin Q and K
        ("oelm-partial:-1", 150, 200, 0, 0.25),  # never frozen there
        ("unfreeze-late:0.7", 200, 200, 0, 1.0),  # frozen as the run begins, trained in the end
        ("train-then-freeze:0.3", 0, 200, 0, 1.0),
        ("oelm-every:4", 200, 200, 0, 1.0),
    ],
)
def test_what_is_trained_of_q_and_k_counts_repairs_and_schedules(
    study: Study, make_record: Any, method: str, frozen: int, qk: int, repair: int, share: float
) -> None:
    def run(name: str, **counts: int) -> Evidence:
        spec = study.runs()[0].model_copy(update={"method": named_method(name)})
        return Evidence(name, Path(), make_record(spec, parameters=ParametersRecord(**counts)))

    reference = run("baseline", total=1000, trainable=1000, frozen=0, qk=200)
    own = run(method, total=1000, trainable=1000 - frozen, frozen=frozen, qk=qk, repair=repair)
    assert qk_trained(own, reference) == pytest.approx(share)


def test_what_a_schedule_begins_with_is_not_what_it_saves(study: Study, make_record: Any) -> None:
    schedule = study.model_copy(
        update={"arms": (study.arms[0], Arm(name="late", method=named_method("unfreeze-late:0.7")))}
    )
    found = saved(schedule, make_record, 0.57)
    assert (found.trained, found.optimizer, found.flops) == (None, None, None)
    assert found.time == pytest.approx(0.57, abs=0.002)
    assert not found.unexplained
