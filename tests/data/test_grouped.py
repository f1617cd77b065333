"""Batches by length: pure functions of (seed, step) that leave no row out and pad little."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.tasks.classification import EncodedSplit, GroupedBatches, in_order_of_length


def split_of(lengths, labels=2):
    ids = np.concatenate([np.full(length, row + 1) for row, length in enumerate(lengths)]).astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return EncodedSplit(ids, np.zeros(len(ids), np.uint8), offsets, np.arange(len(lengths)) % labels, cut=0)


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=300)


@settings(deadline=None)
@given(lengths, st.integers(1, 40), st.integers(0, 10))
def test_an_epoch_sees_every_row_and_repeats_fewer_than_a_batch(lengths, batch_size, seed):
    batches = GroupedBatches(split_of(lengths), batch_size=batch_size, seed=seed, pad=0)
    seen = np.concatenate([batches.rows(step) for step in range(batches.steps_per_epoch)])
    assert set(seen) == set(range(len(lengths)))
    assert len(seen) - len(lengths) < batch_size


def test_a_step_is_a_function_of_its_number_and_epochs_differ():
    split = split_of(np.random.default_rng(0).integers(1, 60, 500))
    one, other = (GroupedBatches(split, batch_size=16, seed=3, pad=0) for _ in range(2))
    backwards = {step: other.rows(step).tolist() for step in reversed(range(70))}
    assert all(one.rows(step).tolist() == backwards[step] for step in range(70))
    assert backwards[0] != backwards[one.steps_per_epoch]


def test_a_batch_holds_its_rows_masked_and_padded_to_the_longest():
    split = split_of([3, 1, 2])
    ids, mask, kinds, labels = split.batch(np.array([2, 0]), None, pad=9)
    assert ids.tolist() == [[3, 3, 9], [1, 1, 1]]
    assert mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert kinds.shape == ids.shape
    assert labels.tolist() == [0, 0]
    assert split.batch(np.array([1]), 5, pad=0)[0].shape == (1, 5)


@given(lengths, st.integers(1, 40))
def test_evaluation_sees_every_row_once(lengths, batch_size):
    split = split_of(lengths)
    rows = np.concatenate([rows for rows, _ in in_order_of_length(split, batch_size=batch_size, pad=0)])
    assert sorted(rows) == list(range(len(lengths)))


def test_a_limited_evaluation_is_spread_over_the_split():
    split = split_of([5] * 1000)
    rows = np.concatenate([rows for rows, _ in in_order_of_length(split, batch_size=7, pad=0, limit=500)])
    assert len(rows) == 100
    assert max(np.diff(sorted(rows))) == 10


@pytest.mark.programs
@pytest.mark.shared
def test_sst2_costs_a_ninth_of_what_padding_to_128_does(shared_data):
    from oelm.spec.run import ExamplesSpec, HuggingFaceSpec
    from oelm.tasks.classification import encode_labelled

    examples = encode_labelled(ExamplesSpec(source=shared_data / "sst2"), HuggingFaceSpec(name="minilm"))
    split, settings = examples.splits["train"], {"batch_size": 32, "seed": 0, "pad": 0}
    ours, published = GroupedBatches(split, **settings), GroupedBatches(split, length=128, **settings)
    assert ours.steps_per_epoch == published.steps_per_epoch == 1895
    computed = [sum(each.batch(step)[0].numel() for step in range(1895)) for each in (ours, published)]
    assert computed[1] == 1895 * 32 * 128
    assert computed[0] < computed[1] / 9
    assert computed[0] < 1.06 * len(split.ids)
