from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.gather import find_runs, gather
from oelm.cli import dispatch
from oelm.errors import BadRecord, UnknownName, UsageError
from oelm.record.imported import Settings, import_run
from oelm.record.store import read_metrics, read_record
from oelm.report.numbers import IMPORTED, marks

SETTINGS = Settings(learning_rate=3e-4)
TIMING: dict[str, Any] = {
    "model_type": "baseline", "init_method": "n/a", "dataset": "wikitext103", "total_wall_time": 13775.0,
    "total_formatted": "3h 49m 35s", "num_steps_measured": 199899, "warmup_steps": 100, "mean_step_time": 0.06168,
    "std_step_time": 0.001, "median_step_time": 0.06169, "min_step_time": 0.06, "max_step_time": 0.08,
    "p95_step_time": 0.063, "p99_step_time": 0.065, "total_validation_time": 586.9, "mean_validation_time": 2.9,
    "num_validations": 200, "epoch_times": [], "final_perplexity": 25.13, "best_val_loss": 3.224,
}  # fmt: skip


def published(folder: Path, losses: dict[int, Any] | None = None, **fields: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "timing_stats.json").write_text(json.dumps(TIMING | fields))
    lines = [f"[Step {step}] Validation - Loss: {loss}, PPL: 1.0" for step, loss in (losses or {}).items()]
    (folder / "training.log").write_text("\n".join(["Starting ...", *lines, "[Step 7] loss 3.2"]) + "\n")
    return folder


def test_a_published_folder_becomes_a_record_marked_imported(tmp_path: Path) -> None:
    folder = published(tmp_path / "GPT-06_baseline", {1000: 5.0, 200000: 3.224, 199000: 3.23})
    directory = import_run(folder, SETTINGS, tmp_path / "runs")
    record = read_record(directory)
    assert record.imported
    assert (record.status, record.spec.label, record.spec.data.corpus) == (
        "complete",
        "GPT-06_baseline",
        "wikitext-103",
    )
    assert (record.step, record.spec.train.learning_rate, record.spec.seed) == (200000, 3e-4, 42)
    assert record.result is not None
    assert (record.result.val_loss, record.result.test_loss, record.result.best_step) == (3.224, None, 200000)
    assert [point.step for point in read_metrics(directory)] == [1000, 199000, 200000]
    assert (folder / "timing_stats.json").exists()


def test_imported_runs_can_be_compared_and_are_as_unfair_as_they_were(tmp_path: Path) -> None:
    one = published(tmp_path / "GPT-06_baseline", {200000: 3.224})
    other = published(tmp_path / "GPT-07_oelm_freeze", {200000: 3.368}, model_type="oelm_v2", best_val_loss=3.368)
    import_run(one, SETTINGS, tmp_path / "runs")
    import_run(other, Settings(learning_rate=1e-3), tmp_path / "runs")
    (comparison,) = gather(find_runs([tmp_path / "runs"])[0], force=True).comparisons
    assert IMPORTED in marks(comparison.rows[1])
    assert comparison.rows[1].difference is not None
    assert comparison.rows[1].difference.mean == pytest.approx(0.144)
    assert any("train.learning_rate" in reason for reason in comparison.unfair)


def test_a_log_that_was_continued_counts_the_last_word_on_a_step(tmp_path: Path) -> None:
    folder = published(tmp_path / "run")
    with (folder / "training.log").open("a") as file:
        file.write("[Step 1000] Validation - Loss: 5.0, PPL: 1\n[Step 1000] Validation - Loss: 4.0, PPL: 1\n")
    directory = import_run(folder, SETTINGS, tmp_path / "runs")
    assert [point.loss for point in read_metrics(directory)] == [4.0]


def test_without_a_log_the_timing_tells_the_steps_and_a_diverged_run_keeps_its_nan(tmp_path: Path) -> None:
    bare = published(tmp_path / "bare")
    (bare / "training.log").unlink()
    assert read_record(import_run(bare, SETTINGS, tmp_path / "runs")).step == 199999
    lost = published(tmp_path / "lost", {1000: "nan"}, best_val_loss=math.nan)
    record = read_record(import_run(lost, SETTINGS, tmp_path / "runs"))
    assert record.result is not None
    assert math.isnan(record.result.val_loss)


def test_bad_folders_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no timing_stats\.json"):
        import_run(tmp_path, SETTINGS, tmp_path / "runs")
    folder = published(tmp_path / "torn")
    (folder / "timing_stats.json").write_text('{"model_type": ')
    with pytest.raises(BadRecord, match="not whole JSON"):
        import_run(folder, SETTINGS, tmp_path / "runs")
    (folder / "timing_stats.json").write_text('{"model_type": "baseline"}')
    with pytest.raises(BadRecord, match="not what the published program writes"):
        import_run(folder, SETTINGS, tmp_path / "runs")
    with pytest.raises(UnknownName, match="model_type"):
        import_run(published(tmp_path / "odd", model_type="mystery"), SETTINGS, tmp_path / "runs")
    with pytest.raises(BadRecord, match="validation loss of step 1000"):
        import_run(published(tmp_path / "words", {1000: "low"}), SETTINGS, tmp_path / "runs")


def test_nothing_is_imported_twice_and_our_own_runs_not_at_all(tmp_path: Path) -> None:
    folder = published(tmp_path / "run", {1000: 5.0})
    directory = import_run(folder, SETTINGS, tmp_path / "runs")
    with pytest.raises(UsageError, match="has been imported"):
        import_run(folder, SETTINGS, tmp_path / "runs")
    with pytest.raises(UsageError, match="a run of this program already"):
        import_run(directory, SETTINGS, tmp_path / "runs")


def test_the_verb_imports_folders_and_says_where_they_are(tmp_path: Path, capsys: Any) -> None:
    folder = published(tmp_path / "GPT-06_baseline", {1000: 5.0})
    argv = ["import-run", str(folder), "--learning-rate", "3e-4", "--out", str(tmp_path / "runs")]
    assert dispatch([*argv, "--learning-rate", "0"]) == 2
    assert "learning_rate: Input should be greater than 0" in capsys.readouterr().err
    assert dispatch(argv) == 0
    assert "GPT-06_baseline" in capsys.readouterr().out
