from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import find_runs, gather
from oelm.cli import dispatch
from oelm.errors import BadRecord, UnknownName, UsageError
from oelm.published.runs import Settings, import_run
from oelm.record.folder import read_metrics, read_record
from oelm.report.wording import IMPORTED, marks

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
    directory = import_run(folder, SETTINGS, tmp_path / "runs").directory
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
    directory = import_run(folder, SETTINGS, tmp_path / "runs").directory
    assert [point.loss for point in read_metrics(directory)] == [4.0]


def test_without_a_log_the_timing_tells_the_steps_and_a_diverged_run_keeps_its_nan(tmp_path: Path) -> None:
    bare = published(tmp_path / "bare")
    (bare / "training.log").unlink()
    done = import_run(bare, SETTINGS, tmp_path / "runs")
    assert read_record(done.directory).step == 200000
    assert done.assumed[-1] == "best step 200000, because no log has a finite validation loss"
    lost = published(tmp_path / "lost", {1000: "nan"}, best_val_loss=math.nan)
    record = read_record(import_run(lost, SETTINGS, tmp_path / "runs").directory)
    assert record.result is not None
    assert math.isnan(record.result.val_loss)


def test_bad_folders_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no timing_stats\.json"):
        import_run(tmp_path, SETTINGS, tmp_path / "runs")
    folder = published(tmp_path / "torn")
    (folder / "timing_stats.json").write_text('{"model_type": ')
    with pytest.raises(BadRecord, match="not valid JSON"):
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
    directory = import_run(folder, SETTINGS, tmp_path / "runs").directory
    with pytest.raises(UsageError, match="has been imported"):
        import_run(folder, SETTINGS, tmp_path / "runs")
    with pytest.raises(UsageError, match="already a run of this program"):
        import_run(directory, SETTINGS, tmp_path / "runs")


def test_the_verb_imports_folders_and_says_where_they_are(tmp_path: Path, capsys: Any) -> None:
    folder = published(tmp_path / "GPT-06_baseline", {1000: 5.0})
    argv = ["import-run", str(folder), "--learning-rate", "3e-4", "--out", str(tmp_path / "runs")]
    assert dispatch([*argv, "--learning-rate", "0"]) == 2
    assert "--learning-rate must be greater than 0, found 0.0" in capsys.readouterr().err
    assert dispatch(argv) == 0
    assert "GPT-06_baseline" in capsys.readouterr().out


def imported(folder: Path, out: Path, **given: Any) -> tuple[Any, tuple[str, ...]]:
    done = import_run(folder, Settings(**given), out)
    return read_record(done.directory), done.assumed


def test_a_run_too_short_to_be_timed_is_imported(tmp_path: Path) -> None:
    """The public program writes this form after up to 101 steps."""
    folder = published(tmp_path / "short", {40: 5.5, 80: 5.25})
    short = {"model_type": "oelm_v2", "dataset": "tinystories", "total_wall_time": 10.5, "note": "No timing data"}
    (folder / "timing_stats.json").write_text(json.dumps(short))
    record, assumed = imported(folder, tmp_path / "runs", learning_rate=1e-3)
    assert (record.status, record.step, record.result.val_loss) == ("complete", 80, 5.25)
    assert any("max_steps 80" in setting for setting in assumed)


def test_an_excerpt_printed_in_a_report_is_imported_and_its_gaps_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "GPT-02"
    folder.mkdir()
    excerpt = {"model_type": "oelm_v2", "init_method": "orthogonal", "final_perplexity": 4.685668571064951,
               "total_wall_time": 16366.33, "mean_step_time": 0.083535}  # fmt: skip
    (folder / "timing_stats.json").write_text(json.dumps(excerpt))
    record, assumed = imported(folder, tmp_path / "runs", learning_rate=1e-3, dataset="tinystories", steps=100_000)
    assert math.exp(record.result.val_loss) == pytest.approx(4.685668571064951)
    assert record.spec.data.corpus == "tinystories"
    assert "model medium-512" in assumed
    assert "assumed: model medium-512" in record.environment.command
    assert record.result.tokens_per_second == record.result.train_tokens == 0


def test_a_number_of_steps_that_no_file_has_is_asked_for(tmp_path: Path) -> None:
    """An excerpt was once imported as a run of one step, said to be the last that its files mention."""
    folder = tmp_path / "GPT-02"
    folder.mkdir()
    excerpt = {"model_type": "oelm_v2", "final_perplexity": 4.69, "total_wall_time": 16366.33, "mean_step_time": 0.08}
    (folder / "timing_stats.json").write_text(json.dumps(excerpt))
    with pytest.raises(UsageError, match="number of steps is in none of the files.*--steps"):
        imported(folder, tmp_path / "runs", learning_rate=1e-3)


def test_sizes_and_settings_come_from_the_checkpoint_and_nothing_is_then_assumed(tmp_path: Path) -> None:
    flags = {"vocab_size": 300, "seq_len": 32, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64,
             "dropout": 0.1, "batch_size": 4, "max_lr": 5e-4, "max_steps": 80, "warmup_steps": 7, "val_interval": 40,
             "seed": 5, "min_lr": 1e-5, "beta1": 0.85, "beta2": 0.95, "weight_decay": 0.1, "grad_clip": 0.5,
             "use_amp": True}  # fmt: skip
    folder = published(tmp_path / "tiny", {40: 5.5, 80: 5.25}, best_val_loss=5.25)
    record, assumed = imported(folder, tmp_path / "runs", flags=flags)
    assert assumed == ()
    assert (record.spec.model.model_dim, record.spec.train.learning_rate, record.spec.seed) == (32, 5e-4, 5)
    train = record.spec.train
    assert (train.min_learning_rate, train.betas, train.weight_decay, train.grad_clip, train.precision) == (
        1e-5, (0.85, 0.95), 0.1, 0.5, "fp16",
    )  # fmt: skip
    assert record.result.train_tokens == 4 * 32 * 80
    assert "assumed" not in record.environment.command


def test_a_learning_rate_that_no_file_has_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--learning-rate"):
        imported(published(tmp_path / "run", {1000: 5.0}), tmp_path / "runs")


def published_bert(folder: Path) -> Path:
    folder.mkdir()
    timing = {"mode": "oelm", "total_wall_time": 9000.0, "pure_training_time": 5138.0, "total_validation_time": 100.0,
              "num_steps_measured": 900, "mean_time_per_step": 0.069, "std_time_per_step": 0.01, "min_time": 0.06,
              "max_time": 0.08, "median_time": 0.069, "p95_time": 0.07, "p99_time": 0.08, "step_times": [0.069],
              "validation_times": [1.0]}  # fmt: skip
    (folder / "timing_stats.json").write_text(json.dumps(timing))
    lines = [
        "INFO - Step 500: Running validation...",
        "INFO - Validation - Loss: 0.6000, Accuracy: 0.7600, F1: 0.8",
        "INFO - Step 1000: Running validation...",
        "INFO - Validation - Loss: 0.7000, Accuracy: 0.7779, F1: 0.8",
    ]
    (folder / "training.log").write_text("\n".join(lines))
    return folder


BERT_FLAGS: dict[str, Any] = {
    "init_method": "orthogonal", "gradient_accumulation_steps": 2, "batch_size": 8, "lr": 2e-4, "dataset": "xnli",
    "model_name": "bert-base-uncased", "max_length": 128, "warmup_ratio": 0.1, "validate_steps": 500, "seed": 42,
    "max_steps": -1, "weight_decay": 0.05, "max_grad_norm": -1.0,
}  # fmt: skip


def test_a_bert_run_is_imported_with_its_accuracies(tmp_path: Path) -> None:
    folder = published_bert(tmp_path / "xnli_oelm")
    record, assumed = imported(folder, tmp_path / "runs", flags=BERT_FLAGS)
    assert (record.spec.arm, record.spec.train.batch_size, record.spec.train.accumulation) == (
        "oelm-from-current",
        16,
        2,
    )
    assert (record.result.val_accuracy, record.result.best_step, record.seconds.train) == (0.7779, 1000, 5138.0)
    assert assumed == ("max_steps 1000, the last step that the files mention",)
    train = record.spec.train
    assert (train.learning_rate, train.weight_decay, train.grad_clip, train.schedule_over) == (2e-4, 0.05, 0.0, "parts")


def test_a_run_that_was_started_again_counts_the_log_of_its_second_try(tmp_path: Path) -> None:
    folder = published_bert(tmp_path / "oelm_freeze")
    lines = ["INFO - Step 500: Running validation...", "INFO - Validation - Loss: 0.5000, Accuracy: 0.8000, F1: 0.8"]
    (folder / "training_restart.log").write_text("\n".join(lines))
    record, _ = imported(folder, tmp_path / "runs", flags=BERT_FLAGS)
    assert (record.result.val_accuracy, record.result.best_step) == (0.8, 500)


def test_a_timing_file_alone_is_imported_under_its_name_and_one_in_its_folder_with_the_log(
    tmp_path: Path, capsys: Any
) -> None:
    folder = published_bert(tmp_path / "oelm_run1")
    alone = tmp_path / "oelm_run1_20260207.json"
    alone.write_bytes((folder / "timing_stats.json").read_bytes())
    given = ["--learning-rate", "1e-4", "--dataset", "sst2", "--out", str(tmp_path / "runs")]
    assert dispatch(["import-run", str(alone), str(folder / "timing_stats.json"), *given]) == 0
    first, second = (read_record(Path(line)) for line in capsys.readouterr().out.splitlines() if line[0] != " ")
    assert (first.spec.label, first.step, first.result) == ("oelm_run1_20260207", 1000, None)
    assert second.spec.label == "oelm_run1"
    assert second.result is not None
    assert second.result.val_accuracy == 0.7779


def test_a_bert_run_without_lr_has_the_rate_that_the_program_chose_and_max_steps_set_its_schedule(
    tmp_path: Path,
) -> None:
    folder = published_bert(tmp_path / "xnli_oelm")
    record, assumed = imported(folder, tmp_path / "runs", flags=BERT_FLAGS | {"lr": None, "max_steps": 1000})
    assert assumed == ()
    assert (record.spec.train.learning_rate, record.spec.train.schedule_over) == (1e-4, "steps")
