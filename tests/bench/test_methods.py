"""The benchmark of methods: what it concludes from given times, when it stops, one real block at the smallest size."""

import json
import math
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.bench import methods
from oelm.bench.methods import (
    LEAST_BLOCKS,
    MethodsBench,
    bench_methods,
    estimate_memory_saving,
    estimate_saving,
    summarise_methods,
)
from oelm.cli import dispatch
from oelm.errors import BadShape, InvalidSpec, UnknownName
from oelm.models.flops import training_cost

pytestmark = pytest.mark.programs

CEILING = "ceiling of oelm-freeze"


def simulated(draw, seconds, noise, drift=0.3, turns=4):
    """One block: what the machine does in a turn (drift) meets all, a process' own noise only itself."""
    taken = []
    for _ in range(turns):
        weather = math.exp(draw.gauss(0, drift))
        times = {name: weather * value * math.exp(draw.gauss(0, noise)) for name, value in seconds.items()}
        taken.append({name: {"cpu": value, "wall": 1.1 * value} for name, value in times.items()})
    return taken


def concluded(arm, ceiling, noise=0.001, blocks=6):
    draw = random.Random(3)
    seconds = {"baseline": 1.0, "oelm-freeze": arm, CEILING: ceiling}
    turns = [simulated(draw, seconds, noise) for _ in range(blocks)]
    shares = {"baseline": 0.0, "oelm-freeze": 0.022}
    return summarise_methods(turns, shares, {"baseline": None, "oelm-freeze": CEILING})["oelm-freeze"]


@pytest.mark.parametrize(
    ("arm", "ceiling", "explained"), [(0.97, 0.96, True), (0.97, 0.97, True), (0.43, 0.95, False), (1.05, 0.95, True)]
)
def test_a_saving_above_its_ceiling_is_not_explained(arm, ceiling, explained):
    found = concluded(arm, ceiling)
    assert found["saving"] == pytest.approx(1 - arm, abs=0.005)
    assert found["ceiling"] == pytest.approx(1 - ceiling, abs=0.005)
    assert found["explained"] is explained
    assert found["flop_share"] == 0.022


def test_the_saving_of_memory_has_an_interval_over_blocks():
    blocks = [[{"baseline": {"peak_bytes": 50.0}, "oelm-freeze": {"peak_bytes": 50.0}},
               {"baseline": {"peak_bytes": 100.0}, "oelm-freeze": {"peak_bytes": 100.0 * (1 - saved)}}]
              for saved in (0.03, 0.04, 0.05)]  # fmt: skip
    found = estimate_memory_saving(blocks, "baseline", "oelm-freeze")
    low, high = found["memory_saving_interval"]
    assert found["memory_saving"] == pytest.approx(0.04)
    assert low == pytest.approx(0.04 - 4.3027 * 0.01 / math.sqrt(3), abs=1e-5)
    assert high == pytest.approx(0.04 + 4.3027 * 0.01 / math.sqrt(3), abs=1e-5)
    assert estimate_memory_saving(blocks[:1], "baseline", "oelm-freeze")["memory_saving_interval"] is None


def test_one_block_decides_nothing():
    found = concluded(0.43, 0.95, blocks=1)
    assert (found["saving_interval"], found["half_width"], found["explained"]) == (None, None, None)


def test_an_arm_that_removes_nothing_has_a_ceiling_of_zero():
    draw = random.Random(1)
    turns = [simulated(draw, {"baseline": 1.0, "baseline-shift": 0.9}, 0.001) for _ in range(5)]
    found = summarise_methods(
        turns, {"baseline": 0.0, "baseline-shift": 0.0}, {"baseline": None, "baseline-shift": None}
    )
    assert found["baseline-shift"]["ceiling"] == 0
    assert found["baseline-shift"]["explained"] is False
    assert "saving" not in found["baseline"]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ratio=st.floats(0.5, 1.5), drift=st.floats(0, 1))
def test_what_meets_all_in_a_turn_never_touches_the_saving(seed, ratio, drift):
    draw = random.Random(seed)
    turns = [simulated(draw, {"a": 2.0, "b": 2.0 * ratio}, 0.0, drift) for _ in range(4)]
    found = estimate_saving(turns, "a", "b")
    assert found["saving"] == pytest.approx(1 - ratio)
    assert found["half_width"] == pytest.approx(0, abs=1e-9)


def test_intervals_cover_the_true_saving_about_as_often_as_they_say():
    draw, covered = random.Random(7), 0
    for _ in range(400):
        turns = [simulated(draw, {"a": 1.0, "b": 0.95}, 0.03, turns=3) for _ in range(6)]
        low, high = estimate_saving(turns, "a", "b")["saving_interval"]
        covered += low <= 0.05 <= high
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.parametrize(
    ("noise", "blocks", "stopped"),
    [(0.001, LEAST_BLOCKS, "the half-width is reached"), (0.5, 6, "the blocks are used up")],
)
def test_blocks_go_on_until_the_saving_is_known_or_they_are_used_up(monkeypatch, noise, blocks, stopped):
    draw = random.Random(5)
    monkeypatch.setattr(
        methods, "take_turns", lambda commands, *_: simulated(draw, dict.fromkeys(commands, 1.0), noise)
    )
    said = []
    bench = MethodsBench(arms="baseline,oelm-freeze,oelm-random", size="nano", blocks=6)
    result = bench_methods(bench, said.append)
    assert (result["blocks"], result["stopped"]) == (blocks, stopped)
    assert said[0] == "4 processes per block: baseline, oelm-freeze, oelm-random, ceiling of oelm-freeze"
    assert said[1].startswith("block 1 of at most 6: oelm-freeze saves ")


def test_a_real_block_reports_every_arm(capsys):
    words = "--arms baseline,oelm-slice --size nano --batch 2 --length 16 --blocks 1 --steps 2 --json"
    assert dispatch(["bench", "methods", *words.split()]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["batch"] == [2, 16]
    arm = result["arms"]["oelm-slice"]
    assert arm["seconds"] > 0
    assert arm["flop_share"] > 0.1
    assert arm["saving"] < 1
    assert arm["ceiling"] < 1
    assert arm["explained"] is None
    assert "could save at most" in captured.err


@pytest.mark.parametrize(
    ("size", "labels"), [("nano", None), ("gpt2-tiny", None), ("bert-tiny", 3), ("llama-tiny", None)]
)
def test_a_ceiling_takes_away_from_any_family_what_the_arm_does_not_do(size, labels):
    from oelm.bench.methods import remove_work, removed_work

    bench = MethodsBench(size=size, labels=labels, length=16, batch=2)
    reference, frozen, sliced, again = (
        methods._model(bench, name) for name in ("baseline", "oelm-freeze", "oelm-slice+features", "baseline")
    )
    assert not removed_work(reference, again)
    removed = removed_work(reference, sliced)
    assert removed.products == removed.constants == removed_work(reference, frozen).constants
    assert {name.rpartition(".")[2][0] for name in removed.products} <= {"q", "k"}
    remove_work(reference, removed)
    numbers = torch.randint(0, 1 << 30, (2, 17))
    methods._loss(bench, reference)(numbers).backward()
    trained = {name for name, p in reference.named_parameters() if p.grad is not None}
    whole = {name for name, p in again.named_parameters() if p.requires_grad}
    assert len(trained) >= len(whole) - 4 * len(removed.products)
    assert not removed_work(reference, frozen).constants
    flops = training_cost(reference, 2, 16).total_flops
    assert flops == training_cost(sliced, 2, 16).total_flops < training_cost(frozen, 2, 16).total_flops


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"arms": "baseline"}, InvalidSpec, "at least two"),
        ({"size": "nano", "labels": 3}, InvalidSpec, "--labels is for Hugging Face models"),
        ({"arms": "baseline,baseline"}, InvalidSpec, "each once"),
        ({"arms": "baseline,oelm-freez"}, UnknownName, "oelm-freeze"),
        ({"arms": "baseline,oelm-every:2"}, InvalidSpec, "changes what trains during training"),
        ({"steps": 0}, InvalidSpec, "above 0"),
        ({"size": "nono"}, UnknownName, "nano"),
        ({"size": "nano", "length": 33}, BadShape, "context of 32"),
    ],
)
def test_an_impossible_measurement_is_refused_before_anything_starts(fields, error, words):
    with pytest.raises(error, match=words):
        bench_methods(MethodsBench(**fields))


def test_an_interruption_leaves_no_process_and_no_traceback():
    command = [sys.executable, "-m", "oelm", "bench", "methods", "--size", "nano", "--steps", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    tree = psutil.Process(process.pid)
    while not (workers := tree.children()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in words
    assert "Traceback" not in words
    assert not psutil.wait_procs(workers, timeout=10)[1]
