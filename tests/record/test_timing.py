from __future__ import annotations

import json
import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.record.record import TimingRecord, drop_outliers, format_published_duration, quantile, timing_stats, warmup_of


def stats(step_seconds: list[float], **fields: Any) -> TimingRecord:
    facts = {
        "model_type": "oelm_v2",
        "init_method": "orthogonal",
        "dataset": "stories",
        "total_wall_time": 9.0,
    }
    return timing_stats(step_seconds, **{**facts, **fields})


PUBLISHED = [
    "model_type", "init_method", "dataset", "total_wall_time", "total_formatted", "num_steps_measured",
    "warmup_steps", "mean_step_time", "std_step_time", "median_step_time", "min_step_time", "max_step_time",
    "p95_step_time", "p99_step_time", "total_validation_time", "mean_validation_time", "num_validations",
    "epoch_times", "final_perplexity", "best_val_loss",
]  # fmt: skip


def test_the_file_has_exactly_the_published_fields() -> None:
    assert list(json.loads(stats([0.1] * 50).model_dump_json())) == PUBLISHED


def test_the_first_steps_are_left_out() -> None:
    found = stats([9.0] * 100 + [0.1] * 900)
    assert (found.warmup_steps, found.num_steps_measured, found.max_step_time) == (100, 900, 0.1)


@pytest.mark.parametrize(("steps", "warmup"), [(0, 0), (9, 0), (50, 5), (999, 99), (1000, 100), (100_000, 100)])
def test_a_short_run_leaves_out_a_tenth(steps: int, warmup: int) -> None:
    assert warmup_of(steps) == warmup


def test_steps_over_three_medians_are_left_out() -> None:
    found = stats([1.0, 1.0, 1.0, 3.0, 3.1])
    assert (found.num_steps_measured, found.max_step_time) == (4, 3.0)


def test_a_run_without_steps_has_no_step_times_and_no_crash() -> None:
    found = stats([])
    assert (found.num_steps_measured, found.mean_step_time, found.p99_step_time) == (0, None, None)


def test_validations_and_epochs_are_summed() -> None:
    found = stats([0.1], validation_seconds=[2.0, 4.0], epoch_seconds=[60.0, 61.0])
    assert (found.total_validation_time, found.mean_validation_time, found.num_validations) == (6.0, 3.0, 2)
    assert found.epoch_times == (60.0, 61.0)


def test_the_final_perplexity_is_that_of_the_best_validation() -> None:
    assert stats([0.1], best_val_loss=math.log(4.27)).final_perplexity == pytest.approx(4.27)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 5000.0])
def test_a_diverged_run_survives_the_file(loss: float) -> None:
    written = stats([0.1], best_val_loss=loss).model_dump_json()
    read = TimingRecord.model_validate_json(written)
    assert not math.isfinite(read.final_perplexity or 0.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(16_287, "4h 31m 27s"), (3600, "1h 0m 0s"), (1887.4, "31m 27s"), (59.6, "1m 0s"), (0.2, "0s")],
)
def test_durations_are_written_as_published(seconds: float, text: str) -> None:
    assert format_published_duration(seconds) == text


times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)


@given(times, st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9)


@given(times)
def test_at_least_half_of_the_steps_stay_and_none_is_an_outlier(values: list[float]) -> None:
    kept = drop_outliers(values)
    assert len(kept) >= len(values) / 2
    assert kept == sorted(kept)
    assert kept[-1] <= 3 * statistics.median(values)
