from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from oelm.cli import dispatch
from oelm.record.folder import find_records, write_study
from oelm.record.stages import index_by_declaration, stage_of
from oelm.spec.study import Study

path = Path(__file__).parents[1] / "published" / "published_records.py"
loaded = importlib.util.spec_from_file_location("published_records", path)
assert loaded is not None
assert loaded.loader is not None
published_records = importlib.util.module_from_spec(loaded)
sys.modules["published_records"] = published_records
loaded.loader.exec_module(published_records)


def called(capsys: Any, *argv: Any) -> tuple[int, str, str]:
    code = dispatch(["compare", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_published_runs_are_refused_and_the_learning_rate_is_named(
    tmp_path: Path, make_record: Any, capsys: Any
) -> None:
    published_records.write_published(tmp_path, make_record)
    code, _, err = called(capsys, tmp_path)
    assert code == 2
    assert "IncomparableRuns" in err
    assert "train.learning_rate (0.001, 0.0003)" in err


def test_forced_they_give_the_exact_differences_and_every_doubt(tmp_path: Path, make_record: Any, capsys: Any) -> None:
    published_records.write_published(tmp_path, make_record)
    code, out, _ = called(capsys, tmp_path, "--force", "--json")
    assert code == 0
    found = {item["study"]: item for item in json.loads(out)["comparisons"]}
    differences = {
        (corpus, arm["arm"]): round(arm["difference"]["mean"], 1)
        for corpus, item in found.items()
        for arm in item["arms"]
        if arm["difference"]
    }
    assert differences["tinystories", "oelm-freeze"] == 9.8
    assert differences["tinystories", "oelm-random"] == 16.5
    assert differences["openwebtext", "oelm-freeze"] == 14.9
    assert differences["wikitext-103", "oelm-freeze"] == 15.5
    assert differences["sst2", "oelm-freeze"] == 1.8
    steps = {(step["from"], step["to"]): step for step in found["tinystories"]["steps"]}
    assert round(steps["oelm-random", "oelm-freeze"]["difference"]["mean"], 1) == -5.8
    notes = "\n".join(note for item in found.values() for note in item["notes"])
    for words in ("16.4 %", "6.0 %", "one seed", "57 % less time", "train.learning_rate"):
        assert words in notes
    assert any(saving["unexplained"] for saving in found["xnli"]["savings"])


def test_a_person_reads_the_same_in_a_table(tmp_path: Path, make_record: Any, capsys: Any) -> None:
    published_records.write_published(tmp_path, make_record)
    _, out, _ = called(capsys, tmp_path, "--force")
    for words in ("+9.8 %", "+16.5 %", "-5.8 %", "+14.9 %", "+15.5 %", "one seed", "57 % less time"):
        assert words in out


def test_a_study_and_single_runs_can_be_compared(study: Study, write_run: Any, tmp_path: Path, capsys: Any) -> None:
    directories = [write_run(run, 1.4 + 0.1 * (run.arm != "baseline")) for run in study.runs()]
    code, out, _ = called(capsys, *directories[:2])
    assert code == 0
    assert "oelm-freeze" in out
    declared = tmp_path / "study.py"
    declared.write_text(
        f"from oelm.spec.study import Study\nstudy = Study.model_validate_json({study.model_dump_json()!r})\n"
    )
    code, out, _ = called(capsys, declared, "--runs", tmp_path / "runs", "--json")
    assert code == 0
    (comparison,) = json.loads(out)["comparisons"]
    assert comparison["arms"][1]["seeds"] == [0, 1, 2]


def test_the_folder_of_a_tuned_study_is_compared_as_the_study_declares(
    tuned_study: Any, write_run: Any, tmp_path: Path, capsys: Any
) -> None:
    study = tuned_study()
    for run in stage_of(study, {}).tune:
        write_run(run, 1.5 + abs(run.train.learning_rate - 2e-3))
    found, _ = find_records(tmp_path / "runs")
    for run in stage_of(study, index_by_declaration(record for _, record in found)).confirm:
        write_run(run, 1.4 + 0.1 * (run.arm != "baseline") + 0.001 * run.seed * len(run.arm))
    code, _, err = called(capsys, tmp_path / "runs")
    assert (code, "train.learning_rate" in err) == (2, True)
    write_study(tmp_path / "runs", study)
    code, out, _ = called(capsys, tmp_path / "runs", "--json")
    assert code == 0
    (comparison,) = json.loads(out)["comparisons"]
    assert (comparison["study"], comparison["stage"], comparison["unfair"]) == ("tuned", "confirm", [])
    assert [arm["seeds"] for arm in comparison["arms"]] == [[0, 1, 2], [0, 1, 2]]


def test_bad_requests_are_refused_with_the_reason(tmp_path: Path, study: Study, write_run: Any, capsys: Any) -> None:
    code, _, err = called(capsys, tmp_path / "nowhere")
    assert (code, "no such folder" in err) == (2, True)
    directory = write_run(study.runs()[0])
    code, _, err = called(capsys, directory)
    assert (code, "only arm on data.corpus" in err) == (2, True)
    (directory / "record.json").write_text('{"schema_version": 99}')
    code, _, err = called(capsys, directory)
    assert (code, "schema version 99" in err) == (1, True)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_run_without_a_number_is_a_gap_with_a_name(
    study: Study, write_run: Any, tmp_path: Path, capsys: Any, loss: float
) -> None:
    for run in study.runs():
        write_run(run, loss if run.seed == 1 and run.arm != "baseline" else 1.4)
    code, out, _ = called(capsys, tmp_path / "runs")
    assert code == 0
    assert "no figure: oelm-freeze with seed 1 (diverged)" in out


def test_a_screen_is_shown_as_it_ranks(tuned_study: Any, write_run: Any, tmp_path: Path, capsys: Any) -> None:
    study = tuned_study(seeds=())
    for run in stage_of(study, {}).tune:
        write_run(run, 1.5 + 0.1 * (run.arm != "baseline"))
    write_study(tmp_path / "runs", study)
    code, out, _ = called(capsys, tmp_path / "runs")
    assert code == 0
    assert "1.5100" in out
    assert "+10.5 %" in out, "the distance of the best settings"


def test_another_torch_another_processor_and_uncommitted_code_are_mentioned(
    tmp_path: Path, study: Study, write_run: Any, make_record: Any, capsys: Any
) -> None:
    first, *others = study.runs()
    environment = make_record(first).environment
    changed = {"torch": "2.14.0", "device": "Another processor", "dirty": True}
    write_run(first, environment=environment.model_copy(update=changed))
    for run in others:
        write_run(run)
    write_study(tmp_path / "runs", study)
    _, out, _ = called(capsys, tmp_path / "runs")
    said = " ".join(out.split())
    assert "2 versions of torch (2.13.0, 2.14.0)" in said
    assert "2 kinds of CPU or GPU (A processor, Another processor)" in said
    assert "1 of 6 runs ran code with uncommitted changes" in said
