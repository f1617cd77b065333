"""AdamW over the trained parameters, and the learning-rate schedule.

Parameters are grouped by their learning-rate multiplier. Frozen parameters are in no group and have no moments:
freezing deletes the moments, and unfreezing starts with new ones. (If Q and K are updated every N steps, they keep
their moments between updates.) Moments are saved and loaded by parameter name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oelm.spec.run import TrainSpec
from oelm.train.device import scaler


class Optimizer:
    """Fused AdamW with gradient clipping and, for fp16, gradient scaling, that follows freezing and unfreezing."""

    def __init__(
        self,
        model: nn.Module,
        spec: TrainSpec,
        multipliers: Mapping[str, float],
        *,
        keeps_moments: bool = False,
    ) -> None:
        self.model = model
        self.clip = spec.grad_clip or float("inf")
        self.keeps_moments = keeps_moments
        self.factors = sorted(set(multipliers.values()))
        self._group_of = {name: self.factors.index(factor) for name, factor in multipliers.items()}
        self.adam = torch.optim.AdamW(
            [{"params": self._members(group), "factor": factor} for group, factor in enumerate(self.factors)],
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.epsilon,
            weight_decay=spec.weight_decay,
            fused=True,
        )
        self.scaler = scaler(next(model.parameters()).device, spec.precision)

    def follow_freezing(self) -> None:
        """Add parameters that have been unfrozen, and drop those that have been frozen."""
        for number, group in enumerate(self.adam.param_groups):
            members = self._members(number)
            kept = set(map(id, members))
            for parameter in group["params"]:
                if id(parameter) not in kept and not self.keeps_moments:
                    self.adam.state.pop(parameter, None)
            group["params"] = members

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss to the accumulated gradients."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float) -> None:
        """Clip the gradients, update the parameters, clear the gradients."""
        self.scaler.unscale_(self.adam)
        nn.utils.clip_grad_norm_([p for group in self.adam.param_groups for p in group["params"]], self.clip)
        for group in self.adam.param_groups:
            group["lr"] = learning_rate * group["factor"]
        self.scaler.step(self.adam)
        self.scaler.update()
        self.adam.zero_grad(set_to_none=True)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all moments and step counts by parameter name, and the state of the scaler."""
        tensors = {
            f"{name}/{kind}": tensor
            for name, parameter in self.model.named_parameters()
            for kind, tensor in self.adam.state.get(parameter, {}).items()
        }
        return tensors, self.scaler.state_dict()

    def load_state(self, tensors: Mapping[str, Tensor], scaler_state: dict[str, Any]) -> None:
        """Restore the result of `state`; parameters without an entry start with new moments."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, kind = key.rpartition("/")
            by_name.setdefault(name, {})[kind] = tensor
        for name, parameter in self.model.named_parameters():
            if name in by_name:
                self.adam.state[parameter] = {
                    kind: tensor.to(parameter.device) for kind, tensor in by_name[name].items()
                }
        if scaler_state:
            self.scaler.load_state_dict(scaler_state)

    def _members(self, group: int) -> list[nn.Parameter]:
        return [
            parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and self._group_of[name] == group
        ]


def learning_rate(spec: TrainSpec, step: int) -> float:
    """Return the learning rate of a step (counted from 0): linear warm-up, then decay to the minimum."""
    warmup = spec.warmup
    if step < warmup:
        return spec.learning_rate * (step + (not spec.warmup_from_zero)) / warmup
    if spec.decay == "constant":
        return spec.learning_rate
    if spec.decay == "wsd":
        left = min(1.0, (spec.steps - step) / (spec.steps - spec.decay_start))
        return spec.min_learning_rate + (spec.learning_rate - spec.min_learning_rate) * left
    progress = (step - warmup) / max(1, spec.schedule_steps - warmup)
    share = 0.5 * (1 + math.cos(math.pi * progress)) if spec.decay == "cosine" else 1 - progress
    return spec.min_learning_rate + (spec.learning_rate - spec.min_learning_rate) * share


def warn_of_rising_rate(spec: TrainSpec) -> str | None:
    """Return a warning if the warm-up takes the whole run, as happens in short runs; otherwise None."""
    if spec.warmup < spec.steps:
        return None
    last = learning_rate(spec, spec.steps - 1)
    return (
        f"note: the warm-up of {spec.warmup} steps is not shorter than the run of {spec.steps}, so the learning "
        f"rate only rises and ends at {last:.3g} of {spec.learning_rate:.3g}; train.warmup_steps sets it."
    )
