"""`oelm archive`, `unpack` and `show`, and what the other verbs make of an archived study."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from oelm.cli import dispatch
from oelm.record.archive import ARCHIVE, read_files, read_index
from oelm.record.folder import find_records, read_study, write_study
from oelm.record.record import RunRecord
from oelm.report.write import write_shared, write_shared_final
from oelm.spec.study import Study


@pytest.fixture
def runs(study: Study, write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a study whose last run diverged, which no report can give a figure for."""
    monkeypatch.chdir(tmp_path)
    declared = study.runs()
    for run in declared[:-1]:
        write_run(run, 1.5 + run.seed / 100 + 0.1 * bool(run.method.freeze.roles))
    failed = {"status": "failed", "failure": "diverged", "error": "Diverged: the loss ran away", "result": None}
    directory = write_run(declared[-1], **failed)
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "weights.safetensors").write_bytes(b"0" * 100)
    write_study(tmp_path / "runs", study)
    return tmp_path / "runs"


@pytest.fixture
def archived(runs: Path, tmp_path: Path) -> Path:
    assert dispatch(["archive", str(runs), "--out", "docs/results/tiny"]) == 0
    return tmp_path / "docs" / "results" / "tiny"


def test_an_archive_holds_the_light_files_of_every_run_that_has_ended(
    runs: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    archived = Path("docs/results/tiny")
    assert dispatch(["archive", str(runs), "--out", str(archived)]) == 0
    assert "6 runs, 18 files" in capsys.readouterr().out
    assert {path.name for path in archived.iterdir()} == {ARCHIVE, "study.json"}
    assert read_study(archived) == study
    assert {Path(name).name for name in read_files(archived / ARCHIVE)} == {
        "record.json", "metrics.jsonl", "samples.txt",
    }  # fmt: skip


def test_an_unfinished_study_is_archived_and_continues_elsewhere(
    runs: Path, study: Study, write_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(study.runs()[0], status="interrupted", result=None)
    assert dispatch(["archive", str(runs), "--out", "docs/results/tiny"]) == 0
    assert "1 runs have not ended and are left out" in capsys.readouterr().out
    assert dispatch(["unpack", "docs/results/tiny", "--out", "elsewhere"]) == 0
    assert "5 runs unpacked" in capsys.readouterr().out
    found, bad = find_records(Path("elsewhere/tiny"))
    assert bad == []
    assert {path.name for path, _ in found} == {
        path.name for path, record in find_records(runs)[0] if record.status != "interrupted"
    }  # fmt: skip
    assert read_study(Path("elsewhere/tiny")) == study


def test_a_study_that_shares_runs_is_archived_without_storing_them_again(
    archived: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["archive", str(runs), "--out", "docs/results/again"]) == 0
    assert "18 of them stored by tiny" in capsys.readouterr().out
    assert read_files(archived.parent / "again" / ARCHIVE) == read_files(archived / ARCHIVE)
    assert dispatch(["archive", str(runs), "--out", "docs/results/again", "--alone"]) == 0
    assert not any(entry.stored_in for entry in read_index(archived.parent / "again" / ARCHIVE).files)


def test_the_report_of_an_archive_is_that_of_its_folder_and_its_links_lead_to_records(
    archived: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["report", str(runs)]) == 0
    assert dispatch(["report", str(archived / ARCHIVE)]) == 0
    made = archived / "report"
    names = {path.name for path in (runs / "report").iterdir()}
    assert names | {".runs"} == {path.name for path in made.iterdir()}
    for name in names:
        same = (
            (made / name).read_bytes().replace(b".runs/tiny/", b"../").replace(b"records in tiny", b"records in runs")
        )
        assert same == (runs / "report" / name).read_bytes(), name
    links = set(re.findall(r'href="([^"#]+record\.json)"', (made / "report.html").read_text()))
    assert len(links) == 6
    assert all(json.loads((made / link).read_text())["spec"] for link in links)
    capsys.readouterr()
    assert dispatch(["compare", str(archived), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["comparisons"][0]["arms"][0]["records"][0].startswith(str(archived))


def test_the_committed_report_leads_from_every_run_to_oelm_show(
    archived: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["report", str(archived), "--markdown"]) == 0
    assert dispatch(["report", str(archived), "--markdown", "--lang", "zh"]) == 0
    assert {path.name for path in archived.iterdir()} == {
        ARCHIVE, "study.json", "report.md", "convergence.png", "report.zh.md", "convergence.zh.png",
    }  # fmt: skip
    text = (archived / "report.md").read_text()
    assert "/record.json" not in text
    assert "](convergence.png)" in text
    assert "](convergence.zh.png)" in (archived / "report.zh.md").read_text()
    shown = re.findall(r"oelm show (\w{16})", text)
    anchors = re.findall(r'<a id="run-(\w{16})">', text)
    assert len(anchors) == 5
    assert set(shown) - set(anchors), "the run that diverged has no figure, and is to be shown all the same"
    for run in {*shown, *anchors}:
        capsys.readouterr()
        assert dispatch(["show", run]) == 0
        assert f"_{run}\n" in capsys.readouterr().out


@pytest.mark.programs
def test_the_committed_final_report_leads_into_the_reports_of_the_studies(
    archived: Path, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The claims are what links to single runs; a folder without evidence for any does not show them.
    monkeypatch.setattr("oelm.report.final._bears_on_claims", lambda *_: True)
    write_shared(study, archived, "en")
    text = write_shared_final(archived.parent, "en").read_text()
    assert "[tiny](tiny/report.md): What does freezing cost?" in text
    assert "/record.json" not in text
    anchors = re.findall(r"\(tiny/report\.md#(run-\w{16})\)", text)
    assert anchors
    assert all(f'id="{anchor}"' in (archived / "report.md").read_text() for anchor in anchors)
    assert dispatch(["report", str(archived.parent), "--all"]) == 0
    page = (archived.parent / "report" / "report.html").read_text()
    assert '"../tiny/report.md"' in page
    links = set(re.findall(r'href="([^"#]+record\.json)"', page))
    assert links
    assert all((archived.parent / "report" / link).is_file() for link in links)


def test_a_record_is_shown_from_a_folder_and_from_an_archive(
    archived: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, record = find_records(runs)[0][0]
    said = []
    for arguments in (["--runs", "docs"], ["--runs", "runs"]):
        capsys.readouterr()
        assert dispatch(["show", record.fingerprint, *arguments]) == 0
        said.append(capsys.readouterr().out.split("\n\n")[1])
        assert dispatch(["show", path.name, "--json", *arguments]) == 0
        assert RunRecord.model_validate_json(capsys.readouterr().out) == record
    assert said[0] == said[1]
    assert f"status: {record.status}" in said[0]
    assert record.result
    assert f"  test_loss: {record.result.test_loss}" in said[0]
    assert dispatch(["show", str(path), "--json"]) == 0


def test_a_name_that_matches_several_runs_is_refused(archived: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["show", "baseline"]) == 2
    assert "matches 3 runs in runs and docs/results" in capsys.readouterr().err
    assert dispatch(["show", "nothing-like-it"]) == 2
    assert "matches no run" in capsys.readouterr().err


def test_a_damaged_archive_is_an_error_and_not_an_empty_report(
    archived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (archived / ARCHIVE).read_bytes()
    (archived / ARCHIVE).write_bytes(whole[:-200])
    for command in (["report", str(archived)], ["compare", str(archived)], ["unpack", str(archived)]):
        assert dispatch(command) == 1
        assert re.search(r"runs\.tar\.xz (is damaged at|ends before) \S+record\.json", capsys.readouterr().err)
    assert dispatch(["unpack", "runs"]) == 2
