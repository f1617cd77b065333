from __future__ import annotations

import pytest

from oelm.analysis.evidence import Measure, judge, margin_of, measure_of
from oelm.record.record import ResultRecord
from oelm.spec.run import DataSpec, ExamplesSpec

ACCURACY = Measure("accuracy", "test")


def result(**fields: float | None) -> ResultRecord:
    return ResultRecord(**{"val_loss": 1.0, "test_loss": 1.1, "best_val_loss": 1.0, "best_step": 1, "train_tokens": 1,
                           "tokens_per_second": 1.0, "peak_memory_bytes": 1} | fields)  # fmt: skip


def costs(*accuracies: float) -> dict[int, float]:
    return {seed: -100 * accuracy for seed, accuracy in enumerate(accuracies)}


def test_language_is_judged_by_perplexity_and_labelled_text_and_probes_by_accuracy() -> None:
    right = result(test_accuracy=0.9, val_accuracy=0.8)
    assert measure_of(DataSpec(), [right]) == Measure("perplexity", "test")
    assert measure_of(ExamplesSpec(), [right]) == measure_of(DataSpec(corpus="recall:8"), [right]) == ACCURACY
    assert measure_of(ExamplesSpec(), [result(val_accuracy=0.8), None]) == Measure("accuracy", "val")
    assert ACCURACY.cost(right) == pytest.approx(-90)
    assert ACCURACY.figure(-90.0) == pytest.approx(90)


def test_accuracy_has_two_margins_and_meets_the_target_within_both() -> None:
    judged = judge(ACCURACY, costs(0.930, 0.925, 0.928), costs(0.932, 0.928, 0.930), margin_of(ACCURACY))
    assert judged is not None
    assert judged.difference.mean == pytest.approx(0.2333, abs=1e-3)
    assert judged.verdict == "met"


def test_two_points_lost_are_within_5_percent_and_beyond_one_point() -> None:
    judged = judge(ACCURACY, costs(0.911, 0.909, 0.910), costs(0.931, 0.930, 0.929), margin_of(ACCURACY))
    assert judged is not None
    assert judged.relative is not None
    assert (judged.relative.verdict, judged.difference.verdict, judged.verdict) == ("met", "not met", "not met")


def test_low_accuracies_can_lose_less_than_a_point_and_more_than_5_percent() -> None:
    judged = judge(ACCURACY, costs(0.1013, 0.0998, 0.1021), costs(0.109, 0.108, 0.110), margin_of(ACCURACY))
    assert judged is not None
    assert judged.relative is not None
    assert (judged.difference.verdict, judged.relative.verdict, judged.verdict) == ("met", "not met", "not met")


def test_arms_that_share_no_seed_are_not_judged() -> None:
    assert judge(ACCURACY, {0: -90.0}, {1: -90.0}, 1.0) is None


def test_equal_differences_of_accuracy_decide_nothing_about_either_margin() -> None:
    judged = judge(ACCURACY, costs(0.79, 0.80, 0.81), costs(0.85, 0.86, 0.87), margin_of(ACCURACY))
    assert judged is not None
    assert (judged.relative, judged.verdict, judged.p_margin) == (None, "undecided", None)
