"""Epochs and steps. An epoch of text need not be a whole number of steps, and floats must not lose one for it."""

from __future__ import annotations

import math

_SLACK = 1e-9


def steps_of(epochs: float, per_epoch: float) -> int:
    """Return the steps that so many epochs take."""
    return max(1, math.ceil(epochs * per_epoch - _SLACK))


def epochs_ended(step: int, per_epoch: float) -> int:
    """Return how many epochs have ended by a step."""
    return math.floor(step / per_epoch + _SLACK)
