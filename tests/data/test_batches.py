"""Batches as a function of seed and step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.data.tokens import TrainingBatches, evaluation_batches
from oelm.errors import BadData

TOKENS = np.arange(1000, dtype=np.uint16)


def batches(**fields):
    return TrainingBatches(TOKENS, **({"context": 10, "batch_size": 4, "seed": 0} | fields))


def test_targets_are_the_inputs_moved_by_one_within_one_window():
    ids, targets = batches().batch(3)
    assert ids.shape == (4, 10)
    assert (targets == ids + 1).all()
    assert (ids[:, 0] % 10 == 0).all()


@given(seed=st.integers(0, 1000), batch_size=st.integers(1, 40))
def test_each_epoch_sees_every_window_once_in_another_order(seed, batch_size):
    data = batches(seed=seed, batch_size=batch_size)
    seen = np.concatenate([data.windows(step) for step in range(-(-2 * data.num_windows // batch_size))])
    first, second = seen[: data.num_windows], seen[data.num_windows : 2 * data.num_windows]
    assert sorted(first) == sorted(second) == list(range(99))
    assert list(first) != list(second)


def test_a_step_is_known_without_those_before_it_and_depends_on_the_seed():
    assert (batches().windows(57) == batches().windows(57)).all()
    assert (batches().windows(57) != batches(seed=1).windows(57)).any()


def test_some_rows_are_those_rows_of_the_batch():
    data = batches()
    assert (data.batch(5, slice(1, 3))[0] == data.batch(5)[0][1:3]).all()


def test_evaluation_predicts_every_token_but_the_first_once():
    tokens = TOKENS[:47]
    targets = np.concatenate([t.flatten() for _, t in evaluation_batches(tokens, context=10, batch_size=3)])
    assert targets.tolist() == list(range(1, 47))


def test_a_limit_takes_the_first_whole_windows():
    parts = list(evaluation_batches(TOKENS, context=10, batch_size=3, limit=45))
    assert sum(t.numel() for _, t in parts) == 40


def test_too_little_text_is_refused():
    with pytest.raises(BadData, match="too few for one window"):
        batches(context=1000).batch(0)
    with pytest.raises(BadData, match="at least 2"):
        list(evaluation_batches(TOKENS[:1], context=10, batch_size=1))
