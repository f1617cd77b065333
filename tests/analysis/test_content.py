"""What content is worth, and the share of it that frozen arms keep."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from oelm.analysis.compare import compare_records
from oelm.analysis.content import RatioSet, content_margin, content_worth, fieller
from oelm.errors import UsageError
from oelm.record.folder import read_study
from oelm.record.stages import index_by_declaration, stage_of
from oelm.spec.study import ContentArms, Study

ARMS = ("baseline", "baseline+features", "oelm-fast", "position-only")
RESULTS = Path(__file__).parents[2] / "docs" / "results"
values = st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=2, max_size=8)


@pytest.mark.parametrize("count", [3, 6, 9])
@pytest.mark.parametrize(("ratio", "worth"), [(0.75, 1.0), (0.2, 3.0), (1.4, 0.3)])
def test_fieller_sets_hold_the_true_ratio_in_95_percent_of_simulated_studies(
    count: int, ratio: float, worth: float
) -> None:
    rng = np.random.default_rng(count)
    spread = np.array([[1.0, 0.4], [0.4, 0.6]])  # d and C share the runs of T
    held = 0
    for _ in range(4000):
        costs, worths = rng.multivariate_normal([ratio * worth, worth], spread, size=count).T
        held += ratio in fieller(costs.tolist(), worths.tolist())
    assert 0.94 <= held / 4000 <= 0.96


def test_a_fieller_set_agrees_with_the_bootstrap_where_seeds_are_many() -> None:
    rng = np.random.default_rng(0)
    costs, worths = rng.multivariate_normal([0.5, 2.0], [[0.5, 0.1], [0.1, 0.4]], size=400).T
    found = fieller(costs.tolist(), worths.tolist())
    draws = rng.integers(0, 400, (8000, 400))
    low, high = np.quantile(costs[draws].mean(1) / worths[draws].mean(1), [0.025, 0.975])
    assert found.kind == "between"
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.08 * (high - low))


@given(values, st.floats(-5, 5))
def test_a_ratio_is_in_the_set_if_and_only_if_the_t_test_does_not_reject_it(
    pairs: list[tuple[float, float]], ratio: float
) -> None:
    costs, worths = (list(column) for column in zip(*pairs, strict=True))
    rest = [cost - ratio * worth for cost, worth in pairs]
    if max(map(abs, worths)) < 1e-6:  # nothing to divide by: no ratio is excluded, whatever the t test says
        assert fieller(costs, [0.0] * len(worths)).kind == "everything"
        return
    if statistics.stdev(rest) < 1e-6:
        return
    p = stats.ttest_1samp(rest, 0.0).pvalue
    if abs(p - 0.05) > 1e-6:
        assert (ratio in fieller(costs, worths)) == (p > 0.05)


def test_a_set_says_where_it_is_unbounded() -> None:
    clear = fieller([1.0, 1.1, 0.9], [2.0, 2.1, 1.9])
    assert clear.kind == "between"
    assert clear.low < 0.5 < clear.high
    assert fieller([0.1, -0.2, 0.1], [0.1, -0.1, 0.05]).kind == "everything"
    outside = fieller([1.0, 1.1, 0.9], [0.1, -0.1, 0.05])
    assert outside.kind == "outside"
    assert 0.0 not in outside
    assert 100.0 in outside
    assert RatioSet("between", 0.2, 0.7).complement() == RatioSet("between", 1 - 0.7, 1 - 0.2)
    assert 0.9 in RatioSet("outside", 0.2, 0.7).complement()


def test_nothing_is_kept_of_content_that_is_worth_nothing() -> None:
    costs = {"T": {0: 3.0, 1: 3.01}, "P": {0: 2.97, 1: 2.98}, "F": {0: 3.02, 1: 3.03}}
    found = content_worth(ContentArms("T", "P", ("F",), (False, "quarter")), costs)
    assert found is not None
    (kept,) = found.kept
    assert kept.share is None
    assert kept.interval is not None
    assert kept.interval.kind == "everything"


def test_content_kept_is_one_minus_the_cost_over_the_worth_of_the_seeds_that_all_three_share() -> None:
    costs = {
        "T": {0: 2.0, 1: 2.1, 2: 2.2},
        "P": {0: 2.2, 1: 2.32, 2: 2.4, 9: 5.0},
        "F": {0: 2.05, 1: 2.16, 3: 9.0},
    }
    found = content_worth(ContentArms("T", "P", ("F", "absent"), (False, "quarter")), costs)
    assert found is not None
    assert found.value.pairs == 3
    assert found.value.mean == pytest.approx((0.2 + 0.22 + 0.2) / 3)
    assert found.lower is not None
    assert found.lower < found.value.mean
    (kept,) = found.kept
    assert kept.share == pytest.approx(1 - 0.055 / 0.21)
    assert kept.cost.pairs == 2
    assert kept.interval is not None
    assert content_worth(ContentArms("T", "absent", (), (True, 0)), costs) is None


def tuned(tuned_study: Any, **fields: Any) -> Study:
    return tuned_study(**{"arms": ARMS, "margin": "content", "tuning_seeds": (100, 101), **fields})


def records_of(study: Study, make_record: Any, *, worth: dict[int, float], stages: tuple[str, ...]) -> list[Any]:
    """Make records in which every arm is best at the middle rate, and P loses `worth` to T by seed."""
    found: list[Any] = []
    for _ in range(2):
        stage = stage_of(study, index_by_declaration(record for _, record in found))
        runs = [*stage.tune, *(stage.confirm if "confirm" in stages else ())]
        found = []
        for run in runs:
            loss = 2.0 + 0.01 * run.seed + (run.train.learning_rate != 2e-3) * 0.5
            loss += worth.get(run.seed, 0.3) if run.arm == "position-only" else 0.1 * (run.arm == "oelm-fast")
            found.append((Path(f"{run.arm}-{run.seed}-{run.train.learning_rate}"), make_record(run, loss)))
    return found


def test_the_margin_is_half_the_lower_bound_of_the_worth_in_tuning(tuned_study: Any, make_record: Any) -> None:
    study = tuned(tuned_study)
    found = records_of(study, make_record, worth={100: 0.30, 101: 0.32}, stages=("tune",))
    bound = 0.31 - stats.t.ppf(0.95, 1) * 0.01  # the standard error of 0.30 and 0.32
    assert content_margin(study, [record for _, record in found]) == pytest.approx(100 * math.expm1(bound / 2))


def test_comparisons_use_the_margin_of_tuning_and_a_registered_one_before_it(
    tuned_study: Any, make_record: Any
) -> None:
    study = tuned(tuned_study)
    worth = {100: 0.30, 101: 0.32, 0: 0.9, 1: 0.9, 2: 0.9}
    found = records_of(study, make_record, worth=worth, stages=("tune", "confirm"))
    tuning = [record for _, record in found if record.spec.seed >= 100]
    comparison = compare_records(study, found)
    assert comparison.margin == pytest.approx(math.log1p(content_margin(study, tuning) / 100))
    assert comparison.margin < 0.2, "the confirming runs have no say in it"
    assert compare_records(study, found, registered_margin=4.2).margin == pytest.approx(math.log1p(0.042))
    before = records_of(study, make_record, worth=worth, stages=("tune",))[:3]
    assert math.isnan(compare_records(study, before).margin), "tuning has not fixed it yet"


def test_a_worth_that_tuning_does_not_show_to_be_positive_leaves_no_margin(tuned_study: Any, make_record: Any) -> None:
    study = tuned(tuned_study)
    found = records_of(study, make_record, worth={100: -0.3, 101: 0.4}, stages=("tune",))
    assert content_margin(study, [record for _, record in found]) == 0.0


def test_the_margin_of_a_study_whose_tuning_has_not_ended_is_refused(tuned_study: Any, make_record: Any) -> None:
    study = tuned(tuned_study)
    found = records_of(study, make_record, worth={}, stages=("tune",))
    with pytest.raises(UsageError, match="tuning is not complete"):
        content_margin(study, [record for _, record in found[:-1]])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tuning_seeds": (100,)}, "takes 2 tuning seeds"),
        ({"tuned": {}, "tuning_seeds": ()}, "takes 2 tuning seeds"),
        ({"arms": ("baseline", "oelm-fast", "baseline+features")}, "Add 'position-only'"),
        ({"arms": ("baseline", "oelm-bias", "position-only-bias")}, "Add 'baseline\\+bias'"),
        ({"arms": ("baseline", "oelm-freeze", "uniform")}, "Add 'position-only' and 'baseline\\+features'"),
    ],
)
def test_a_margin_by_content_without_what_it_needs_is_refused(
    tuned_study: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        tuned(tuned_study, **fields)


def test_a_study_may_declare_which_arms_measure_content(tuned_study: Any) -> None:
    declared = tuned(
        tuned_study, content={"trained": "baseline", "position": "position-only", "frozen": ("oelm-fast",)}
    )
    (arms,) = declared.content_arms
    assert (arms.trained, arms.position, arms.frozen) == ("baseline", "position-only", ("oelm-fast",))
    assert Study.model_validate_json(declared.model_dump_json()) == declared
    for content, message in {
        ("baseline", "positions"): "content names \\['positions'\\]",
        ("baseline", "baseline"): "gives one arm two roles",
    }.items():
        with pytest.raises(ValidationError, match=message):
            tuned(tuned_study, content=dict(zip(("trained", "position"), content, strict=True)))


def test_old_studies_keep_their_meaning_and_their_position_only_arm_is_recognised() -> None:
    study = read_study(RESULTS / "gap-bias-speeches")
    assert isinstance(study, Study)
    assert (study.content, study.margin) == (None, None)
    (arms,) = study.content_arms
    assert (arms.trained, arms.position) == ("baseline+bias+mix", "oelm-random+bias+mix")
    assert arms.frozen == ("oelm-bias", "oelm+bias+mix")
    assert not arms.is_exact
