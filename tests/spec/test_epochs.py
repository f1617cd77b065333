"""Epochs and steps are two names of one time."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from oelm.spec.epochs import epochs_ended, steps_of


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
