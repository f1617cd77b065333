from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.record.record import MetricRecord, ResultRecord, RunRecord, perplexity


def result(loss: float, test_loss: float | None) -> ResultRecord:
    return ResultRecord(
        val_loss=loss, test_loss=test_loss, best_val_loss=loss, best_step=1, train_tokens=1,
        tokens_per_second=1.0, peak_memory_bytes=1,
    )  # fmt: skip


@given(st.floats(), st.floats() | st.none())
def test_every_loss_survives_json_also_of_a_run_that_diverged(loss: float, rate: float | None) -> None:
    metric = MetricRecord(kind="train", step=1, loss=loss, seconds=0.5, learning_rate=rate)
    read = MetricRecord.model_validate_json(metric.model_dump_json())
    assert repr(read) == repr(metric)  # NaN is not equal to itself, but is written the same


@given(st.floats())
def test_results_are_json_for_any_reader(loss: float) -> None:
    text = result(loss, loss).model_dump_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert repr(ResultRecord.model_validate_json(text)) == repr(result(loss, loss))


def test_perplexity_of_a_diverged_loss_is_infinite_not_an_error() -> None:
    assert perplexity(math.log(4.27)) == pytest.approx(4.27)
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))
    assert result(1.0, 1e6).test_perplexity == math.inf
    assert result(1.0, None).test_perplexity is None


def test_a_whole_record_survives_json(study: Any, make_record: Any) -> None:
    record = make_record(study.runs()[0], loss=math.nan)
    assert repr(RunRecord.model_validate_json(record.model_dump_json())) == repr(record)


def test_a_later_field_is_read_over(study: Any, make_record: Any) -> None:
    plain = json.loads(make_record(study.runs()[0]).model_dump_json())
    assert RunRecord.model_validate({**plain, "invented_later": 1}) == RunRecord.model_validate(plain)
