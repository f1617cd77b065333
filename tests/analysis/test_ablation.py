from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.ablation import Ablation, ablations, find_rung
from oelm.analysis.compare import Comparison, compare_records
from oelm.spec.method import METHODS, InitSpec, named_method
from oelm.spec.run import HuggingFaceSpec
from oelm.spec.study import Arm, Study, replace_fields

LOSSES = {
    "baseline": 1.0, "oelm-random": 1.3, "oelm-random-matched": 1.15, "oelm-freeze": 1.14, "frozen-as-is": 1.02,
    "oelm-random-from-current": 1.1, "oelm-from-current": 1.05, "orthogonal-from-current-trained": 1.01,
    "orthogonal-trained": 1.03, "oelm-global": 1.09, "oelm-slice": 1.13,
}  # fmt: skip


def compared(study: Study, make_record: Any, names: dict[str, str]) -> Comparison:
    """Compare arms under any names: name -> method."""
    arms = tuple(Arm(name=name, method=named_method(method)) for name, method in names.items())
    wide = study.model_copy(update={"arms": arms, "reference": next(iter(names))})
    records = [
        (Path(str(n)), make_record(run, LOSSES[names[run.arm]] + 0.01 * run.seed + 0.001 * run.seed * len(run.arm)))
        for n, run in enumerate(wide.runs())
    ]
    return compare_records(wide, records)


def test_the_steps_are_found_by_method_and_add_up_to_the_whole(study: Study, make_record: Any) -> None:
    names = {"d": "oelm-freeze", "a": "baseline", "b": "oelm-random", "c": "oelm-random-matched"}
    (found,) = ablations(compared(study, make_record, names))
    assert [(step.name, step.start, step.end) for step in found.steps] == [
        ("freezing", "a", "b"), ("scale", "b", "c"), ("orthogonality", "c", "d"),
    ]  # fmt: skip
    assert not found.confounded
    means = [step.difference.mean for step in found.steps if step.difference]
    assert means == pytest.approx([0.3, -0.15, -0.01])
    assert found.whole.difference is not None
    assert math.fsum(means) == pytest.approx(found.whole.difference.mean)


def test_without_the_matched_control_scale_and_orthogonality_are_one_step(study: Study, make_record: Any) -> None:
    names = {"baseline": "baseline", "oelm-random": "oelm-random", "oelm-freeze": "oelm-freeze"}
    (found,) = ablations(compared(study, make_record, names))
    assert [step.name for step in found.steps] == ["freezing", "scale-and-orthogonality"]
    assert found.confounded


def test_without_an_orthogonal_arm_there_is_no_ablation(study: Study, make_record: Any) -> None:
    assert ablations(compared(study, make_record, {"baseline": "baseline", "oelm-random": "oelm-random"})) == []


def steps(found: list[Ablation]) -> list[list[tuple[str, str, str]]]:
    return [[(step.name, step.start, step.end) for step in item.steps] for item in found]


def test_on_a_pretrained_model_fresh_draws_are_compared_with_fresh_draws_alone(study: Study, make_record: Any) -> None:
    model = HuggingFaceSpec(name="bert-base", labels=2)
    bert = study.model_copy(update={"base": study.base.model_copy(update={"model": model})})
    names = {
        name: name for name in ("baseline", "orthogonal-from-current-trained", "oelm-from-current",
        "oelm-random-from-current", "frozen-as-is", "oelm-random", "oelm-random-matched", "oelm-freeze")
    }  # fmt: skip
    found = ablations(compared(bert, make_record, names))
    freezing = [
        [("freezing", "baseline", "frozen-as-is")],
        [("freezing", "orthogonal-from-current-trained", "oelm-from-current")],
    ]
    assert steps(found) == [
        [("scale", "oelm-random", "oelm-random-matched"), ("orthogonality", "oelm-random-matched", "oelm-freeze")],
        *freezing,
    ]
    assert [item.apart for item in found] == [False, True, True]
    assert not any(item.confounded for item in found)
    assert (found[0].whole.start, found[0].whole.end) == ("oelm-random", "oelm-freeze")
    without = {name: name for name in names if name not in ("oelm-random", "oelm-random-matched", "oelm-freeze")}
    assert steps(ablations(compared(bert, make_record, without))) == freezing
    scratch = replace_fields(bert.base, {"model.pretrained": False})
    (whole, _) = ablations(compared(bert.model_copy(update={"base": scratch}), make_record, names))
    assert steps([whole])[0][0] == ("freezing", "baseline", "frozen-as-is")


def test_two_arms_that_start_alike_tell_what_freezing_does_alone(study: Study, make_record: Any) -> None:
    names = {"a": "baseline", "d": "oelm-freeze", "o": "orthogonal-trained"}
    assert steps(ablations(compared(study, make_record, names))) == [[("all", "a", "d")], [("freezing", "o", "d")]]


def test_other_forms_of_orthogonal_rows_are_compared_with_one_qr_a_head(study: Study, make_record: Any) -> None:
    names = {"baseline": "baseline", "oelm-freeze": "oelm-freeze", "all": "oelm-global", "cut": "oelm-slice"}
    ladder, *apart = ablations(compared(study, make_record, names))
    assert [step.end for step in ladder.steps] == ["oelm-freeze"]
    assert [(item.whole.name, item.whole.start, item.whole.end) for item in apart] == [
        ("form", "oelm-freeze", "all"), ("form", "oelm-freeze", "cut"),
    ]  # fmt: skip
    assert apart[0].apart
    assert not apart[0].confounded
    assert apart[0].whole.difference is not None
    assert apart[0].whole.difference.mean == pytest.approx(-0.05, abs=0.01)


def test_a_step_from_trained_to_matched_is_not_called_freezing_alone(study: Study, make_record: Any) -> None:
    names = {"a": "baseline", "c": "oelm-random-matched", "d": "oelm-freeze"}
    (found,) = ablations(compared(study, make_record, names))
    assert [step.name for step in found.steps] == ["freezing-and-scale", "orthogonality"]


def test_only_methods_that_change_one_thing_are_rungs() -> None:
    rungs = {name: find_rung(method) for name, method in METHODS.items()}
    assert {name: found for name, found in rungs.items() if found} == {
        "baseline": "trained", "oelm-freeze": "orthogonal", "oelm-random": "drawn", "oelm-random-matched": "matched",
        "frozen-as-is": "drawn",
    }  # fmt: skip
    fresh = {name for name, method in METHODS.items() if find_rung(method, pretrained=True)}
    assert fresh == {"oelm-freeze", "oelm-random", "oelm-random-matched"}
    assert find_rung(named_method("oelm-every:10")) is None
    larger = METHODS["oelm-random"].model_copy(update={"init": InitSpec(shape="normal", deviation=0.1)})
    assert find_rung(larger) is None, "its scale is another as well"
