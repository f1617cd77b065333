"""The committed results: every figure in their reports is given again by the committed archives."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from urllib.parse import unquote

import pytest

from oelm.record.archive import ARCHIVE, open_archives, read_index
from oelm.record.folder import find_records, read_study, study_folders
from oelm.report.wording import Language
from oelm.report.write import shared_name, write_shared, write_shared_final

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
STUDIES = list(study_folders(RESULTS))
MOST_FILES, MOST_BYTES = 8, 400_000
"""Of one study (bytes: on average): declaration, registration, prediction, archive, and two reports with figures."""


def _report(folder: Path, lang: Language) -> Path:
    return folder / shared_name("report.md", lang)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed results without their figures: what is rendered into it leaves docs/results as it is."""
    without = shutil.ignore_patterns("*.png", "report", "report-zh")
    return Path(shutil.copytree(RESULTS, tmp_path_factory.mktemp("copy") / RESULTS.name, ignore=without))


@pytest.mark.parametrize("lang", get_args(Language))
@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_a_committed_report_says_what_its_archive_says(folder: Path, lang: Language, copied: Path) -> None:
    committed = _report(folder, lang)
    if not committed.exists():
        pytest.skip(f"{folder.name} is committed without a report: it is not finished and is to be continued")
    own = copied / folder.name
    _report(own, lang).unlink()
    write_shared(read_study(own), own, lang)
    assert _report(own, lang).read_text() == committed.read_text()
    assert {path.name for path in own.glob("*.png")} <= {path.name for path in folder.glob("*.png")}


@pytest.mark.parametrize("lang", get_args(Language))
def test_the_committed_final_report_says_what_the_studies_say(lang: Language, copied: Path) -> None:
    _report(copied, lang).unlink()
    write_shared_final(copied, lang)
    assert _report(copied, lang).read_text() == _report(RESULTS, lang).read_text()


def test_bounds_of_the_ledger_stand_in_the_order_of_the_number_line() -> None:
    bounds = re.findall(r"\(([-+][\d.]+) to ([-+][\d.]+) (?:%|points)\)", _report(RESULTS, "en").read_text())
    assert bounds
    assert all(float(low) <= float(high) for low, high in bounds)


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_committed_records_are_whole_and_come_from_a_clean_tree(folder: Path) -> None:
    with open_archives(folder) as root:
        found, bad = find_records(root)
        assert bad == []
        assert {record.status for _, record in found} <= {"complete", "failed"}
        assert not any(record.environment.dirty for _, record in found)
        assert not list(root.rglob("*.safetensors"))


def test_the_committed_results_stay_small_and_no_file_is_stored_twice() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file() and not _is_rendered(path)]
    of_studies = Counter(path.parent for path in files if path.parent in STUDIES)
    assert max(of_studies.values()) <= MOST_FILES
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES * len(STUDIES)
    stored = [_stored(folder) for folder in STUDIES]
    assert sum(map(len, stored)) == len(set().union(*stored))


def _is_rendered(path: Path) -> bool:
    """Whether a file is a page that git ignores."""
    return bool({"report", "report-zh"} & set(path.relative_to(RESULTS).parts))


def _stored(folder: Path) -> set[tuple[str, str]]:
    """Return what a study's archive stores itself, by name and sha256."""
    return {(entry.name, entry.sha256) for entry in read_index(folder / ARCHIVE).files if entry.stored_in is None}


def _links(path: Path) -> Iterator[str]:
    for href in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not re.match(r"[a-z]+:", href):
            yield unquote(href)


@pytest.mark.parametrize(
    "path",
    [*RESULTS.glob("*.md"), *RESULTS.glob("*/*.md"), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_link_to_a_result_leads_to_a_file_and_to_an_anchor_in_it(path: Path) -> None:
    for href in _links(path):
        name, _, anchor = href.partition("#")
        target = (path.parent / name).resolve() if name else path
        if target.is_relative_to(RESULTS):
            assert target.exists(), href
            assert not anchor or f'id="{anchor}"' in target.read_text(), href
