"""The training loop, read top to bottom.

A step is a pure function of the weights, the moments and the step's number: its batch, its dropout, its learning
rate and what of the model is frozen all follow from (seed, step). So a run that is stopped anywhere and resumed
from its checkpoint ends with the bits of one that never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from oelm.errors import Diverged
from oelm.spec.epochs import epochs_ended
from oelm.spec.seeds import derived_seed
from oelm.spec.train import TrainSpec
from oelm.train.checkpoint import Checkpoint, Checkpoints, branch_name
from oelm.train.distributed import World
from oelm.train.evaluate import Measured
from oelm.train.optimizer import Optimizer
from oelm.train.precision import autocast
from oelm.train.schedule import learning_rate
from oelm.train.signals import StopWish

DIVERGED_STEPS = 100
"""So many steps in a row with a loss above the first one's, plus a nat, and the run is given up."""


class Task(Protocol):
    """What is learned: batches, and what validation says."""

    @property
    def units_per_step(self) -> int:
        """Tokens of one step, on the average."""

    @property
    def steps_per_epoch(self) -> float:
        """How many steps see all training data once."""

    def batch(self, step: int, rows: slice) -> tuple[Tensor, ...]:
        """Return the inputs for some rows of a step's batch."""

    def module(self, model: nn.Module) -> nn.Module:
        """Return what is called with a batch and returns the mean loss: the model, or something that holds it."""

    def validate(self, model: nn.Module) -> Measured:
        """Measure the fixed part of the validation split."""


class Freezing(Protocol):
    """What the loop asks of a freezing schedule."""

    def advance(self, step: int) -> bool:
        """Freeze and unfreeze as a step asks; return whether what trains has changed."""

    def save(self) -> dict[str, Any]:
        """Return what `restore` needs, as JSON data."""

    def restore(self, step: int, saved: dict[str, Any] | None) -> None:
        """Bring back the state that stood during a step."""


class Observer(Protocol):
    """Who watches: metrics for the record, a line for people."""

    def trained(self, progress: Progress, loss: float, rate: float) -> None:
        """Take note of the mean loss since the last call."""

    def validated(self, progress: Progress, measured: Measured) -> None:
        """Take note of what validation says."""

    def said(self, sentence: str) -> None:
        """Tell a person something."""


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint is written."""


@dataclass
class Progress:
    """Where a run is: all of it goes into the checkpoint."""

    step: int = 0
    first_loss: float = math.nan
    best_loss: float = math.inf
    best_accuracy: float | None = None
    best_step: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    bad_steps: int = 0
    train_seconds: float = 0.0
    processor_seconds: float = 0.0
    """Processor time of this process in training steps: what a step costs even if other programs are running."""
    validation_seconds: list[float] = field(default_factory=list)
    checkpoint_seconds: float = 0.0
    wall_seconds: float = 0.0
    """Of the whole run up to its last checkpoint, over all sessions: a killed one leaves no other trace of its time."""
    peak_memory: int = 0
    """The most bytes held before the last checkpoint, in any session: one that only measures needs far fewer."""
    step_seconds: list[float] = field(default_factory=list)


@dataclass
class Training:
    """One training: everything the loop touches."""

    model: nn.Module
    task: Task
    spec: TrainSpec
    seed: int
    optimizer: Optimizer
    freezing: Freezing
    checkpoints: Checkpoints
    world: World
    observer: Observer
    stop: StopWish
    clock: Callable[[], float]
    """Wall seconds of the run so far, over all its sessions."""
    memory: Callable[[], int]
    """The most bytes held so far in this session."""
    progress: Progress = field(default_factory=Progress)

    def run(self) -> None:
        """Train from where `progress` is to the last step.

        Raises:
            Interrupted: the run was asked to stop and has saved itself.
            Diverged: the loss is not finite, or has stayed above where it began.

        """
        spec, progress = self.spec, self.progress
        log_every = max(1, min(100, spec.steps // 100))
        self.model.train()
        wrapped = self._wrapped()
        while progress.step < spec.steps:
            if self.freezing.advance(progress.step):
                self.optimizer.follow_freezing()
                wrapped = self._wrapped()
            loss = self._timed_step(wrapped)
            self._refuse_divergence(loss)
            done = progress.step == spec.steps
            if progress.step % log_every == 0 or done:
                self._log()
            if self._is_time_to_validate() or done:
                self._validate()
            stop = self.world.any(flag=bool(self.stop))
            if progress.step % spec.checkpoint_every == 0 or done or stop:
                self.save()
            if progress.step in spec.branch_at:
                self.save(branch_name(progress.step))
            if stop and not done:
                raise Interrupted(f"stopped by {self.stop.asked or 'another process'} after step {progress.step}")

    def save(self, name: str | None = None) -> None:
        """Write the checkpoint of this moment: as the latest one, or under a name to keep it."""
        began = time.perf_counter()
        self.progress.wall_seconds = self.clock()
        self.progress.peak_memory = max(self.progress.peak_memory, self.memory())
        if self.world.leads:
            moments, scaler = self.optimizer.state()
            times = torch.tensor(self.progress.step_seconds, dtype=torch.float64)
            state = self._state() | {"scaler": scaler}
            training = {**moments, "step_seconds": times}
            if name is None:
                self.checkpoints.save(self.model, training, state)
            else:
                self.checkpoints.write(name, self.model, state, training)
        self.world.barrier()
        self.progress.checkpoint_seconds += time.perf_counter() - began

    def _state(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self.progress).items() if name != "step_seconds"}
        return {"progress": plain, "freezing": self.freezing.save()}

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint whose weights are in the model already."""
        tensors = dict(checkpoint.training)
        times = tensors.pop("step_seconds").tolist()
        self.progress = Progress(**checkpoint.state["progress"], step_seconds=times)
        self.freezing.restore(self.progress.step - 1, checkpoint.state["freezing"])
        self.optimizer.follow_freezing()
        self.optimizer.load_state(tensors, checkpoint.state["scaler"])

    def _wrapped(self) -> nn.Module:
        wrapped = self.world.wrap(self.task.module(self.model))
        return torch.compile(wrapped) if self.spec.compiled else wrapped  # type: ignore[return-value]

    def _timed_step(self, wrapped: nn.Module) -> float:
        self._synchronise()
        began, worked = time.perf_counter(), time.process_time()
        loss = self._step(wrapped)
        self._synchronise()
        seconds = time.perf_counter() - began
        progress = self.progress
        progress.processor_seconds += time.process_time() - worked
        progress.step += 1
        progress.train_seconds += seconds
        progress.step_seconds.append(seconds)
        progress.loss_sum += loss
        progress.loss_count += 1
        return loss

    def _step(self, wrapped: nn.Module) -> float:
        spec, step, world = self.spec, self.progress.step, self.world
        total = torch.zeros((), device=world.device)
        for part in range(spec.accumulation):
            torch.manual_seed(derived_seed(self.seed, "dropout", step, world.rank, part))
            inputs = self.task.batch(step, world.rows(spec.batch_size, part, spec.accumulation))
            with world.accumulating(wrapped, last=part == spec.accumulation - 1):
                with autocast(world.device, spec.precision):
                    loss = wrapped(*(tensor.to(world.device) for tensor in inputs)) / spec.accumulation
                self.optimizer.backward(loss)
            total += loss.detach()
        self.optimizer.step(learning_rate(spec, step))
        return world.mean(total).item()

    def _log(self) -> None:
        progress = self.progress
        mean = progress.loss_sum / progress.loss_count
        progress.loss_sum, progress.loss_count = 0.0, 0
        self.observer.trained(progress, mean, learning_rate(self.spec, progress.step - 1))

    def _is_time_to_validate(self) -> bool:
        step, every = self.progress.step, self.spec.eval_every
        if every == "epoch":
            ended, before = (epochs_ended(at, self.task.steps_per_epoch) for at in (step, step - 1))
            return ended > before
        return step % every == 0

    def _validate(self) -> None:
        began = time.perf_counter()
        measured = self.task.validate(self.model)
        progress = self.progress
        progress.validation_seconds.append(time.perf_counter() - began)
        is_best = measured.is_better_than(Measured(progress.best_loss, progress.best_accuracy))
        if is_best:
            progress.best_loss, progress.best_accuracy = measured.loss, measured.accuracy
            progress.best_step = progress.step
        self.observer.validated(progress, measured)
        if is_best and self.world.leads:
            began = time.perf_counter()
            self.checkpoints.save_best(self.model, self._state())
            progress.checkpoint_seconds += time.perf_counter() - began

    def _refuse_divergence(self, loss: float) -> None:
        progress = self.progress
        if not math.isfinite(loss):
            raise Diverged(
                f"the loss of step {progress.step} is {loss}. Lower train.learning_rate "
                f"({self.spec.learning_rate}), lengthen train.warmup_steps ({self.spec.warmup_steps}) or "
                "use train.precision=fp32."
            )
        if math.isnan(progress.first_loss):
            progress.first_loss = loss
        progress.bad_steps = progress.bad_steps + 1 if loss > progress.first_loss + 1 else 0
        if progress.bad_steps >= DIVERGED_STEPS:
            raise Diverged(
                f"the run diverged: for {DIVERGED_STEPS} steps up to {progress.step} the loss was more than "
                f"a nat above its first value {progress.first_loss:.3f}. Lower train.learning_rate."
            )

    def _synchronise(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()
