"""AdamW over exactly what trains.

Parameters are grouped by their learning-rate multiplier. What is frozen stands in no group and has no moments;
freezing drops them, unfreezing starts them anew. (Where Q/K are updated every N steps they only rest between
updates, and their moments wait for them.) Moments are saved and loaded by parameter name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oelm.spec.train import TrainSpec
from oelm.train.precision import scaler


class Optimizer:
    """AdamW (fused), with clipping and the scaling that fp16 needs, that follows what of its model trains."""

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
        """Take up what has begun to train and drop what has been frozen."""
        for number, group in enumerate(self.adam.param_groups):
            members = self._members(number)
            kept = set(map(id, members))
            for parameter in group["params"]:
                if id(parameter) not in kept and not self.keeps_moments:
                    self.adam.state.pop(parameter, None)
            group["params"] = members

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss to what has been gathered."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float) -> None:
        """Clip, update, clear."""
        self.scaler.unscale_(self.adam)
        nn.utils.clip_grad_norm_([p for group in self.adam.param_groups for p in group["params"]], self.clip)
        for group in self.adam.param_groups:
            group["lr"] = learning_rate * group["factor"]
        self.scaler.step(self.adam)
        self.scaler.update()
        self.adam.zero_grad(set_to_none=True)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return every moment and step count by parameter name, and the state of the scaler."""
        tensors = {
            f"{name}/{kind}": tensor
            for name, parameter in self.model.named_parameters()
            for kind, tensor in self.adam.state.get(parameter, {}).items()
        }
        return tensors, self.scaler.state_dict()

    def load_state(self, tensors: Mapping[str, Tensor], scaler_state: dict[str, Any]) -> None:
        """Bring back what `state` returned; parameters without an entry start anew."""
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
