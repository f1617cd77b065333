from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import compare
from oelm.analysis.savings import Saving, flop_share, savings
from oelm.record.schema import CostRecord, SecondsRecord
from oelm.study import Study


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
    (found,) = savings(compare(study, records))
    return found


def test_savings_are_shares_of_the_reference_beside_the_bound(study: Study, make_record: Any) -> None:
    found = saved(study, make_record, 0.05)
    assert flop_share(cost(90)) == pytest.approx(0.1)
    assert (found.trained, found.optimizer, found.flops) == pytest.approx((0.1, 0.1, 0.1))
    assert found.time == pytest.approx(0.05, abs=0.002)
    assert not found.unexplained


def test_more_time_than_the_flops_removed_is_not_explained_by_the_method(study: Study, make_record: Any) -> None:
    assert saved(study, make_record, 0.57).unexplained


def test_a_single_pair_is_doubted_only_beyond_what_one_pair_can_differ_by(study: Study, make_record: Any) -> None:
    single = study.model_copy(update={"seeds": (0,)})
    assert not saved(single, make_record, 0.15).unexplained
    assert saved(single, make_record, 0.57).unexplained


def test_records_that_say_nothing_about_cost_save_nothing_known(study: Study, make_record: Any) -> None:
    (found,) = savings(compare(study, [(Path(str(n)), make_record(run)) for n, run in enumerate(study.runs())]))
    assert (found.optimizer, found.flops, found.time) == (None, None, None)
    assert not found.unexplained
