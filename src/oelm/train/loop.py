"""The training loop and its optimiser, read top to bottom.

A step is a pure function of the weights, the moments and the number of the step: its batch, dropout, learning rate and
frozen tensors all follow from (seed, step). So a run that is stopped anywhere and resumed from its checkpoint ends with
the same bits as a run that never stopped.

The optimiser is AdamW over the trained parameters, grouped by their learning-rate multiplier. Frozen parameters are in
no group and have no moments: freezing deletes the moments, and unfreezing starts with new ones. (If Q and K are updated
every N steps, they keep their moments between updates.) Moments are saved and loaded by parameter name.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from oelm.errors import Diverged
from oelm.spec.run import Precision, TrainSpec, derived_seed, epochs_ended
from oelm.train.checkpoint import Checkpoint, Checkpoints, branch_name
from oelm.train.device import World, autocast, scaler


@dataclass(frozen=True)
class HeadAttention:
    """The attention of every head, by layer and head."""

    entropy: list[list[float]]
    """Mean entropy of the weights, in nats."""
    distance: list[list[float]]
    """Mean distance to the tokens that are attended to."""


@dataclass(frozen=True)
class Measured:
    """The result of an evaluation: mean loss in nats per token or labelled text, and what else the task measures."""

    loss: float
    accuracy: float | None = None
    macro_f1: float | None = None
    attention: HeadAttention | None = None

    def is_better_than(self, other: Measured) -> bool:
        """Compare accuracies, and losses if the accuracies are equal or absent."""
        mine, its = (-math.inf if each.accuracy is None else each.accuracy for each in (self, other))
        return mine > its or (mine == its and self.loss < other.loss)


@torch.no_grad()
def mean_loss(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, precision: Precision = "fp32"
) -> float:
    """Return the mean loss per predicted token, in nats, over batches of inputs and targets."""
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    try:
        for ids_BT, targets_BT in batches:
            with autocast(device, precision):
                loss = model(ids_BT.to(device), targets_BT.to(device))
            total += loss.item() * ids_BT.numel()
            count += ids_BT.numel()
    finally:
        model.train(was_training)
    return total / count


class StopNow(BaseException):
    """A signal has ended a block that can be done again. Like KeyboardInterrupt, it is not caught as an error."""


class StopRequest:
    """Whether a signal has requested the run to stop. It stops after the current step, or within a long one."""

    def __init__(self) -> None:
        self.signal: str | None = None
        self.since = 0.0
        """When the first signal came, by the steady clock."""
        self._may_break = False

    def __bool__(self) -> bool:
        return self.signal is not None

    @contextmanager
    def breaks(self) -> Iterator[None]:
        """End the block with StopNow as soon as a stop is requested. The block must change nothing that is kept."""
        self._may_break = True
        try:
            if self:
                raise StopNow
            yield
        finally:
            self._may_break = False

    def receive(self, name: str) -> None:
        """Note a signal; raise StopNow inside a block that may break."""
        if self.signal is None:
            self.signal, self.since = name, time.monotonic()
        if self._may_break:
            self._may_break = False
            raise StopNow


PATIENCE_SECONDS = 120.0
"""For so long a process that was asked to stop is left to save its state. Slurm kills after 30 seconds by default."""


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Turn SIGINT, SIGTERM or SIGHUP into a request to stop; Ctrl-C after that interrupts at once.

    SIGTERM and SIGHUP that are repeated soon change nothing, because Slurm and runners may send them twice. One that is
    repeated after `PATIENCE_SECONDS` interrupts at once: the process may hang in a call of the system that is
    interrupted again and again, which Python repeats for as long as no signal handler raises. Ignored signals stay
    ignored: under nohup, a run continues when its terminal closes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread only
        yield request
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if request and (number == signal.SIGINT or time.monotonic() - request.since > PATIENCE_SECONDS):
            raise KeyboardInterrupt
        request.receive(signal.Signals(number).name)

    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        self._clip()
        for group in self.adam.param_groups:
            group["lr"] = learning_rate * group["factor"]
        self.scaler.step(self.adam)
        self.scaler.update()
        self.adam.zero_grad(set_to_none=True)

    def _clip(self) -> None:
        trained = [p for group in self.adam.param_groups for p in group["params"]]
        norm = nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
        # Within the limit torch would multiply every gradient by 1. Reading the norm would make a GPU wait.
        if norm.device.type != "cpu" or not norm + 1e-6 <= self.clip:
            nn.utils.clip_grads_with_norm_(trained, self.clip, norm)

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


DIVERGED_STEPS = 100
"""A run has diverged after this many steps in a row with a loss more than 1 nat above that of the first step."""


class TrainingTask(Protocol):
    """The part of a task that training needs. `oelm.tasks.Task` is the whole."""

    @property
    def units_per_step(self) -> int:
        """Tokens of a step, on average."""

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps that see all training data once."""

    def batch(self, step: int, rows: slice) -> tuple[Tensor, ...]:
        """Return the inputs for some rows of a step's batch."""

    def module(self, model: nn.Module) -> nn.Module:
        """Return the module that maps a batch to its mean loss: the model, or a wrapper of it."""

    def validate(self, model: nn.Module) -> Measured | None:
        """Measure the fixed part of the validation split; None if the data have none."""


class Freezing(Protocol):
    """The freezing schedule as the loop uses it."""

    def advance(self, step: int) -> bool:
        """Freeze and unfreeze for a step; return whether the set of trained tensors has changed."""

    def save(self) -> dict[str, Any]:
        """Return the state for `restore`, as JSON data."""

    def restore(self, step: int, saved: dict[str, Any] | None) -> None:
        """Restore the state during a step."""


class Observer(Protocol):
    """A listener that writes metrics and shows progress."""

    def trained(self, progress: TrainingState, loss: float, rate: float) -> None:
        """Receive the mean loss since the last call."""

    def validating(self, progress: TrainingState) -> None:
        """Hear that a validation begins."""

    def validated(self, progress: TrainingState, measured: Measured) -> None:
        """Receive the result of a validation."""

    def said(self, sentence: str) -> None:
        """Show a sentence to the user."""


class Interrupted(Exception):
    """The run was stopped by a signal, after writing its checkpoint."""


@dataclass
class TrainingState:
    """The progress of a run, which is saved in its checkpoints."""

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
    """CPU time of this process in training steps; unlike wall time, other programs hardly change it."""
    validation_seconds: list[float] = field(default_factory=list)
    checkpoint_seconds: float = 0.0
    wall_seconds: float = 0.0
    """Wall time of the run over all sessions up to its last checkpoint, because a killed session leaves no record."""
    peak_memory: int = 0
    """Peak memory in bytes before the last checkpoint, over all sessions; a session that only evaluates needs less."""
    step_seconds: list[float] = field(default_factory=list)
    owes_validation: bool = False
    """Whether a signal has ended the validation after `step`, so that a resumed run begins with it."""


@dataclass
class Training:
    """One training, with everything that the loop uses."""

    model: nn.Module
    task: TrainingTask
    spec: TrainSpec
    seed: int
    optimizer: Optimizer
    freezing: Freezing
    checkpoints: Checkpoints
    world: World
    observer: Observer
    stop: StopRequest
    clock: Callable[[], float]
    """Return the wall time of the run so far, over all sessions."""
    memory: Callable[[], int]
    """Return the peak memory of this session in bytes."""
    progress: TrainingState = field(default_factory=TrainingState)

    def run(self) -> None:
        """Train from the current step to the last.

        Raises:
            Interrupted: a signal stopped the run, and its checkpoint is written.
            Diverged: the loss is not finite, or has stayed above its first value.

        """
        spec, progress = self.spec, self.progress
        log_every = max(1, min(100, spec.steps // 100))
        self.model.train()
        wrapped = self._wrap()
        hooks = self._hook_gradients()
        try:
            if progress.owes_validation:
                self._follow_step()
            while progress.step < spec.steps:
                changed = self.freezing.advance(progress.step)
                if changed:
                    self.optimizer.follow_freezing()
                    wrapped = self._wrap()
                # What is frozen has changed for this step already, so this step has to be done.
                loss = self._time_step(wrapped, may_break=not changed)
                self._refuse_divergence(loss)
                if progress.step % log_every == 0 or progress.step == spec.steps:
                    self._log()
                progress.owes_validation = self._is_time_to_validate() or progress.step == spec.steps
                self._follow_step()
        except StopNow:
            if progress.step:  # before the first step there is nothing to save
                self.save()
            raise self._interruption() from None
        finally:
            for hook in hooks:
                hook.remove()

    def _hook_gradients(self) -> list[RemovableHandle]:
        """Let Python run after each gradient: no signal is handled during a call, and a backward pass is one call."""
        if self.world.size > 1 or self.spec.compiled:
            return []
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return [each.register_post_accumulate_grad_hook(lambda _: None) for each in trained]  # type: ignore[no-untyped-call]

    def _follow_step(self) -> None:
        """Validate and save after a step, where it is time to."""
        spec, progress = self.spec, self.progress
        done = progress.step == spec.steps
        if progress.owes_validation:
            self._validate()
            progress.owes_validation = False
        stop = self.world.any(flag=bool(self.stop))
        if progress.step % spec.checkpoint_every == 0 or done or stop:
            self.save()
        if progress.step in spec.branch_at:
            self.save(branch_name(progress.step))
        if stop and not done:
            raise self._interruption()

    def _interruption(self) -> Interrupted:
        return Interrupted(f"stopped by {self.stop.signal or 'another process'} after step {self.progress.step}")

    def save(self, name: str | None = None) -> None:
        """Write a checkpoint: as the latest one, or under a name to keep it."""
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
        """Continue from a checkpoint whose weights have been loaded into the model."""
        tensors = dict(checkpoint.training)
        times = tensors.pop("step_seconds").tolist()
        self.progress = TrainingState(**checkpoint.state["progress"], step_seconds=times)
        self.freezing.restore(self.progress.step - 1, checkpoint.state["freezing"])
        self.optimizer.follow_freezing()
        self.optimizer.load_state(tensors, checkpoint.state["scaler"])

    def _wrap(self) -> nn.Module:
        wrapped = self.world.wrap(self.task.module(self.model))
        return torch.compile(wrapped) if self.spec.compiled else wrapped  # type: ignore[return-value]

    def breaks(self, *, allowed: bool = True) -> AbstractContextManager[None]:
        """Let a signal end a block at once. Of several processes none can leave alone: the others would wait for it."""
        return self.stop.breaks() if allowed and self.world.size == 1 else nullcontext()

    def _time_step(self, wrapped: nn.Module, *, may_break: bool) -> float:
        self._synchronise()
        began, worked = time.perf_counter(), time.process_time()
        with self.breaks(allowed=may_break):
            total = self._gradients(wrapped)
        self.optimizer.step(learning_rate(self.spec, self.progress.step))
        loss = self.world.mean(total).item()
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

    def _gradients(self, wrapped: nn.Module) -> Tensor:
        """Compute the gradients of a step, and its loss on this process. No weight changes."""
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
        return total

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
        self.observer.validating(self.progress)
        with self.breaks():
            measured = self.task.validate(self.model)
        if measured is None:
            return
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
                f"The loss of step {progress.step} is {loss}. Lower train.learning_rate "
                f"({self.spec.learning_rate}), lengthen the warm-up ({self.spec.warmup} steps) or "
                "use train.precision=fp32."
            )
        if math.isnan(progress.first_loss):
            progress.first_loss = loss
        progress.bad_steps = progress.bad_steps + 1 if loss > progress.first_loss + 1 else 0
        if progress.bad_steps >= DIVERGED_STEPS:
            raise Diverged(
                f"The run diverged: for {DIVERGED_STEPS} steps up to step {progress.step} the loss was more than 1 nat "
                f"above its first value {progress.first_loss:.3f}. Lower train.learning_rate."
            )

    def _synchronise(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()
