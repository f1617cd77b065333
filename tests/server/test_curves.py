from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.record.folder import METRICS, read_metrics
from oelm.record.record import MetricRecord
from oelm.server import app as module
from oelm.server.app import SHOWN_POINTS, MetricsCache, thin
from oelm.server.index import Folder


def line(step: int, loss: float = 1.0, kind: Any = "train") -> str:
    return MetricRecord(kind=kind, step=step, loss=loss, seconds=step / 10).model_dump_json(exclude_none=True) + "\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / METRICS).write_text("".join(line(step, 5 / step) for step in range(1, 11)) + line(10, 0.7, "val"))
    return tmp_path


def test_the_curve_is_what_the_store_reads(run: Path) -> None:
    answer = MetricsCache(Folder(run)).after(run)
    for kind in ("train", "val"):
        expected = [(point.step, point.loss, point.seconds) for point in read_metrics(run) if point.kind == kind]
        assert list(zip(*answer[kind].values(), strict=True)) == expected
    assert answer["whole"]
    assert not answer["more"]


def test_a_cursor_brings_only_what_is_new_and_the_file_is_not_read_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = MetricsCache(Folder(run))
    first = curves.after(run)
    taken: list[bytes] = []
    take = module.MetricsFile.take
    monkeypatch.setattr(module.MetricsFile, "take", lambda self, data: (taken.append(data), take(self, data))[1])
    with (run / METRICS).open("a") as file:
        file.write(line(11, 0.4) + line(12)[:20])
    second = curves.after(run, first["cursor"])
    assert second["train"] == {"step": [11], "loss": [0.4], "seconds": [1.1]}
    assert not second["whole"]
    assert len(b"".join(taken)) == len(line(11, 0.4)) + 20
    with (run / METRICS).open("a") as file:
        file.write(line(12)[20:])
    assert curves.after(run, second["cursor"])["train"]["step"] == [12]


def test_a_resumed_run_that_writes_its_curve_anew_is_sent_whole(run: Path) -> None:
    curves = MetricsCache(Folder(run))
    cursor = curves.after(run)["cursor"]
    # Longer than before, and of the same inode: neither size nor identity gives it away.
    (run / METRICS).write_text("".join(line(step, 3.0) for step in range(1, 40)))
    answer = curves.after(run, cursor)
    assert answer["whole"]
    assert answer["train"]["loss"] == [3.0] * 39


@pytest.mark.parametrize("cursor", ["x", "1.2", "-1.0.0", "1.999.0", "9" * 30 + ".1.1", "1.1.1.1", "١.١.١"])
def test_a_cursor_that_is_not_ours_brings_the_whole_curve(run: Path, cursor: str) -> None:
    answer = MetricsCache(Folder(run)).after(run, cursor)
    assert answer["whole"]
    assert len(answer["train"]["step"]) == 10


def test_a_cursor_of_an_earlier_server_is_not_taken_for_one_of_ours(run: Path) -> None:
    earlier = MetricsCache(Folder(run)).after(run)["cursor"]
    assert MetricsCache(Folder(run)).after(run, earlier)["whole"]


def test_bad_lines_are_told_and_the_others_drawn(run: Path) -> None:
    (run / METRICS).write_bytes(line(1).encode() + b"not a metric\n" * 7 + b"\xff\n" + line(2).encode())
    answer = MetricsCache(Folder(run)).after(run)
    assert answer["train"]["step"] == [1, 2]
    assert answer["problems"][0] == "metrics.jsonl, line 2, is not a metric: 'not a metric'"
    assert answer["problems"][-1] == "... and 3 more such lines"


def test_a_run_without_a_curve_has_an_empty_one(tmp_path: Path) -> None:
    assert MetricsCache(Folder(tmp_path)).after(tmp_path)["train"]["step"] == []


def test_a_long_file_comes_in_parts_that_add_up(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 200)
    curves = MetricsCache(Folder(run))
    steps: list[int] = []
    cursor, more = "", True
    while more:
        answer = curves.after(run, cursor)
        cursor, more = answer["cursor"], answer["more"]
        steps += answer["train"]["step"]
    assert steps == list(range(1, 11))


def test_a_part_is_sent_in_finer_grain_than_the_whole(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text("".join(line(step, math.sin(step)) for step in range(20_000)))
    curves = MetricsCache(Folder(tmp_path))
    assert len(curves.after(tmp_path)["train"]["step"]) <= SHOWN_POINTS
    part = curves.between(tmp_path, 1000, 1200)["train"]["step"]
    assert part == list(range(999, 1202))
    assert curves.between(tmp_path, 30_000, 40_000)["train"]["step"] == []


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=400),
    st.integers(min_value=8, max_value=64),
)
def test_thinning_keeps_ends_extremes_and_divergence(values: list[float], limit: int) -> None:
    chosen = thin(values, range(len(values)), limit)
    assert len(chosen) <= max(limit, 8)
    assert list(chosen) == sorted(set(chosen))
    assert {0, len(values) - 1} <= set(chosen)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        kept = [values[place] for place in chosen if math.isfinite(values[place])]
        assert (min(kept), max(kept)) == (min(finite), max(finite))
    bad = [place for place, value in enumerate(values) if not math.isfinite(value)]
    assert not bad or bad[0] in chosen
