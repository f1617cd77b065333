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
    if spec.decay == "wsd":
        left = min(1.0, (spec.steps - step) / (spec.steps - spec.decay_start))
        return spec.min_learning_rate + (spec.learning_rate - spec.min_learning_rate) * left
    progress = (step - spec.warmup_steps) / max(1, spec.steps - spec.warmup_steps)
    share = 0.5 * (1 + math.cos(math.pi * progress)) if spec.decay == "cosine" else 1 - progress
    return spec.min_learning_rate + (spec.learning_rate - spec.min_learning_rate) * share


def doubt(spec: TrainSpec) -> str | None:
    """Say that the rate only rises, as in a short run with the usual warm-up it does; None where it does not."""
    if spec.warmup_steps < spec.steps:
        return None
    last = learning_rate(spec, spec.steps - 1)
    return (
        f"note: the warm-up of {spec.warmup_steps} steps is not shorter than the run of {spec.steps}, so the learning "
        f"rate only rises and ends at {last:.3g} of {spec.learning_rate:.3g}; train.warmup_steps sets it."
    )
