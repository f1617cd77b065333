"""Training as a value."""

import pytest
from pydantic import ValidationError

from oelm.spec.train import TrainSpec


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
