"""Taking turns, with participants that need no torch."""

import os
import sys

import psutil
import pytest

from oelm.bench.turns import WARMUP_STEPS, take_turns
from oelm.errors import RunFailed

STEP = """
import sys
from oelm.bench.turns import answer_turns
def step():
    with open(sys.argv[1], "a") as file:
        file.write(sys.argv[2])
    sum(range(int(sys.argv[3])))
answer_turns(step)
"""


def participants(path, **work):
    return {name: [sys.executable, "-c", STEP, str(path), name, str(count)] for name, count in work.items()}


def test_everybody_takes_each_turn_in_an_order_that_is_reversed_and_warm_up_is_left_out(tmp_path):
    turns = take_turns(participants(tmp_path / "order", a=10, b=10), 3, os.environ)
    assert (tmp_path / "order").read_text() == "a" * WARMUP_STEPS + "b" * WARMUP_STEPS + "ab" + "ba" + "ab"
    assert [set(turn) for turn in turns] == [{"a", "b"}] * 3


def test_seconds_are_the_participants_own_by_both_clocks(tmp_path):
    turns = take_turns(participants(tmp_path / "order", light=10, heavy=2_000_000), 2, os.environ)
    for turn in turns:
        assert turn["heavy"]["cpu"] > 10 * turn["light"]["cpu"] > 0
        assert turn["heavy"]["wall"] > 0.9 * turn["heavy"]["cpu"]


def test_a_participant_that_breaks_is_told_in_its_own_words_and_none_is_left(tmp_path):
    before = psutil.Process().children()  # other tests of this process may have left some
    commands = participants(tmp_path / "order", a=10)
    commands["b"] = [sys.executable, "-c", "raise SystemExit('out of paper')"]
    with pytest.raises(RunFailed, match="'b' ended with code 1: out of paper"):
        take_turns(commands, 2, os.environ)
    assert set(psutil.Process().children()) <= set(before)
