"""The learning rate as a function of the step."""

from __future__ import annotations

import math

from oelm.spec.train import TrainSpec


def learning_rate(spec: TrainSpec, step: int) -> float:
    """Return the rate of a step (from 0): linear warm-up, then decay from the full rate to the least one."""
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / spec.warmup_steps
    if spec.decay == "constant":
        return spec.learning_rate
    progress = (step - spec.warmup_steps) / max(1, spec.steps - spec.warmup_steps)
    share = 0.5 * (1 + math.cos(math.pi * progress)) if spec.decay == "cosine" else 1 - progress
    return spec.min_learning_rate + (spec.learning_rate - spec.min_learning_rate) * share
