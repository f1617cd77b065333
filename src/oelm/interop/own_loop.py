"""A method in a training loop of the user's own: its learning rates and its schedule.

oelm.apply(model, "oelm-progressive:0.2-0.8")
optimizer = torch.optim.AdamW(oelm.parameter_groups(model, lr=3e-4))
schedule = oelm.schedule(model, optimizer, steps=1000)
for batch in batches:
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
oelm.verify_frozen(model, optimizer)
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from oelm.errors import MethodError, UsageError
from oelm.method.freeze import multipliers, named_tensors
from oelm.models import apply as surgery

FACTOR = "oelm_factor"
"""Entry of a parameter group: the learning-rate multiplier that the method gives to its tensors."""


def parameter_groups(model: nn.Module, lr: float, **options: Any) -> list[dict[str, Any]]:
    """Return parameter groups for any torch optimiser: the tensors that train, with the method's learning rates.

    `options` become entries of every group (weight_decay, betas, ...). Groups of tensors that are all frozen for now
    are empty: `oelm.schedule` fills them when they train.
    """
    factors, tensors = rate_multipliers(model), named_tensors(surgery.unwrap(model))
    return [
        {
            **options,
            "params": [each for name, each in tensors.items() if each.requires_grad and factors[name] == factor],
            "lr": lr * factor,
            FACTOR: factor,
        }
        for factor in sorted(set(factors.values()))
    ]


def rate_multipliers(model: nn.Module) -> dict[str, float]:
    """Return the learning-rate multiplier of each tensor by name; 1 for all of them without a method."""
    inner = surgery.unwrap(model)
    names, method = list(named_tensors(inner)), surgery.method_of(inner)
    if method is None:
        return dict.fromkeys(names, 1.0)
    return multipliers(names, surgery.projections_in_reach(inner), method.rates)


class Schedule:
    """The schedule of a method in a user's own loop: call `step()` after each step of the optimiser.

    The optimiser always has exactly the tensors that train. A tensor that freezes leaves its group and loses its
    moments; a tensor that unfreezes enters the group that it was in, or that has its learning rate, with new moments.
    (If Q and K are updated every N steps, they keep their moments between updates.)

    To resume: create model, optimiser and schedule as before, load the weights, then `load_state_dict` of the schedule,
    then that of the optimiser.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, steps: int) -> None:
        if steps < 1:
            raise UsageError(f"A schedule needs the number of training steps, but steps={steps} was given.")
        self.model, self.optimizer, self.steps = model, surgery.torch_optimizer(optimizer), steps
        self.done = 0
        """Number of steps that the optimiser has done."""
        self._members = self._assign_groups()
        self._freezing = surgery.FreezeSchedule(model, steps)
        self._freezing.advance(0)
        self._follow()

    def step(self) -> None:
        """Freeze and unfreeze for the next training step."""
        self.done += 1
        if self.done < self.steps and self._freezing.advance(self.done):
            self._follow()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, as JSON data."""
        return {"done": self.done, **self._freezing.save()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the weights of a checkpoint have been loaded into the model.

        Raises:
            CheckpointError: a frozen weight has changed since the state was saved.

        """
        self.done = int(state["done"])
        self._freezing.restore(min(self.done, self.steps - 1), {"hashes": state["hashes"]})
        self._follow()

    def _assign_groups(self) -> list[list[nn.Parameter]]:
        """Return for each group all tensors that belong to it at some time."""
        groups = self.optimizer.param_groups
        members = [list(group["params"]) for group in groups]
        known = {id(each) for group in members for each in group}
        factors, tensors = rate_multipliers(self.model), named_tensors(surgery.unwrap(self.model))
        by_factor = {group[FACTOR]: place for place, group in enumerate(groups) if FACTOR in group}
        if len(set(factors.values())) > 1 and set(factors.values()) - by_factor.keys():
            raise MethodError(
                "The method has its own learning rates, but the optimiser does not. Build it with "
                "oelm.parameter_groups(model, lr=...)."
            )
        later = [(name, each) for name, each in surgery.method_tensors(self.model) if id(each) not in known]
        for name, parameter in later:
            place = by_factor.get(factors[name], 0 if len(groups) == 1 else None)
            if place is None:
                raise MethodError(
                    f"{name} may train later, but it is in none of the optimiser's {len(groups)} groups. Build the "
                    "optimiser with oelm.parameter_groups(model, lr=...), or with all parameters of the model."
                )
            members[place].append(parameter)
        order = {id(each): place for place, each in enumerate(tensors.values())}
        return [sorted(group, key=lambda each: order.get(id(each), len(order))) for group in members]

    def _follow(self) -> None:
        """Give the optimiser the tensors that train now; frozen ones lose their moments."""
        keeps_moments = self._freezing.timeline.every is not None
        for group, members in zip(self.optimizer.param_groups, self._members, strict=True):
            group["params"] = [parameter for parameter in members if parameter.requires_grad]
            for parameter in members:
                if not parameter.requires_grad and not keeps_moments:
                    self.optimizer.state.pop(parameter, None)


def schedule(model: nn.Module, optimizer: Optimizer, steps: int) -> Schedule:
    """Carry out the schedule of a model's method in your own loop of `steps` optimiser steps.

    Call it before the first step, and `step()` of the result after each step of the optimiser. Methods without a
    schedule need none, but it does no harm.

    Raises:
        MethodError: no method has been applied, or the optimiser has no group for a tensor that trains later.

    """
    return Schedule(model, optimizer, steps)
