"""Losses by position in the window and on tokens that complete a bigram already seen in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.record.folder import RunFolder, read_window_losses
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.tasks.language import LanguageTask, by_window, is_repeat


def slow_repeats(tokens: list[int], context: int) -> list[bool]:
    """Look every bigram of a window up among those before it, one by one."""
    found = []
    for start in range(0, len(tokens) - 1, context):
        window = tokens[start : start + context + 1]
        for place in range(1, len(window)):
            seen = [(window[n - 1], window[n]) for n in range(1, place)]
            found.append((window[place - 1], window[place]) in seen)
    return found


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(1, 17))
def test_repeats_are_those_that_a_search_through_each_window_finds(tokens: list[int], context: int) -> None:
    assert is_repeat(np.array(tokens, dtype=np.uint16), context).tolist() == slow_repeats(tokens, context)


def test_a_repeat_is_known_by_both_tokens_of_its_bigram_whatever_their_ids() -> None:
    tokens = np.array([65535, 1, 0, 65535, 1, 65535, 65535, 1], dtype=np.uint16)
    assert is_repeat(tokens, 7).tolist() == [False, False, False, True, False, False, True]


@settings(deadline=None)
@given(st.integers(2, 80), st.integers(1, 20), st.integers(0, 5))
def test_losses_are_summed_by_position_and_repeat_as_a_loop_sums_them(size: int, context: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens, losses = rng.integers(0, 4, size).astype(np.uint16), rng.random(size - 1).astype(np.float32)
    found = by_window(losses, tokens, context, "val")
    repeats = slow_repeats(tokens.tolist(), context)
    for number, start in enumerate(found.starts):
        end = (*found.starts, context)[number + 1]
        for wanted, sums in ((True, found.repeats), (False, found.others)):
            own = [
                float(losses[n]) for n in range(size - 1) if start <= n % context < end and repeats[n] is wanted
            ]  # fmt: skip
            assert sums.tokens[number] == len(own)
            assert sums.nats[number] == pytest.approx(math.fsum(own))


def test_bins_of_positions_double_and_cover_the_context() -> None:
    tokens = np.arange(300, dtype=np.uint16)
    found = by_window(np.ones(299, dtype=np.float32), tokens, 128, "test")
    assert found.starts == (0, 1, 2, 4, 8, 16, 32, 64)
    assert sum(found.others.tokens) == 299
    assert found.share_of_repeats == 0
    assert found.repeats.mean is None
    assert found.by_position == (1.0,) * 8


def test_a_run_leaves_them_for_test_and_they_add_up_to_its_figure(tiny_run, tmp_path) -> None:
    run, tokens = resolve(tiny_run("baseline+features", steps=4))
    record = execute(run, tokens, tmp_path / "run", quiet=True)
    found = read_window_losses(tmp_path / "run")
    assert found is not None
    assert record.result is not None
    assert (found.split, found.context) == ("test", 32)
    both = (found.repeats, found.others)
    mean = sum(sum(each.nats) for each in both) / sum(sum(each.tokens) for each in both)
    assert mean == pytest.approx(record.result.test_loss, rel=1e-5)
    assert 0.05 < found.share_of_repeats < 0.95, "stories repeat themselves"
    variances = RunFolder(tmp_path / "run").read_logit_variance()
    assert variances is not None
    assert variances.tokens == 4 * 32
    assert variances.median_share is not None
    assert len(variances.content) == 2
    assert len(variances.position[0]) == 4


def test_a_run_that_is_not_scored_on_test_leaves_those_of_validation(tiny_run, tmp_path) -> None:
    run, tokens = resolve(tiny_run("baseline", steps=4))
    task = LanguageTask(run, tokens, torch.device("cpu"))
    model = task.build_model()
    task.artefacts(model, task.measure(model, "val"), None).write(RunFolder(tmp_path))
    found = read_window_losses(tmp_path)
    assert found is not None
    assert found.split == "val"
    assert not (tmp_path / "test_losses.json").exists()


def test_the_validation_windows_are_whole_spread_and_never_beyond_the_split(tiny_run) -> None:
    run, tokens = resolve(tiny_run("baseline", steps=4))
    windows = LanguageTask(run, tokens, torch.device("cpu"))._validation_windows()
    whole = np.asarray(tokens.split("val"))
    assert windows.shape == (4, 32)
    assert windows[0].tolist() == whole[:32].tolist()
    start = 3 * (len(whole) // 32) // 4 * 32
    assert windows[3].tolist() == whole[start : start + 32].tolist()
