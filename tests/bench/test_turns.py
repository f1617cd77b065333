"""Workers that take turns, without torch."""

import sys

import psutil
import pytest

from oelm.bench import WARMUP_TURNS, take_turns
from oelm.errors import RunFailed

pytestmark = pytest.mark.programs

STEP = """
import sys
from oelm.bench import answer_turns
def step():
    with open(sys.argv[1], "a") as file:
        file.write(sys.argv[2])
    sum(range(int(sys.argv[3])))
answer_turns(step)
"""


def workers(path, **work):
    return {name: [sys.executable, "-c", STEP, str(path), name, str(count)] for name, count in work.items()}


def test_the_order_is_reversed_after_each_turn_and_warm_up_is_left_out(tmp_path):
    turns = take_turns(workers(tmp_path / "order", a=10, b=10), 3)
    assert (tmp_path / "order").read_text() == "a" * WARMUP_TURNS + "b" * WARMUP_TURNS + "ab" + "ba" + "ab"
    assert [set(turn) for turn in turns] == [{"a", "b"}] * 3


def test_seconds_are_those_of_the_worker_by_both_clocks(tmp_path):
    turns = take_turns(workers(tmp_path / "order", light=10, heavy=2_000_000), 2)
    for turn in turns:
        assert turn["heavy"]["cpu"] > 10 * turn["light"]["cpu"] > 0
        assert turn["heavy"]["wall"] > 0.9 * turn["heavy"]["cpu"]


def test_a_failing_worker_is_reported_with_its_error_and_no_process_is_left(tmp_path):
    before = psutil.Process().children()  # other tests of this process may have left some
    commands = workers(tmp_path / "order", a=10)
    commands["b"] = [sys.executable, "-c", "raise SystemExit('out of paper')"]
    with pytest.raises(RunFailed, match="'b' ended with code 1: out of paper"):
        take_turns(commands, 2)
    assert set(psutil.Process().children()) <= set(before)
