"""Training as a value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from oelm.spec import NoEffect, Spec

Precision = Literal["fp32", "bf16", "fp16", "auto"]
TrackerName = Literal["wandb", "trackio", "tensorboard"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainSpec(Spec):
    """AdamW with warm-up and decay, how often to evaluate, and how the machine computes."""

    steps: PositiveInt = 1000
    epochs: PositiveFloat | None = None
    """Number of passes over the training data, instead of `steps`, which are then derived when the run is resolved."""
    batch_size: PositiveInt = 8
    """Sequences per optimiser step, over all processes and accumulated parts together."""
    accumulation: PositiveInt = 1
    """Number of parts into which each process cuts its share of the batch, to compute them one after another."""
    learning_rate: PositiveFloat = 3e-4
    min_learning_rate: NonNegativeFloat = 0.0
    warmup_steps: NonNegativeInt = 100
    """Number of steps over which the rate rises; unused if `warmup_fraction` is set."""
    warmup_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the schedule over which the rate rises, rounded down to whole steps, instead of `warmup_steps`."""
    warmup_from_zero: bool = False
    """Give the first step the rate 0, as the schedules of transformers do. By default it has one step's share."""
    schedule_over: Literal["steps", "parts"] = "steps"
    """What the length of the schedule counts. "parts" counts every part of an accumulated batch, although the rate
    changes once per step: with `accumulation` 2 the warm-up takes twice as long and the decay stops half-way. The
    published training program does this."""
    decay: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """How the rate falls after the warm-up. "wsd" (warm-up, stable, decay) keeps the full rate and falls linearly over
    the last `decay_fraction` of the steps, so that shorter runs can branch off a longer one."""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the steps over which "wsd" decays."""
    branch_at: NoEffect[tuple[PositiveInt, ...]] = ()
    """Steps after which a "wsd" run keeps its checkpoint for shorter runs to branch off. A study fills it in."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    grad_clip: NonNegativeFloat = 1.0
    """Maximum norm of the gradient; 0: no limit."""
    eval_every: PositiveInt | Literal["epoch"] = 250
    """Number of steps between two evaluations on validation; "epoch": evaluate at the end of each epoch."""
    eval_tokens: PositiveInt | None = 65_536
    """Number of validation tokens used during training; None: all. The last evaluation always uses all."""
    precision: Precision = "fp32"
    """Number format of matrix products; weights and moments are always float32. "auto" becomes bf16 where the device
    has it natively (a GPU, or a CPU with avx512_bf16 or AMX), else fp32, when the run is resolved."""
    chose_precision: NoEffect[bool] = False
    """Whether `precision` was declared as "auto". Resolving the run fills it in; leave it out."""
    tf32: bool = True
    """Whether fp32 products may use TensorFloat-32 on a GPU: several times faster, 10 instead of 23 bits."""
    compiled: bool = False
    """Train through torch.compile. The first step takes minutes, and results differ in the last bits."""
    device: Literal["cpu", "cuda"] = "cpu"
    threads: PositiveInt = 1
    """Number of CPU threads. It belongs to the identity of the run, because floating-point sums depend on it."""
    processes: PositiveInt = 1
    """Number of data-parallel processes (torchrun)."""
    checkpoint_every: NoEffect[PositiveInt] = 500
    track: NoEffect[TrackerName | None] = None
    """Experiment tracker that gets the curve as well (an extra of the same name)."""

    @model_validator(mode="before")
    @classmethod
    def _read_older_records(cls, fields: Any) -> Any:
        """Read the field `tensorboard` of records from before there were other trackers."""
        if not isinstance(fields, Mapping) or "tensorboard" not in fields:
            return fields
        rest = {name: value for name, value in fields.items() if name != "tensorboard"}
        return {**rest, "track": "tensorboard"} if fields["tensorboard"] is True else rest

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate={self.min_learning_rate} is above learning_rate={self.learning_rate}")
        if self.decay != "wsd" and (self.decay_fraction != type(self).model_fields["decay_fraction"].default):
            raise ValueError(f"decay_fraction={self.decay_fraction} has no effect with decay={self.decay!r}: use 'wsd'")
        if late := [step for step in self.branch_at if self.decay != "wsd" or step > self.decay_start]:
            raise ValueError(f"branch_at={late} is not in the stable phase of a 'wsd' run")
        if self.schedule_over == "parts" and self.decay == "wsd":
            raise ValueError("schedule_over='parts' stops the decay early, and 'wsd' decays to its end: use another")
        parts = self.accumulation * self.processes
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size={self.batch_size} does not divide into {self.processes} processes "
                f"x {self.accumulation} parts; use a multiple of {parts}"
            )
        return self

    @property
    def schedule_steps(self) -> int:
        """Number of steps after which the schedule would end."""
        return self.steps * (self.accumulation if self.schedule_over == "parts" else 1)

    @property
    def warmup(self) -> int:
        """Number of steps over which the rate rises."""
        if self.warmup_fraction is None:
            return self.warmup_steps
        return int(self.warmup_fraction * self.schedule_steps)

    @property
    def decay_start(self) -> int:
        """Number of steps of a "wsd" run before its decay: the warm-up and the stable phase."""
        return self.steps - max(1, round(self.decay_fraction * self.steps))


_SLACK = 1e-9
"""An epoch of text need not be a whole number of steps, and rounding must not lose or add one."""


def steps_of(epochs: float, per_epoch: float) -> int:
    """Return the number of steps in `epochs` epochs."""
    return max(1, math.ceil(epochs * per_epoch - _SLACK))


def epochs_ended(step: int, per_epoch: float) -> int:
    """Return the number of epochs that have ended by a step."""
    return math.floor(step / per_epoch + _SLACK)
