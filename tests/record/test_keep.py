from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.errors import UsageError
from oelm.record.folder import find_records, read_record, read_study
from oelm.record.keep import keep
from oelm.spec.study import Study


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


@pytest.mark.parametrize("inside", ["", "kept"])
def test_runs_are_not_kept_among_themselves(study: Study, write_run: Any, tmp_path: Path, inside: str) -> None:
    write_run(study.runs()[0])
    root = tmp_path / "runs"
    with pytest.raises(UsageError, match="Give one outside"):
        keep(study, root, find_records(root)[0], root / ".." / "runs" / inside)
