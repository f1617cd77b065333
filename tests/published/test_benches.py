from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.statistics import interval_of_mean
from oelm.published.claims import ClaimName
from oelm.published.ledger import Bench, BenchRecord, LedgerEntry, ledger, read_benches

KEPT = Path(__file__).parents[2] / "docs" / "results" / "performance"


def bench(
    size: str = "bert-base", saving: float = 0.06, width: float = 0.01, arm: str = "oelm-freeze", **fields: Any
) -> Bench:
    frozen = {"flop_share": 0.054, "seconds": 0.9, "saving": saving, "peak_bytes": 990,
              "saving_interval": (saving - width, saving + width)} | fields  # fmt: skip
    record = {
        "size": size, "labels": 3 if size == "bert-base" else None, "batch": (4, 128), "threads": 1, "blocks": 5,
        "steps_per_block": 4, "reference": "baseline",
        "arms": {"baseline": {"flop_share": 0.0, "seconds": 1.0, "peak_bytes": 1000}, arm: frozen},
    }  # fmt: skip
    return Bench(Path(f"methods-{size}.json"), BenchRecord.model_validate(record))


def entry(claim: ClaimName, *benches: Bench) -> LedgerEntry:
    return next(item for item in ledger([], benches) if item.claim.name == claim)


@pytest.mark.parametrize(
    ("saving", "width", "verdict"),
    [(0.066, 0.013, "contradicted"), (0.57, 0.02, "supported"), (0.3, 0.4, "undecided"), (0.01, 0.01, "no effect")],
)
def test_a_bench_decides_whether_an_encoder_is_57_percent_faster(saving: float, width: float, verdict: str) -> None:
    assert entry("57-percent-faster-on-bert", bench(saving=saving, width=width)).verdict == verdict


@pytest.mark.parametrize(("saving", "verdict"), [(0.026, "supported"), (0.2, "contradicted")])
def test_a_bench_decides_whether_a_gpt_gains_time(saving: float, verdict: str) -> None:
    assert entry("no-gain-on-gpt", bench("medium-512", saving)).verdict == verdict
    assert entry("no-gain-on-gpt", bench("bert-base", saving)).verdict == "not yet tested"


def test_a_bench_decides_about_memory_only_where_it_has_an_interval() -> None:
    without = entry("less-memory", bench("medium-512"))
    assert without.verdict == "undecided"
    assert without.judged[0].findings[0].mean == pytest.approx(0.01)
    assert without.judged[0].need is not None
    assert without.judged[0].need.hours == pytest.approx(1.9 * 4 * 5 / 3600)
    measured = bench("medium-512", memory_saving=-0.018, memory_saving_interval=(-0.02, -0.016))
    assert entry("less-memory", measured).verdict == "contradicted"


def test_other_methods_than_the_published_one_say_nothing_about_it() -> None:
    for arm in ("oelm-fast", "oelm-random", "not-a-method"):
        assert entry("57-percent-faster-on-bert", bench(saving=0.57, arm=arm)).verdict == "not yet tested"


def test_the_error_of_a_bench_gives_its_interval_back() -> None:
    values = [0.05, 0.06, 0.08, 0.07, 0.06]
    interval = interval_of_mean(values, 0.95)
    assert interval is not None
    item = bench().estimate(0.064, (interval.low, interval.high))
    assert item is not None
    found = item.interval(0.95)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert bench().estimate(0.064, None) is None


def test_the_kept_benches_are_read_and_a_spoiled_one_is_named(tmp_path: Path) -> None:
    found, unreadable = read_benches(KEPT.parent)
    assert {item.record.size for item in found} >= {"bert-base", "medium-512"}
    assert unreadable == []
    (tmp_path / "performance").mkdir()
    (tmp_path / "performance" / "methods-x.json").write_text(json.dumps({"size": "x"}))
    found, unreadable = read_benches(tmp_path)
    assert found == []
    assert "methods-x.json" in unreadable[0]


def test_a_second_bench_of_one_model_adds_to_the_first_and_a_vague_one_changes_little() -> None:
    sure, vague = bench("medium-512", 0.026), bench("medium-512", 0.3, 0.4)
    found = entry("no-gain-on-gpt", sure, replace(vague, path=Path("methods-again.json")))
    (place,) = found.judged[0].places
    assert len(place.findings) == 2
    assert place.estimate.mean == pytest.approx(0.026, abs=0.001)
    assert found.verdict == "supported"
