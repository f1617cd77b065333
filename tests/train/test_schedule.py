"""The learning rate by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.spec.run import TrainSpec
from oelm.train.loop import learning_rate, warn_of_rising_rate

SPEC = TrainSpec(steps=100, warmup_steps=10, learning_rate=1.0, min_learning_rate=0.1)


def test_warm_up_is_linear_and_ends_at_the_full_rate():
    assert [learning_rate(SPEC, step) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])


def test_cosine_is_half_way_down_half_way_through():
    assert learning_rate(SPEC, 55) == pytest.approx(0.55)
    assert learning_rate(SPEC, 99) == pytest.approx(0.1, abs=1e-3)


def test_linear_and_constant_do_what_they_say():
    linear = SPEC.model_copy(update={"decay": "linear"})
    assert learning_rate(linear, 55) == pytest.approx(0.55)
    assert learning_rate(SPEC.model_copy(update={"decay": "constant"}), 99) == 1.0


@given(st.integers(0, 99), st.sampled_from(["cosine", "linear", "constant"]))
def test_the_rate_stays_between_its_bounds_and_never_rises_after_warm_up(step, decay):
    spec = SPEC.model_copy(update={"decay": decay})
    assert 0 < learning_rate(spec, step) <= 1
    if step >= 10:
        assert learning_rate(spec, step) >= max(0.1, learning_rate(spec, step + 1)) - 1e-12


@pytest.mark.parametrize(("steps", "last"), [(20, "6e-05"), (100, "0.0003"), (101, None)])
def test_a_warm_up_as_long_as_the_run_gives_a_warning_with_the_last_rate(steps, last):
    warning = warn_of_rising_rate(TrainSpec(steps=steps, warmup_steps=100, learning_rate=3e-4))
    assert warning is None if last is None else f"ends at {last} of 0.0003" in warning


def test_warm_up_stable_decay_keeps_the_full_rate_until_the_last_part():
    spec = TrainSpec(decay="wsd", steps=100, warmup_steps=10, learning_rate=1.0, decay_fraction=0.2)
    rates = [learning_rate(spec, step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert rates[10:81] == [1.0] * 71
    assert rates[80:] == pytest.approx([1 - step / 20 for step in range(20)])


def test_a_shorter_warm_up_stable_decay_run_has_the_rates_of_a_longer_one_until_it_decays():
    long, short = (TrainSpec(decay="wsd", steps=steps, warmup_steps=5) for steps in (400, 100))
    assert short.decay_start == 80
    for step in range(short.decay_start):
        assert learning_rate(short, step) == learning_rate(long, step)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"decay_fraction": 0.1}, "has no effect with decay='cosine'"),
        ({"branch_at": (3,)}, "not in the stable phase"),
        ({"decay": "wsd", "steps": 100, "branch_at": (81,)}, "not in the stable phase"),
    ],
)
def test_settings_of_a_decay_that_is_not_there_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        TrainSpec(**fields)
