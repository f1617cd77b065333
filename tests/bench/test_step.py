"""The step benchmark at the smallest size: that both sides do the same, not how fast."""

import json

import pytest

from oelm.bench.step import StepBench, bench_step, main
from oelm.errors import RunFailed


def test_both_sides_start_from_the_same_weights_and_agree_on_the_first_losses(capsys):
    assert (
        main(["--size", "nano", "--batch-size", "2", "--steps", "5", "--rounds", "1", "--threads", "1", "--json"]) == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["largest_loss_difference"] < 1e-4
    assert len(set(result["losses"]["oelm"])) == 5
    assert result["ratio_tokens_per_second"] > 0
    assert result["ratio_peak_memory"] > 0
    assert set(result["seconds_per_step"]) == {"oelm", "transformers"}


def test_a_side_that_breaks_is_told():
    with pytest.raises(RunFailed, match="oelm side of the benchmark"):
        bench_step(StepBench(size="no such size"))
