"""How much of a spread comes from the draw, against tables made with known variances."""

import numpy as np
import pytest
from scipy import stats

from oelm.analysis.compare import compare_records
from oelm.analysis.scaling import spread_by_source, spreads


def table(draw, seed, rest, draws=6, seeds=5, state=0):
    random = np.random.default_rng(state)
    values = draw * random.standard_normal((draws, 1)) + seed * random.standard_normal((1, seeds))
    values = values + rest * random.standard_normal((draws, seeds))
    return {number: dict(enumerate(row.tolist())) for number, row in enumerate(values)}


def test_the_variances_are_found_again_on_the_average():
    found = [spread_by_source("arm", table(0.03, 0.02, 0.01, state=state)) for state in range(600)]
    for field, deviation in (("draw", 0.03), ("seed", 0.02), ("rest", 0.01)):
        assert np.mean([getattr(item, field) for item in found]) == pytest.approx(deviation**2, rel=0.1)


def test_a_draw_without_effect_is_found_significant_one_time_in_twenty():
    found = [spread_by_source("arm", table(0.0, 0.02, 0.01, state=state)).p for state in range(1000)]
    assert 0.03 <= np.mean(np.array(found) < 0.05) <= 0.07
    assert stats.kstest(found, "uniform").pvalue > 0.01


def test_seeds_that_all_draws_share_do_not_hide_the_draw():
    found = [spread_by_source("arm", table(0.02, 0.2, 0.001, state=state)) for state in range(200)]
    assert max(item.p for item in found) < 1e-4
    assert np.mean([item.draw for item in found]) == pytest.approx(0.02**2, rel=0.15)


def test_an_arm_that_the_draw_cannot_touch_has_no_significant_draw():
    same = {seed: 3.1 + 0.017 * seed**1.3 for seed in range(5)}
    for draws in (2, 3, 4):
        found = spread_by_source("baseline", dict.fromkeys(range(draws), same))
        assert found.p == 1.0
        assert found.draw == pytest.approx(0, abs=1e-12)


def test_one_draw_or_one_shared_seed_says_nothing():
    assert spread_by_source("arm", table(1, 1, 1, draws=1)) is None
    assert spread_by_source("arm", {0: {0: 1.0, 1: 2.0}, 1: {1: 1.0, 2: 3.0}}) is None
    assert spread_by_source("arm", {}) is None


def test_a_study_that_varies_the_seed_of_the_draw_says_how_much_comes_from_it(study, make_record):
    study = study.model_copy(update={"axes": {"draw_seed": (7, 8, 9)}})
    shift = {7: 0.0, 8: 0.05, 9: -0.05}
    records = [
        (f"/{number}", make_record(run, 2 + 0.01 * run.seed + shift[run.draw_seed] * (run.arm == "oelm-freeze")
                                   + 1e-4 * np.sin(number)))
        for number, run in enumerate(study.runs())
    ]  # fmt: skip
    found = {item.arm: item for item in spreads(compare_records(study, records))}
    assert found["oelm-freeze"].share > 0.9
    assert found["baseline"].share < 0.01
