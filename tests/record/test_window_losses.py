from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from oelm.errors import BadRecord
from oelm.record.folder import (
    LOGIT_VARIANCE,
    WINDOW_LOSSES,
    LogitVarianceRecord,
    RunFolder,
    TokenLosses,
    WindowLossesRecord,
    read_window_losses,
)
from oelm.record.keep import LIGHT

LOSSES = WindowLossesRecord(
    split="test",
    starts=(0, 1),
    context=4,
    repeats=TokenLosses(nats=(0.0, 3.00004), tokens=(0, 6)),
    others=TokenLosses(nats=(8.0, 9.0), tokens=(2, 6)),
)


def test_losses_come_back_as_they_were_written_and_are_kept_with_a_study(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_window_losses(LOSSES)
    found = read_window_losses(tmp_path)
    assert found is not None
    assert found.repeats.nats == (0.0, 3.0)
    assert found.repeats.mean == pytest.approx(0.5)
    assert found.others.mean == pytest.approx(17 / 8)
    assert found.by_position == pytest.approx((4.0, 1.0))
    assert found.share_of_repeats == pytest.approx(6 / 14)
    assert {WINDOW_LOSSES, LOGIT_VARIANCE} <= set(LIGHT)


def test_a_run_without_them_has_none_and_a_damaged_file_is_reported(tmp_path: Path) -> None:
    assert read_window_losses(tmp_path) is None
    assert RunFolder(tmp_path).read_logit_variance() is None
    (tmp_path / WINDOW_LOSSES).write_text('{"split": "test"')
    (tmp_path / LOGIT_VARIANCE).write_text("[]")
    with pytest.raises(BadRecord, match="does not hold losses by position"):
        read_window_losses(tmp_path)
    with pytest.raises(BadRecord, match="does not hold variances"):
        RunFolder(tmp_path).read_logit_variance()


def test_bins_without_a_value_each_are_refused() -> None:
    with pytest.raises(ValidationError, match="2 bins of positions have values of lengths"):
        LOSSES.model_validate({**LOSSES.model_dump(), "repeats": {"nats": (1.0,), "tokens": (1,)}})


def test_the_median_share_of_content_is_over_heads_and_none_without_a_source_of_position(tmp_path: Path) -> None:
    record = LogitVarianceRecord(tokens=8, content=((1.0, 3.0), (0.0, 0.0)), position=((1.0, 1.0), (2.0, 0.0)))
    RunFolder(tmp_path).write_logit_variance(record)
    assert RunFolder(tmp_path).read_logit_variance() == record
    assert record.median_share == pytest.approx(0.5)  # of 0.5, 0.75 and 0; the last head has no logits at all
    plain = LogitVarianceRecord(tokens=8, content=((1.0, 3.0),), position=((0.0, 0.0),))
    assert plain.median_share is None
