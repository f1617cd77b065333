"""The published timer: what it recorded, and both arms timed alike."""

import pytest

from oelm.bench.published_timing import ACCUMULATED, ALIKE, BASELINE, RECORDED, PublishedTimingBench, summarise
from oelm.bench.published_timing import bench_published_timing as bench
from oelm.errors import InvalidSpec
from oelm.published.ledger import TimerRecord, ledger, read_timer
from oelm.report.final import ledger_section


def turn(baseline, recorded, accumulated, alike):
    seconds = {BASELINE: baseline, RECORDED: recorded, ACCUMULATED: accumulated, ALIKE: alike}
    return {name: {"cpu": value, "wall": value} for name, value in seconds.items()}


def test_savings_are_shares_of_the_baselines_step_with_intervals_over_blocks():
    blocks = [[turn(1.0, 0.44, 0.96, 0.95)] * 3, [turn(2.0, 0.86, 1.9, 1.88)] * 3, [turn(1.0, 0.45, 0.97, 0.96)] * 3]
    found = summarise(blocks)
    assert found["as_published"]["saving"] == pytest.approx(0.56, abs=0.01)
    assert found["timed_alike"]["saving"] == pytest.approx(0.05, abs=0.01)
    low, high = found["timed_alike"]["interval"]
    assert low < found["timed_alike"]["saving"] < high


def test_a_batch_that_cannot_be_halved_is_refused():
    with pytest.raises(InvalidSpec, match="--batch must be even"):
        bench(PublishedTimingBench(batch=15), print)


def test_the_ledger_gives_the_measured_explanation_in_both_languages(tmp_path):
    folder = tmp_path / "performance"
    folder.mkdir()
    found = TimerRecord.model_validate(
        {"size": "tiny", "blocks": 3, "as_published": {"saving": 0.561, "interval": [0.55, 0.57]},
         "timed_alike": {"saving": 0.051, "interval": None}, "flop_share": 0.054}
    )  # fmt: skip
    (folder / "published-timing.json").write_text(found.model_dump_json())
    timer, wrong = read_timer(tmp_path)
    assert (timer, wrong) == (found, [])
    for lang in ("en", "zh"):
        section = ledger_section(ledger([], [], timer), tmp_path, lang)
        sentences = [
            answer.sentence for answer in section.answers if answer.anchor == "claim-57-percent-faster-on-bert"
        ]
        assert all(figure in sentences[0] for figure in ("56.1", "55.0", "5.1", "5.4", "SST-2"))
    (folder / "published-timing.json").write_text("{}")
    assert "oelm bench published-timing" in read_timer(tmp_path)[1][0]
