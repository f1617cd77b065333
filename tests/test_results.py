"""The committed results: every figure in their reports is given again by the committed study and records."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import get_args

import pytest

from oelm.record.store import find_records, read_study, study_folders
from oelm.report.all_studies import write_final
from oelm.report.page import report_folder, write_report
from oelm.report.wording import Language

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
STUDIES = list(study_folders(RESULTS))


def _assert_same_texts(made: Path, committed: Path) -> None:
    for name in ("report.md", *(path.name for path in committed.glob("*.csv"))):
        assert (made / name).read_text() == (committed / name).read_text(), name


@pytest.mark.parametrize("lang", get_args(Language))
@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_a_committed_report_says_what_its_records_say(folder: Path, lang: Language, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("report*"))
    out = report_folder(copy, lang)
    write_report(read_study(copy), copy, out, lang)
    _assert_same_texts(out, report_folder(folder, lang))


@pytest.mark.parametrize("lang", get_args(Language))
def test_the_committed_final_report_says_what_the_studies_say(lang: Language, tmp_path: Path) -> None:
    copy = tmp_path / RESULTS.name
    for folder in STUDIES:
        shutil.copytree(folder, copy / folder.name)
    out = report_folder(copy, lang)
    write_final(copy, out, lang)
    _assert_same_texts(out, report_folder(RESULTS, lang))


def test_bounds_of_the_ledger_stand_in_the_order_of_the_number_line() -> None:
    text = (report_folder(RESULTS, "en") / "report.md").read_text()
    bounds = re.findall(r"\((\S+) (?:%|points) to (\S+) (?:%|points)\)", text)
    assert bounds
    assert all(float(low) <= float(high) for low, high in bounds)


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_committed_records_are_whole_and_come_from_a_clean_tree(folder: Path) -> None:
    found, bad = find_records(folder)
    assert bad == []
    assert {record.status for _, record in found} <= {"complete", "failed"}
    assert not any(record.environment.dirty for _, record in found)
    assert not list(folder.rglob("*.safetensors"))
