from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.errors import BadRecord, UsageError
from oelm.record.keep import STUDY, keep, read_study, study_folders, without_paths, write_study
from oelm.record.store import find_records, read_record
from oelm.study import Listing, Study


def test_a_study_comes_back_from_among_its_runs(study: Study, tmp_path: Path) -> None:
    tuned = study.model_copy(update={"axes": {"model.num_layers": (1, 2)}})
    listing = Listing(name="l", question="?", listed=(study.base.model_copy(update={"label": "one"}),))
    for number, each in enumerate((study, tuned, listing)):
        write_study(tmp_path / str(number), each)
        assert read_study(tmp_path / str(number)) == each
    assert study_folders(tmp_path) == [tmp_path / "0", tmp_path / "1", tmp_path / "2"]


def test_a_folder_without_a_study_or_with_a_torn_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no study\.json"):
        read_study(tmp_path)
    for text in ("{", "[]", '{"name": 1}'):
        (tmp_path / STUDY).write_text(text)
        with pytest.raises(BadRecord, match="does not hold a study"):
            read_study(tmp_path)


def test_what_is_kept_is_light_and_names_no_path_of_this_machine(
    study: Study, make_record: Any, write_run: Any, tmp_path: Path
) -> None:
    run = study.runs()[0]
    here = run.model_copy(update={"data": run.data.model_copy(update={"directory": Path("/home/me/data")})})
    environment = make_record(run).environment.model_copy(
        update={"command": "/usr/bin/python3 -m oelm train /home/me/x.json"}
    )
    trace = 'Traceback:\n  File "/home/me/src/oelm/run.py", line 1\nRunFailed: no'
    directory = write_run(here, environment=environment, error=trace)
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "weights.safetensors").write_bytes(b"0" * 100)
    found, _ = find_records(tmp_path / "runs")
    assert keep(study, tmp_path / "runs", found, tmp_path / "kept") == 1
    kept = tmp_path / "kept" / directory.name
    assert {path.name for path in kept.iterdir()} == {"record.json", "metrics.jsonl", "samples.txt"}
    text = (kept / "record.json").read_text()
    assert "/home/me" not in text
    assert "/usr/bin" not in text
    assert "RunFailed: no" in text
    assert read_record(kept).fingerprint == read_record(directory).fingerprint
    assert read_study(tmp_path / "kept") == study


def test_relative_paths_stay(study: Study, make_record: Any) -> None:
    run = study.runs()[0]
    here = run.model_copy(update={"data": run.data.model_copy(update={"directory": Path("data/stories")})})
    assert without_paths(make_record(here)).spec.data.directory == Path("data/stories")
