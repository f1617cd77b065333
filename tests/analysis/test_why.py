"""Where arms differ on text: on repeats, by position, by the source of their logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import compare_folder
from oelm.analysis.regime import explain_differences
from oelm.record.folder import WINDOW_LOSSES, LogitVarianceRecord, RunFolder, TokenLosses, WindowLossesRecord
from oelm.spec.study import Study

LOSSES = {"baseline": 2.0, "oelm-freeze": 2.1}


def record(split: str, nats: float) -> WindowLossesRecord:
    return WindowLossesRecord(
        split=split,  # type: ignore[arg-type]
        starts=(0, 1, 2, 4),
        context=8,
        repeats=TokenLosses(nats=(0.0, 0.0, nats, 3.0), tokens=(0, 0, 2, 2)),
        others=TokenLosses(nats=(4.0, 5.0, 6.0, 8.0), tokens=(1, 1, 2, 4)),
    )


def test_losses_and_shares_are_means_over_the_seeds_of_an_arm(study: Study, write_study_runs: Any) -> None:
    root = write_study_runs(study, losses=LOSSES)
    for seed, directory in enumerate(sorted(root.glob("oelm-freeze-*"))):
        RunFolder(directory).write_window_losses(record("test", 1.0 + seed))
        shares = LogitVarianceRecord(tokens=8, content=((1.0,),), position=((1.0 + 2 * seed,),))
        RunFolder(directory).write_logit_variance(shares)
    (found,) = explain_differences(compare_folder(study, root), [])
    assert (found.arm, found.split) == ("oelm-freeze", "test")
    assert found.repeats == pytest.approx((3 + 2.0) / 4)
    assert found.others == pytest.approx(23 / 8)
    assert found.share_of_repeats == pytest.approx(4 / 12)
    assert (found.repeats_difference, found.position_differences) == (None, ()), "the reference left no losses"
    assert found.content_share == pytest.approx((1 / 2 + 1 / 4 + 1 / 6) / 3)


def test_differences_are_paired_by_seed_and_by_position(study: Study, write_study_runs: Any) -> None:
    root = write_study_runs(study, losses=LOSSES)
    for seed in range(3):
        (own,) = root.glob(f"oelm-freeze-seed{seed}_*")
        (other,) = root.glob(f"baseline-seed{seed}_*")
        RunFolder(other).write_window_losses(record("test", 10.0 * seed))  # seeds differ far more than arms
        if seed < 2:  # a seed that one of them lacks must not move the difference
            RunFolder(own).write_window_losses(record("test", 10.0 * seed + 0.4))
    reference, frozen = explain_differences(compare_folder(study, root), [])
    assert (reference.repeats_difference, reference.position_differences) == (None, ())
    assert frozen.repeats_difference == pytest.approx(0.1)
    assert frozen.others_difference == pytest.approx(0.0)
    assert [place for place, _ in frozen.position_differences] == [1, 2, 3, 6]
    assert [value for _, value in frozen.position_differences] == pytest.approx([0.0, 0.0, 0.1, 0.0])


def test_runs_of_different_splits_are_not_averaged_and_a_damaged_file_is_reported(
    study: Study, write_study_runs: Any, tmp_path: Path
) -> None:
    root = write_study_runs(study, losses=LOSSES)
    runs = sorted(root.glob("baseline-*"))
    RunFolder(runs[0]).write_window_losses(record("val", 99.0))
    RunFolder(runs[1]).write_window_losses(record("test", 1.0))
    (runs[2] / WINDOW_LOSSES).write_text("{")
    complaints: list[str] = []
    (found,) = explain_differences(compare_folder(study, root), complaints)
    assert (found.split, found.repeats) == ("test", 1.0)
    assert len(complaints) == 1
