"""Training as a value."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from oelm.spec.run import TrainSpec, epochs_ended, steps_of


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"learning_rate": 1e-4, "min_learning_rate": 1e-3}, "is above"),
        ({"batch_size": 6, "accumulation": 4}, "multiple of 4"),
        ({"betas": (0.9, 1.0)}, "less than 1"),
        ({"learning_rate": float("inf")}, "finite"),
    ],
)
def test_settings_that_contradict_one_another_are_refused_in_words(fields, words):
    with pytest.raises(ValidationError, match=words):
        TrainSpec(**fields)


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 30))
def test_a_run_of_whole_epochs_ends_with_its_last_one(windows, batch, epochs):
    per_epoch = windows / batch
    steps = steps_of(epochs, per_epoch)
    assert steps == max(1, -(-epochs * windows // batch))
    assert epochs_ended(steps, per_epoch) == Fraction(steps * batch, windows).__floor__()
    assert epochs_ended(steps, per_epoch) >= epochs


def test_an_epoch_that_floats_would_lose_is_kept():
    per_epoch = 9 / 7
    assert int(9 / per_epoch) == 6  # 9 steps are 7 epochs
    assert epochs_ended(steps_of(7, per_epoch), per_epoch) == 7
