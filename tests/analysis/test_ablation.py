from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.ablation import ablations, rung
from oelm.analysis.compare import Comparison, compare
from oelm.spec.method import METHODS, named_method
from oelm.study import Arm, Study

LOSSES = {"baseline": 1.0, "oelm-random": 1.3, "oelm-random-matched": 1.15, "oelm-freeze": 1.14}


def compared(study: Study, make_record: Any, names: dict[str, str]) -> Comparison:
    """Compare arms under any names: name -> method."""
    arms = tuple(Arm(name=name, method=named_method(method)) for name, method in names.items())
    wide = study.model_copy(update={"arms": arms, "reference": next(iter(names))})
    records = [
        (Path(str(n)), make_record(run, LOSSES[names[run.arm]] + 0.01 * run.seed + 0.001 * run.seed * len(run.arm)))
        for n, run in enumerate(wide.runs())
    ]
    return compare(wide, records)


def test_the_steps_are_found_by_method_and_add_up_to_the_whole(study: Study, make_record: Any) -> None:
    names = {"d": "oelm-freeze", "a": "baseline", "b": "oelm-random", "c": "oelm-random-matched"}
    (found,) = ablations(compared(study, make_record, names))
    assert [(step.name, step.start, step.end) for step in found.steps] == [
        ("freezing", "a", "b"), ("scale", "b", "c"), ("orthogonality", "c", "d"),
    ]  # fmt: skip
    assert found.separates
    means = [step.difference.mean for step in found.steps if step.difference]
    assert means == pytest.approx([0.3, -0.15, -0.01])
    assert found.whole.difference is not None
    assert math.fsum(means) == pytest.approx(found.whole.difference.mean)


def test_without_the_matched_control_scale_and_orthogonality_are_one_step(study: Study, make_record: Any) -> None:
    names = {"baseline": "baseline", "oelm-random": "oelm-random", "oelm-freeze": "oelm-freeze"}
    (found,) = ablations(compared(study, make_record, names))
    assert [step.name for step in found.steps] == ["freezing", "scale-and-orthogonality"]
    assert not found.separates


def test_without_an_orthogonal_arm_there_is_no_ablation(study: Study, make_record: Any) -> None:
    assert ablations(compared(study, make_record, {"baseline": "baseline", "oelm-random": "oelm-random"})) == []


def test_only_methods_that_change_one_thing_are_rungs() -> None:
    rungs = {name: rung(method) for name, method in METHODS.items()}
    assert {name: found for name, found in rungs.items() if found} == {
        "baseline": "trained", "oelm-freeze": "orthogonal", "oelm-random": "drawn", "oelm-random-matched": "matched",
        "oelm-from-current": "orthogonal", "oelm-random-from-current": "matched", "frozen-as-is": "drawn",
        "orthogonal-from-current-trained": "trained",
    }  # fmt: skip
    assert rung(named_method("oelm-every:10")) is None
