from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from oelm import files
from oelm.errors import BadRecord, UsageError
from oelm.files import parse_checked, write_atomically
from oelm.record.folder import (
    METRICS,
    RECORD,
    STUDY,
    find_records,
    read_metrics,
    read_record,
    read_study,
    run_directory,
    study_folders,
    write_record,
    write_study,
)
from oelm.record.record import SCHEMA, MetricRecord
from oelm.spec.study import Listing, Study


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_write_that_breaks_midway_leaves_the_old_content_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(files.os if moment == "fsync" else Path, moment, fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_is_readable_by_colleagues_and_its_folder_is_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b", b"\x00")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o644


def test_a_record_comes_back_as_it_was_written(tmp_path: Path, study: Any, make_record: Any) -> None:
    record = make_record(study.runs()[1], loss=math.nan)
    write_record(tmp_path, record)
    assert repr(read_record(tmp_path)) == repr(record)


def spoiled(directory: Path, make_record: Any, study: Any, **fields: Any) -> None:
    write_record(directory, make_record(study.runs()[0]))
    plain = parse_checked((directory / RECORD).read_bytes())
    (directory / RECORD).write_text(json.dumps({**plain, **fields}))


def test_a_record_of_a_later_version_is_refused_in_words(tmp_path: Path, study: Any, make_record: Any) -> None:
    spoiled(tmp_path, make_record, study, schema_version=SCHEMA + 1, status="a status invented later")
    with pytest.raises(BadRecord, match=rf"version {SCHEMA + 1}.*knows up to {SCHEMA}.*Update oelm"):
        read_record(tmp_path)


def test_a_record_with_a_wrong_field_is_refused_by_the_fields_name(
    tmp_path: Path, study: Any, make_record: Any
) -> None:
    spoiled(tmp_path, make_record, study, step="many")
    with pytest.raises(BadRecord, match="step: Input should be a valid integer"):
        read_record(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"schema_version": 1, "fing', b"[]", b"3", b"\xff\xfe{}"])
def test_a_truncated_or_foreign_record_is_told_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RECORD).write_bytes(content)
    with pytest.raises(BadRecord, match=str(tmp_path)):
        read_record(tmp_path)


def test_a_folder_without_a_record_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="no run has started there"):
        read_record(tmp_path)


def test_a_search_returns_what_it_cannot_read_too(tmp_path: Path, study: Any, make_record: Any) -> None:
    first, second = study.runs()[:2]
    for run in (first, second):
        write_record(run_directory(tmp_path / "deep", run), make_record(run))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / RECORD).write_text("{")
    (tmp_path / "folder" / RECORD).mkdir(parents=True)
    found, bad = find_records(tmp_path)
    assert [record.spec.arm for _, record in found] == [first.arm, second.arm]
    assert len(bad) == 2


def test_a_label_cannot_lead_out_of_the_root(study: Any) -> None:
    run = study.runs()[0].model_copy(update={"label": "../../etc/a:b"})
    assert run_directory(Path("/runs"), run).parent == Path("/runs")


def metric(step: int, loss: float) -> str:
    return MetricRecord(kind="val", step=step, loss=loss, seconds=1.0).model_dump_json()


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text(f"{metric(1, 2.0)}\n{metric(2, 1.5)}\n{metric(3, 1.0)[:20]}")
    assert [point.step for point in read_metrics(tmp_path)] == [1, 2]


@pytest.mark.parametrize("torn", ['{"kind": "va', "", "\udcff"])
def test_a_torn_line_in_the_middle_is_refused_by_its_number(tmp_path: Path, torn: str) -> None:
    text = f"{metric(1, 2.0)}\n{torn}\n{metric(3, 1.0)}\n"
    (tmp_path / METRICS).write_bytes(os.fsencode(text))
    with pytest.raises(BadRecord, match="line 2"):
        read_metrics(tmp_path)


def test_a_curve_that_cannot_be_opened_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / METRICS).mkdir()
    with pytest.raises(BadRecord, match="cannot be read"):
        read_metrics(tmp_path)


def test_a_diverged_curve_is_read_as_it_was(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text(f"{metric(1, math.nan)}\n{metric(2, math.inf)}\n")
    assert [repr(point.loss) for point in read_metrics(tmp_path)] == ["nan", "inf"]


def test_a_run_without_a_curve_has_an_empty_one(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


def test_a_study_comes_back_from_among_its_runs(study: Study, tmp_path: Path) -> None:
    tuned = study.model_copy(update={"axes": {"model.num_layers": (1, 2)}})
    listing = Listing(name="l", question="?", listed=(study.base.model_copy(update={"label": "one"}),))
    for number, each in enumerate((study, tuned, listing)):
        write_study(tmp_path / str(number), each)
        written = (tmp_path / str(number) / STUDY).stat().st_mtime_ns
        assert read_study(tmp_path / str(number)) == each
        write_study(tmp_path / str(number), each)
        assert (tmp_path / str(number) / STUDY).stat().st_mtime_ns == written  # whoever watches sees no change
    assert study_folders(tmp_path) == [tmp_path / "0", tmp_path / "1", tmp_path / "2"]


def test_a_folder_without_a_study_or_with_a_torn_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no study\.json"):
        read_study(tmp_path)
    for content in (b"{", b"[]", b'{"name": 1}', b"\xff\xfe", b"7"):
        (tmp_path / STUDY).write_bytes(content)
        with pytest.raises(BadRecord, match="does not hold a study"):
            read_study(tmp_path)
