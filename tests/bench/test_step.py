"""The step benchmark at the smallest size: that all sides do the same and what is concluded, not how fast they are."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from oelm.bench.step import (
    OPPONENTS,
    NanoGPTStyle,
    StepBench,
    bare_products,
    bench_step,
    summarise_step,
)
from oelm.cli import dispatch
from oelm.errors import InvalidSpec, RunFailed, UnknownName
from oelm.models.flops import training_cost
from oelm.models.gpt import GPT
from oelm.spec.run import GPT_SIZES

pytestmark = pytest.mark.programs


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_side_starts_from_the_same_weights_and_has_the_same_losses(capsys, precision):
    words = ["--size", "nano", "--blocks", "1", "--precision", precision, "--against", ",".join(OPPONENTS), "--json"]
    assert dispatch(["bench", "step", *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["sides"]) == {"oelm", *OPPONENTS}
    assert len(set(result["sides"]["oelm"]["losses"])) == 4
    for name in ("transformers", "nanogpt-style", "fp32"):
        against = result["against"][name]
        assert against["largest_loss_difference"] < (1e-4 if precision == "fp32" else 2e-3)
        assert against["time"] > 0
        assert against["memory"] > 0
    assert result["against"]["floor"]["time"] > 0
    assert result["precision"] == precision
    assert result["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bare_products_are_those_of_a_step(dtype):
    spec = GPT_SIZES["nano"]
    with FlopCounterMode(display=False) as counter:
        for product in bare_products(spec, batch=2, length=32, dtype=dtype):
            assert product().dtype == dtype
    assert counter.get_total_flops() == training_cost(GPT(spec), 2, 32).total_flops


def test_the_nanogpt_style_model_is_our_function():
    ours = GPT(GPT_SIZES["nano"])
    theirs = NanoGPTStyle(ours)
    tokens = torch.randint(0, 97, (2, 33), generator=torch.Generator().manual_seed(0))
    ids, targets = tokens[:, :-1], tokens[:, 1:].contiguous()
    assert theirs(ids, targets).item() == pytest.approx(ours(ids, targets).item(), abs=1e-5)
    trained = {id(parameter): parameter.numel() for parameter in theirs.parameters()}
    assert sum(trained.values()) == sum(parameter.numel() for parameter in ours.parameters())


def taken(ours, theirs, peak):
    return {
        "oelm": {"cpu": ours, "wall": 2 * ours, "peak_bytes": 100.0, "loss": 1.0},
        "transformers": {"cpu": theirs, "wall": theirs, "peak_bytes": peak, "loss": 1.5},
        "floor": {"cpu": 0.8 * ours, "wall": ours, "peak_bytes": 1.0},
    }


def test_ratios_are_theirs_over_ours_within_a_turn_whatever_the_machine_did():
    bench = StepBench(size="nano", against="transformers,floor")
    blocks = [[taken(1.0, 1.2, 200.0), taken(10.0, 12.0, 200.0)], [taken(3.0, 3.6, 400.0), taken(1.0, 1.2, 400.0)]]
    found = summarise_step(bench, blocks)["against"]
    assert found["transformers"]["time"] == pytest.approx(1.2)
    assert found["transformers"]["time_interval"] == pytest.approx([1.2, 1.2])
    assert found["transformers"]["wall"] == pytest.approx(0.6)
    assert found["transformers"]["memory"] == 0.25
    assert found["transformers"]["largest_loss_difference"] == 0.5
    assert found["floor"]["time"] == pytest.approx(0.8)
    assert "memory" not in found["floor"]


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"against": "keras"}, UnknownName, "keras"),
        ({"size": "no such size"}, UnknownName, "no such size"),
        ({"against": "floor,floor"}, InvalidSpec, "each once"),
        ({"against": ""}, InvalidSpec, "at least one"),
        ({"steps": 0}, InvalidSpec, "above 0"),
    ],
)
def test_a_request_that_measures_nothing_is_refused_before_anything_starts(fields, error, words):
    with pytest.raises(error, match=words):
        bench_step(StepBench(**fields))


def test_a_side_that_breaks_is_reported_in_its_own_words(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(RunFailed, match=r"'oelm' ended with code 1: (.|\n)*learning_rate"):
        bench_step(StepBench(size="nano", against="floor", learning_rate="fast"))
