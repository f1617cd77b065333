"""Documents are shared out evenly, repeatably, and wherever one begins to look."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.data.documents import SPLITS, Allocation, period_for

ALLOCATION = Allocation("train", ("val", "test"), period=20, seed=3)


def test_one_document_in_every_stretch_goes_to_validation_and_another_to_test() -> None:
    places = ALLOCATION.places(0, 2000).reshape(-1, 20)
    for split in ("val", "test"):
        assert (np.count_nonzero(places == SPLITS.index(split), axis=1) == 1).all()
    positions = np.argmax(places[1:] == 1, axis=1)
    assert len(set(positions.tolist())) == 20  # every place in a stretch is drawn sometimes


@pytest.mark.parametrize("seed", range(20))
def test_three_documents_are_enough_for_three_splits(seed: int) -> None:
    assert sorted(Allocation("train", ("val", "test"), 500, seed).places(0, 3).tolist()) == [0, 1, 2]


@given(first=st.integers(0, 300), count=st.integers(0, 100), seed=st.integers(0, 2**31))
def test_a_document_has_its_place_wherever_reading_begins(first: int, count: int, seed: int) -> None:
    allocation = Allocation("train", ("val", "test"), 20, seed)
    assert np.array_equal(allocation.places(0, 400)[first : first + count], allocation.places(first, count))


def test_seeds_draw_differently_and_only_what_is_missing_is_drawn() -> None:
    other = Allocation("train", ("val", "test"), 20, 4)
    assert not np.array_equal(ALLOCATION.places(0, 2000), other.places(0, 2000))
    assert set(Allocation("train", ("test",), 20).places(0, 100).tolist()) == {0, 2}
    assert set(Allocation("val").places(0, 100).tolist()) == {1}


def test_less_is_held_out_of_a_large_corpus() -> None:
    assert [period_for(size) for size in (0, 10**8, 10**10, None)] == [20, 20, 625, 100]
