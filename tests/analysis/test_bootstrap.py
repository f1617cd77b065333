from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oelm.analysis.compare import compare_folder
from oelm.analysis.power import evaluation_noise, noise_of
from oelm.errors import UsageError
from oelm.record.folder import RunFolder, TestLossesRecord
from oelm.report.tables import results
from oelm.report.wording import wording
from oelm.spec.study import Study


def documents(rng: np.random.Generator, effect: float, count: int = 400) -> TestLossesRecord:
    tokens = np.full(count, 100)
    nats = 100 * (2.0 + effect + rng.normal(0, 0.5, count))
    return TestLossesRecord(kind="documents", nats=tuple(nats), tokens=tuple(int(n) for n in tokens))


def test_the_interval_is_that_of_the_mean_over_documents() -> None:
    rng = np.random.default_rng(0)
    arm, reference = documents(rng, 0.1), documents(rng, 0.0)
    interval = evaluation_noise({0: arm}, {0: reference})
    differences = (np.array(arm.nats) - np.array(reference.nats)) / 100
    half = 1.96 * differences.std() / np.sqrt(400)
    assert interval.low == pytest.approx(differences.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(differences.mean() + half, abs=0.1 * half)


def test_a_handful_of_documents_is_covered_as_often_as_many() -> None:
    """Eleven documents, as the speeches have: the plain percentile interval would cover 88 %."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        arm, reference = documents(rng, 0.1, 11), documents(rng, 0.0, 11)
        interval = evaluation_noise({0: arm}, {0: reference}, draws=400)
        covered += interval.low <= 0.1 <= interval.high
    assert 0.92 <= covered / 300 <= 0.98


def test_what_documents_share_between_the_arms_cancels() -> None:
    rng = np.random.default_rng(1)
    reference = documents(rng, 0.0)
    arm = reference.model_copy(update={"nats": tuple(value + 10.0 for value in reference.nats)})
    interval = evaluation_noise({0: arm}, {0: reference})
    assert (interval.low, interval.high) == pytest.approx((0.1, 0.1))


def test_examples_count_in_points_and_lost_ones_are_a_cost() -> None:
    right = TestLossesRecord(kind="examples", correct=(1,) * 90 + (0,) * 10)
    worse = TestLossesRecord(kind="examples", correct=(1,) * 80 + (0,) * 20)
    interval = evaluation_noise({0: worse}, {0: right})
    assert 3 < interval.low < 10 < interval.high < 19


def test_seeds_are_not_resampled_below_ten_and_widen_the_interval_from_there() -> None:
    rng = np.random.default_rng(2)
    arms = {seed: documents(rng, 0.1 + rng.normal(0, 0.1)) for seed in range(10)}
    references = {seed: documents(rng, 0.0) for seed in range(10)}
    fixed, nested = evaluation_noise(arms, references), evaluation_noise(arms, references, over_seeds=True)
    assert nested.high - nested.low > 1.5 * (fixed.high - fixed.low)
    few = {seed: arms[seed] for seed in range(9)}
    with pytest.raises(UsageError, match="bootstrap over 9 seeds.*needs 10"):
        evaluation_noise(few, references, over_seeds=True)


def test_ten_seeds_are_covered_as_often_as_many_documents() -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        arms = {seed: documents(rng, 0.1 + rng.normal(0, 0.3), count=50) for seed in range(10)}
        references = {seed: documents(rng, 0.0, count=50) for seed in range(10)}
        found = evaluation_noise(arms, references, over_seeds=True, draws=300)
        covered += found.low <= 0.1 <= found.high
    assert covered / 400 == pytest.approx(0.95, abs=0.025)


def test_different_test_splits_are_refused() -> None:
    rng = np.random.default_rng(3)
    with pytest.raises(UsageError, match=r"one split.*\[300, 400\]"):
        evaluation_noise({0: documents(rng, 0.1)}, {0: documents(rng, 0.0, count=300)})


def test_a_comparison_has_the_noise_of_the_arms_that_left_their_losses(study: Study, write_run: Any, tmp_path) -> None:
    rng = np.random.default_rng(4)
    for run in study.runs():
        directory = write_run(run)
        RunFolder(directory).write_test_losses(documents(rng, 0.1 * (run.arm != "baseline")))
    comparison = compare_folder(study, tmp_path / "runs")
    noise, complaints = noise_of(comparison)
    assert list(noise) == [("oelm-freeze", ())]
    assert complaints == []
    (directory / "test_losses.json").write_text("{")
    assert "does not hold losses" in noise_of(comparison)[1][0]


@pytest.mark.parametrize(("seeds", "nested", "words"), [(9, False, "seeds fixed"), (10, True, "used other seeds")])
def test_a_comparison_draws_seeds_from_ten_on_and_the_table_says_which(
    study: Study, write_run: Any, tmp_path, seeds: int, nested: bool, words: str
) -> None:
    rng = np.random.default_rng(5)
    study = study.model_copy(update={"seeds": tuple(range(seeds))})
    for run in study.runs():
        effect = (0.1 + rng.normal(0, 0.1)) * (run.arm != "baseline")
        RunFolder(write_run(run)).write_test_losses(documents(rng, effect))
    comparison = compare_folder(study, tmp_path / "runs")
    noise, _ = noise_of(comparison)
    found = noise["oelm-freeze", ()]
    assert found.over_seeds == nested
    width = found.interval.high - found.interval.low
    assert (width > 0.06) == nested  # documents alone give about 0.046 with nine seeds
    notes = " ".join(results(comparison, wording("en"), noise).notes)
    assert words in notes
    assert ("seeds fixed" in notes) != nested
