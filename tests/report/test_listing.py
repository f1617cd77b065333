from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from oelm.errors import UsageError
from oelm.published.claims import published
from oelm.report.write import write_report
from oelm.spec.study import Listing

path = Path(__file__).parents[1] / "published" / "published_records.py"
loaded = importlib.util.spec_from_file_location("published_records", path)
assert loaded is not None
assert loaded.loader is not None
published_records = importlib.util.module_from_spec(loaded)
sys.modules["published_records"] = published_records
loaded.loader.exec_module(published_records)


@pytest.fixture
def listing() -> Listing:
    runs = tuple(published_records.spec_of(item) for item in published().runs)
    return Listing(name="published", question="As published?", listed=runs)


def test_listed_runs_stand_beside_their_published_figures_and_unfair_ones_are_not_compared(
    listing: Listing, make_record: Any, tmp_path: Path
) -> None:
    published_records.write_published(tmp_path / "runs", make_record)
    written = write_report(listing, tmp_path / "runs", tmp_path / "out")
    assert written.comparisons == ()
    page, text = ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md"))
    for medium in (page, text):
        assert "14 of 14 listed runs are complete" in medium
        assert medium.count("not compared") == 6
        assert "train.learning\\_rate" in text
        assert "57 % saving" in medium
    assert "+16.5 %" in page
    table = next(item for item in written.document.tables if item.name == "published")
    assert len(table.lines) == 14
    assert [line.cells[-1] for line in table.lines] == ["+0.0 %"] * 7 + ["+0.00 points"] * 7


def test_runs_that_are_not_there_yet_are_listed_as_such(listing: Listing, make_record: Any, tmp_path: Path) -> None:
    published_records.write_published(tmp_path / "runs", make_record, ids="GPT-0")
    written = write_report(listing, tmp_path / "runs", tmp_path / "out", "zh")
    states = [line.cells[4] for line in written.document.tables[0].lines]
    assert states.count("尚未运行") == 7
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "record.json").write_text("{")
    write_report(listing, tmp_path / "runs", tmp_path / "out")
    assert "is not whole JSON" in (tmp_path / "out" / "report.md").read_text()


def test_a_missing_folder_is_refused(listing: Listing, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a folder"):
        write_report(listing, tmp_path / "nowhere", tmp_path / "out")


def test_a_record_of_other_numerics_is_none_of_the_listed_runs(
    listing: Listing, make_record: Any, tmp_path: Path
) -> None:
    def older(*run: Any, **fields: Any) -> Any:
        return make_record(*run, **fields, numerics=0)

    published_records.write_published(tmp_path / "runs", older)
    written = write_report(listing, tmp_path / "runs", tmp_path / "out")
    assert {line.cells[4] for line in written.document.tables[0].lines} == {"has not been run"}
