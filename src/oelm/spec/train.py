"""Training as a value."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from oelm.spec.base import NoEffect, Spec

Precision = Literal["fp32", "bf16", "fp16", "auto"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainSpec(Spec):
    """AdamW with warm-up and decay; how often to look; what the machine does."""

    steps: PositiveInt = 1000
    epochs: PositiveFloat | None = None
    """How often to see the training data, instead of `steps`, which are then derived when a run is bound to them."""
    batch_size: PositiveInt = 8
    """Sequences per optimiser step, over all processes and accumulated parts together."""
    accumulation: PositiveInt = 1
    """Into how many parts, one after another, each process cuts its share of the batch."""
    learning_rate: PositiveFloat = 3e-4
    min_learning_rate: NonNegativeFloat = 0.0
    warmup_steps: NonNegativeInt = 100
    decay: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """How the rate falls after the warm-up. "wsd" (warm-up, stable, decay) keeps the full rate and falls linearly over
    the last `decay_fraction` of the steps, so that shorter runs can branch off a longer one."""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Part of the steps over which "wsd" decays."""
    branch_at: NoEffect[tuple[PositiveInt, ...]] = ()
    """Steps after which a "wsd" run keeps its checkpoint for shorter runs to branch off. A study fills it in."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    grad_clip: NonNegativeFloat = 1.0
    """The largest norm of the gradient; 0: no limit."""
    eval_every: PositiveInt | Literal["epoch"] = 250
    """So many steps lie between two looks at validation; "epoch": look at the end of each."""
    eval_tokens: PositiveInt | None = 65_536
    """How much of the validation split is looked at along the way (None: all of it); at the end it is all of it."""
    precision: Precision = "fp32"
    """Number format of matrix products; weights and moments are always float32. "auto" becomes bf16 where the device
    has it natively (a GPU, or a CPU with avx512_bf16 or AMX), else fp32, when the run is bound to its data."""
    chose_precision: NoEffect[bool] = False
    """Whether `precision` was "auto" when the run was declared. It is filled in together with it: leave it out."""
    tf32: bool = True
    """Whether fp32 products may use TensorFloat-32 on a GPU: several times faster, 10 instead of 23 bits."""
    compiled: bool = False
    """Train through torch.compile: minutes before the first step, and other bits."""
    device: Literal["cpu", "cuda"] = "cpu"
    threads: PositiveInt = 1
    """CPU threads: they belong to the run, because sums depend on them."""
    processes: PositiveInt = 1
    """Data-parallel processes (torchrun's)."""
    checkpoint_every: NoEffect[PositiveInt] = 500
    tensorboard: NoEffect[bool] = False
    """Write TensorBoard event files beside the curve (extra `tensorboard`)."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate={self.min_learning_rate} is above learning_rate={self.learning_rate}")
        if self.decay != "wsd" and (self.decay_fraction != type(self).model_fields["decay_fraction"].default):
            raise ValueError(f"decay_fraction={self.decay_fraction} has no effect with decay={self.decay!r}: use 'wsd'")
        if late := [step for step in self.branch_at if self.decay != "wsd" or step > self.decay_start]:
            raise ValueError(f"branch_at={late} is not in the stable phase of a 'wsd' run")
        parts = self.accumulation * self.processes
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size={self.batch_size} does not divide into {self.processes} processes "
                f"x {self.accumulation} parts; take a multiple of {parts}"
            )
        return self

    @property
    def decay_start(self) -> int:
        """How many steps a "wsd" run has before its decay: the warm-up and the stable phase."""
        return self.steps - max(1, round(self.decay_fraction * self.steps))
