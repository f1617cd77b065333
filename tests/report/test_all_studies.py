from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from oelm.cli import dispatch
from oelm.errors import UsageError
from oelm.record.folder import write_study
from oelm.report.final import read_archive
from oelm.report.write import write_final
from oelm.spec.run import DataSpec
from oelm.spec.study import Study


@pytest.fixture
def archive(study: Study, write_run: Any, tmp_path: Path) -> Path:
    """A folder of two studies, one of them unfair, a loose run and a torn record."""
    root = tmp_path / "archive"
    for run in study.runs():
        write_run(
            run, 1.4 + 0.12 * (run.arm != "baseline") + 0.1 * run.seed + 0.0003 * run.seed * (run.arm != "baseline")
        )
    shutil.move(tmp_path / "runs", root / "tiny")
    write_study(root / "tiny", study)
    for run in study.runs():
        write_run(run, checksum="one" if run.arm == "baseline" else "two")
    shutil.move(tmp_path / "runs", root / "unfair")
    write_study(root / "unfair", study.model_copy(update={"name": "unfair"}))
    write_run(study.runs()[0])
    shutil.move(tmp_path / "runs", root / "loose")
    (root / "torn").mkdir()
    (root / "torn" / "record.json").write_text("{")
    return root


@pytest.mark.parametrize(("lang", "word"), [("en", "published"), ("zh", "论文")])
def test_the_final_report_has_everything_left_over_and_does_not_mention_the_published_study_without_evidence(
    archive: Path, tmp_path: Path, lang: Any, word: str
) -> None:
    document = write_final(archive, tmp_path / "out", lang)
    anchors = [section.anchor for section in document.sections]
    assert anchors == [
        "verdict", "cross", "studies", "project", "timeline", "files", "loose", "refused", "unreadable", "citation",
    ]  # fmt: skip
    text = (tmp_path / "out" / "report.md").read_text()
    assert word not in text
    for part in ("+12.8", "data.checksum", "is not whole JSON", "12"):
        assert part in text


@pytest.mark.parametrize(("lang", "words"), [("en", "not yet tested"), ("zh", "尚未检验")])
def test_a_folder_that_repeats_a_published_run_has_the_ledger(
    archive: Path, study: Study, write_run: Any, tmp_path: Path, lang: Any, words: str
) -> None:
    write_run(study.runs()[0].model_copy(update={"label": "GPT-01_baseline"}))
    shutil.move(tmp_path / "runs", archive / "published")
    document = write_final(archive, tmp_path / "out", lang)
    assert {"ledger", "rules", "contradictions"} <= {section.anchor for section in document.sections}
    assert words in (tmp_path / "out" / "report.md").read_text()


def test_probes_are_listed_among_the_studies_and_judged_with_none(
    archive: Path, study: Study, write_run: Any, tmp_path: Path
) -> None:
    base = study.base.model_copy(update={"data": DataSpec(corpus="copy:16")})
    probing = study.model_copy(update={"name": "probing", "base": base})
    for run in probing.runs():
        write_run(run)
    shutil.move(tmp_path / "runs", archive / "probing")
    write_study(archive / "probing", probing)
    found = read_archive(archive)
    assert "probing" in [each.name for _, each in found.studies]
    assert [comparison.study.name for _, comparison in found.comparisons] == ["tiny"]


def test_a_spoiled_bench_is_named_and_stops_nothing(archive: Path, tmp_path: Path) -> None:
    (archive / "performance").mkdir()
    (archive / "performance" / "methods-x.json").write_text("{}")
    write_final(archive, tmp_path / "out", "en")
    assert "methods-x.json is not a result of" in (tmp_path / "out" / "report.md").read_text()


def test_an_empty_folder_has_an_empty_report_and_a_missing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    document = write_final(tmp_path / "empty", tmp_path / "out", "en")
    assert "The folder empty has no study" in document.sections[0].paragraphs[0]
    with pytest.raises(UsageError, match="not a folder"):
        write_final(tmp_path / "nowhere", tmp_path / "out", "en")


def test_the_verb_writes_it_next_to_the_studies(archive: Path, capsys: Any) -> None:
    assert dispatch(["report", "--all", str(archive)]) == 0
    assert (archive / "report" / "report.html").exists()
    assert len(read_archive(archive).studies) == 2
