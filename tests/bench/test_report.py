"""The page of performance, from results that are given."""

import json

import pytest

from oelm.bench.report import ReportBench, bench_report
from oelm.cli import dispatch
from oelm.errors import BadRecord, UsageError

MACHINE = {
    "threads": 1,
    "environment": {
        "commit": "0123456789abcdef", "dirty": False, "device": "A processor (AVX-512)", "cores": 2, "torch": "2.13.0",
        "command": "oelm bench step",
    },
    "native_bf16": True,
    "date": "2026-01-02",
}  # fmt: skip
AGAINST = {"time": 1.234, "time_interval": [1.2, 1.3], "wall": 1.1, "memory": 0.5, "largest_loss_difference": 1e-5}
STEP = {
    "bench": "step", "size": "medium-512", "precision": "fp32", "batch": [2, 512],
    "against": {"transformers": AGAINST, "floor": {"time": 0.87, "time_interval": None, "wall": 0.9}}, **MACHINE,
}  # fmt: skip
COSTS = {
    "sizes": [1, 2, 4], "seconds": [1.0, 2.0, 4.0], "bytes": [2**20, 2**21, 2**22],
    "seconds_exponent": 1.5, "seconds_exponent_interval": [1.4, 1.6],
    "bytes_exponent": 0.75, "bytes_exponent_interval": [0.7, 0.8],
}  # fmt: skip
GROWTH = {"bench": "growth", "precision": "bf16", "factors": {"context": COSTS}, **MACHINE}
ARM = {"saving": 0.071, "saving_interval": [0.06, 0.08], "ceiling": 0.08, "ceiling_interval": None, "flop_share": 0.022}
METHODS = {
    "size": "medium-512", "batch": [1, 512], "reference": "baseline",
    "arms": {"baseline": {}, "oelm-freeze": ARM}, "threads": 1, "environment": MACHINE["environment"],
}  # fmt: skip
LOAD = {
    "bench": "load", "runs": 5000,
    "overview": {"runs": 5000, "first_runs": 50, "first_seconds": 1.04, "whole_seconds": 37.2, "later_seconds": 0.5,
                 "peak_bytes": 2**28},
    "report_all": {"seconds": 15.5, "peak_bytes": 2**28}, **MACHINE,
}  # fmt: skip


def rendered(tmp_path, **results):
    folder = tmp_path / "performance"
    folder.mkdir()
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps(result))
    assert dispatch(["bench", "report", "--results", str(folder), "--out", str(tmp_path)]) == 0
    return (tmp_path / "performance.md").read_text()


def test_every_result_is_a_row_with_its_machine(tmp_path):
    text = rendered(tmp_path, step=STEP, growth=GROWTH, methods=METHODS)
    assert "| medium-512, fp32 | 2 x 512 | transformers | 1.23 (1.20 to 1.30) | 1.10 | 0.50 | 1e-05 |" in text
    assert "| bare matrix products | 0.87 | 0.90 |  |  |" in text
    assert "| bf16 | context | 1 to 4 | 1.50 (1.40 to 1.60) | 0.75 (0.70 to 0.80) |" in text
    assert "| medium-512 | 1 x 512 | oelm-freeze | 7.1 % (6.0 to 8.0) | 8.0 % | 2.2 % |" in text
    assert text.count("0123456789 |") == 3
    assert "](performance/performance.svg)" in text
    assert (tmp_path / "performance/performance.svg").read_text().startswith("<?xml")


def test_the_load_of_many_runs_has_a_row_for_each_thing_that_people_wait_for(tmp_path):
    text = rendered(tmp_path, load=LOAD)
    assert "| results page, first 50 runs | 1.0 s | 256 MiB |" in text
    assert "| `oelm report --all` of 5,000 runs | 15.5 s | 256 MiB |" in text
    assert "| load | 2026-01-02 | 0123456789 |" in text


def test_a_result_that_was_not_measured_leaves_its_section_out(tmp_path):
    text = rendered(tmp_path, growth=GROWTH)
    assert "## Growth" in text
    assert "## The training step" not in text


def test_the_chart_is_the_same_bytes_every_time(tmp_path):
    rendered(tmp_path, step=STEP, growth=GROWTH)
    path = tmp_path / "performance/performance.svg"
    before = path.read_bytes()
    assert dispatch(["bench", "report", "--results", str(path.parent), "--out", str(tmp_path)]) == 0
    assert path.read_bytes() == before


def test_no_results_and_broken_ones_are_reported(tmp_path):
    with pytest.raises(UsageError, match="make bench"):
        bench_report(ReportBench(results=tmp_path, out=tmp_path))
    (tmp_path / "step-fp32.json").write_text('{"bench": "growth"}')
    with pytest.raises(BadRecord, match="step-fp32.json is not a result of `oelm bench step"):
        bench_report(ReportBench(results=tmp_path, out=tmp_path))
    (tmp_path / "step-fp32.json").write_text("{")
    with pytest.raises(BadRecord, match="step-fp32.json is not whole JSON"):
        bench_report(ReportBench(results=tmp_path, out=tmp_path))
