"""What a study could have seen, and how many seeds a margin needs: against simulation and the spread on record."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from oelm.analysis.power import POWER, detectable, needs, power_of, reach_of, seeds_needed, spreads_on_record
from oelm.analysis.statistics import MARGIN, paired_difference
from oelm.record.folder import run_directory, write_record, write_study
from oelm.spec.study import Study

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(("pairs", "gap"), [(3, 0.05), (6, 0.03), (9, 0.01)])
def test_the_power_is_how_often_simulated_studies_see_the_gap(pairs: int, gap: float) -> None:
    noise = np.random.default_rng(pairs).normal(gap, 0.02, (40_000, pairs))
    t = noise.mean(1) / (noise.std(1, ddof=1) / math.sqrt(pairs))
    seen = (t > stats.t(pairs - 1).isf(0.05)).mean()
    assert power_of(gap, 0.02, pairs, pairs - 1, 0.05) == pytest.approx(seen, abs=0.01)


def test_what_is_detectable_is_seen_in_four_of_five() -> None:
    gap = detectable(0.02, 6, 5, 0.05)
    assert power_of(gap, 0.02, 6, 5, 0.05) == pytest.approx(POWER)
    assert detectable(0.04, 6, 5, 0.05) == pytest.approx(2 * gap)
    assert power_of(100, 0.02, 6, 5, 0.05) == 1.0


def test_the_seeds_needed_are_the_fewest_that_suffice() -> None:
    count = seeds_needed(0.05, 0.04)
    assert count is not None
    assert power_of(0.05, 0.04, count, count - 1, 0.05) >= POWER > power_of(0.05, 0.04, count - 1, count - 2, 0.05)
    assert seeds_needed(0.001, 0.04) is None
    assert seeds_needed(0.0, 0.04) is None


def test_a_comparison_says_what_it_could_have_seen() -> None:
    reach = reach_of(paired_difference([0.02, 0.05, 0.03]))
    assert reach is not None
    assert reach.met < MARGIN < reach.not_met
    assert MARGIN - reach.met == pytest.approx(reach.not_met - MARGIN)
    assert reach.nonzero > reach.not_met - MARGIN  # two-sided
    assert reach_of(paired_difference([0.02])) is None
    assert reach_of(None) is None


@pytest.fixture
def on_record(study: Study, make_record: Any, tmp_path: Path) -> Any:
    """Return a writer of studies whose frozen arm deviates from the baseline by some differences."""

    def write(name: str, *differences: float, **fields: Any) -> Study:
        found = Study.model_validate(study.model_dump() | {"name": name} | fields)
        root = tmp_path / name
        root.mkdir()
        write_study(root, found)
        for run in found.runs():
            loss = 1.5 + (differences[run.seed] if run.arm != "baseline" else 0.0)
            record = make_record(run, loss)
            write_record(run_directory(root, record.spec), record)
        return found

    return write


def test_the_spread_on_record_names_its_studies_and_degrees(on_record: Any, study: Study, tmp_path: Path) -> None:
    on_record("one", 0.1, 0.12, 0.11)
    (spread,), complaints = spreads_on_record(study, [tmp_path])
    assert (spread.arm_class, spread.studies, spread.arms, spread.freedom) == ("frozen", ("one",), 1, 2)
    assert (spread.alike, spread.largest, complaints) == (True, pytest.approx(0.01), [])
    assert spread.typical == pytest.approx(0.01 * math.exp(np.euler_gamma / 2))  # log s^2 on 2 degrees is low by that


def test_runs_that_two_studies_share_count_once(on_record: Any, study: Study, tmp_path: Path) -> None:
    on_record("one", 0.1, 0.12, 0.11)
    on_record("two", 0.1, 0.12, 0.11)
    (spread,), _ = spreads_on_record(study, [tmp_path, tmp_path])
    assert (spread.arms, spread.studies) == (1, ("one",))


def test_studies_of_another_regime_are_a_guess_where_there_is_no_other(
    on_record: Any, study: Study, tmp_path: Path
) -> None:
    base = study.base.model_copy(update={"train": study.base.train.model_copy(update={"steps": 50})})
    on_record("shorter", 0.1, 0.3, 0.2, base=base.model_dump())
    (guess,), _ = spreads_on_record(study, [tmp_path])
    assert (guess.alike, guess.studies) == (False, ("shorter",))
    on_record("alike", 0.1, 0.12, 0.11)
    (spread,), _ = spreads_on_record(study, [tmp_path])
    assert (spread.alike, spread.studies) == (True, ("alike",))


def test_without_anything_on_record_nothing_is_said(study: Study, tmp_path: Path) -> None:
    assert spreads_on_record(study, [tmp_path]) == ([], [])
    assert needs(study, []) == []


def test_every_margin_is_asked_about_at_no_difference_and_at_half_of_it(
    on_record: Any, study: Study, tmp_path: Path
) -> None:
    on_record("one", 0.1, 0.12, 0.11)
    spreads, _ = spreads_on_record(study, [tmp_path])
    found = {(need.margin, need.truth): need.seeds for need in needs(study, spreads)}
    assert list(found) == [(1.0, 0.0), (1.0, 0.5), (5.0, 0.0), (5.0, 2.5)]
    assert found[1.0, 0.5] > found[1.0, 0.0] > found[5.0, 0.0]
    assert found[5.0, 0.0] == seeds_needed(MARGIN, spreads[0].typical)
    own = study.model_copy(update={"margin": 2.0})
    assert (2.0, 1.0) in {(need.margin, need.truth) for need in needs(own, spreads)}
