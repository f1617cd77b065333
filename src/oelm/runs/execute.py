"""Carry out one run, from its spec to its record: the one module that sees every stage.

`execute` is the entry point, at the end; before it come the record in progress, the branch point, the observer and the
measurements at the end of training.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import torch
from pydantic import ValidationError
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar
from safetensors import SafetensorError
from torch import nn

from oelm.console import Console
from oelm.errors import CheckpointError, Diverged, NotCarriedOut, RunFailed, UsageError, is_out_of_memory
from oelm.files import UNWRITABLE
from oelm.interop.trackers import Tracker, refuse_missing
from oelm.method.freeze import multipliers
from oelm.models import apply as surgery
from oelm.models.flops import Cost, training_cost
from oelm.record.folder import CHECKPOINTS, AttentionRecord, RunFolder
from oelm.record.record import (
    BranchRecord,
    CostRecord,
    DataRecord,
    Failure,
    InitMethod,
    MetricRecord,
    ParametersRecord,
    ResultRecord,
    RunRecord,
    SecondsRecord,
    Status,
    TimingRecord,
    command_line,
    describe_environment,
    perplexity,
    timing_stats,
    utc_now,
)
from oelm.runs.lock import Lock, hold_lock
from oelm.runs.resolve import refuse_changed_model, refuse_too_large, warn_of_memory, warn_of_vocabulary
from oelm.spec.run import ContinueSpec, GPTSpec, Precision, RunSpec, branches_off, epochs_ended, fingerprint
from oelm.tasks import Data, Task, make_task
from oelm.train.checkpoint import Checkpoint, Checkpoints, branch_name, load_into, read_checkpoint
from oelm.train.device import World, allow_tf32, autocast, keep_large_blocks, peak_resident_bytes, processes, world
from oelm.train.loop import (
    Interrupted,
    Measured,
    Observer,
    Optimizer,
    StopNow,
    StopRequest,
    Training,
    TrainingState,
    catch_signals,
    warn_of_rising_rate,
)


@dataclass
class Recorder:
    """The record of a run in progress. It is rewritten at each stage, so that there always is one."""

    run: RunSpec
    folder: RunFolder
    world: World
    progress: TrainingState = field(default_factory=TrainingState)
    parameters: ParametersRecord | None = None
    cost: CostRecord | None = None
    data: DataRecord | None = None
    branched_from: BranchRecord | None = None
    frozen_hashes: dict[str, str] = field(default_factory=dict)
    result: ResultRecord | None = None
    damage: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._began = time.perf_counter()
        device = torch.cuda.get_device_name() if self.world.device.type == "cuda" else "cpu"
        command = command_line(sys.orig_argv, self.folder.path)
        self._environment = describe_environment(device, torch.__version__, command)
        self._earlier_seconds = 0.0
        self._started = utc_now()
        if self.folder.has_record():
            before = self.folder.read_record()
            if before.status != "complete" or self.folder.checkpoints.is_dir():  # else it is trained again
                self._started = before.started
                self._earlier_seconds = before.seconds.total if before.seconds else 0.0
                self.damage = before.damage
                if before.branched_from:
                    self.branched_from = before.branched_from

    def wall_seconds(self) -> float:
        """Return the wall time of the run so far, over all its sessions."""
        return self._earlier_seconds + time.perf_counter() - self._began

    def follow(self, progress: TrainingState) -> None:
        """Take over the progress of the training, with the time of earlier sessions that were killed."""
        self.progress = progress
        self._earlier_seconds = max(self._earlier_seconds, progress.wall_seconds)

    def write(self, status: Status, error: str | None = None, failure: Failure | None = None) -> RunRecord:
        """Write the record as it is now; only the leading process does."""
        progress = self.progress
        record = RunRecord(
            fingerprint=fingerprint(self.run),
            status=status,
            spec=self.run,
            environment=self._environment,
            started=self._started,
            finished=None if status == "running" else utc_now(),
            step=progress.step,
            failure=failure,
            error=error,
            seconds=SecondsRecord(
                total=self.wall_seconds(),
                train=progress.train_seconds,
                processor=progress.processor_seconds,
                validation=sum(progress.validation_seconds),
                checkpoint=progress.checkpoint_seconds,
                timed_steps=len(progress.step_seconds),
            ),
            parameters=self.parameters,
            cost=self.cost,
            data=self.data,
            branched_from=self.branched_from,
            frozen_hashes=self.frozen_hashes,
            result=self.result,
            damage=self.damage,
            files={} if status == "running" or not self.world.leads else self.folder.hash_files(),
        )
        if self.world.leads:
            self.folder.write_record(record)
        return record

    @contextmanager
    def whatever_happens(self) -> Iterator[None]:
        """Write how the block ended, if it did not end well.

        Once another process has taken over the run, writing raises RunLocked, whatever the block raised.
        """
        try:
            yield
        except Interrupted as stopped:
            self.write("interrupted", error=str(stopped))
            raise
        except KeyboardInterrupt:
            self.write("interrupted", error="interrupted at once, before the current step was done")
            raise
        except BaseException as error:
            with suppress(OSError):  # on a full disk the record of the failure fails, too; the error itself goes on
                self.write("failed", error=traceback.format_exc(), failure=_kind_of(error))
            raise


def _kind_of(error: BaseException) -> Failure:
    if isinstance(error, Diverged):
        return "diverged"
    return "out-of-memory" if is_out_of_memory(error) else "error"


@dataclass(frozen=True)
class Trunk:
    """A longer run, and its checkpoint at which a shorter one branches off."""

    folder: RunFolder
    checkpoint: Checkpoint
    record: BranchRecord


def find_branch(run: RunSpec, directory: Path) -> Trunk | None:
    """Find a checkpoint of a longer warm-up-stable-decay run, taken where the decay of this one begins.

    Up to that step both runs are the same run, because a step depends on weights, moments and its own number only. So
    the branch ends with the bits of a run from scratch and has the same fingerprint. The folders next to the run's own
    are searched. Damaged checkpoints and those of other settings are skipped: the run then trains from scratch.
    """
    if run.train.decay != "wsd":
        return None
    step = run.train.decay_start
    for place in sorted(directory.parent.glob(f"*/{CHECKPOINTS}/{branch_name(step)}")):
        try:
            checkpoint = read_checkpoint(place)
            trunk = RunSpec.model_validate(checkpoint.state["spec"])
        except (CheckpointError, ValidationError):
            continue
        if branches_off(run, trunk) and checkpoint.state["progress"]["step"] == step:
            record = BranchRecord(fingerprint=checkpoint.state["fingerprint"], step=step)
            return Trunk(RunFolder(place.parents[1]), checkpoint, record)
    return None


def continue_run(folder: Path, more_steps: int) -> RunSpec:
    """Return the run that continues a finished or interrupted one from its last checkpoint, for some more steps.

    It is a run of its own, with its own fingerprint and folder. Steps are counted on, so it sees the data that follow,
    and the learning rate is that of a run of the whole length at each step.

    Raises:
        CheckpointError: there is no checkpoint.
        NotCarriedOut: the schedule of the method is in fractions of training, which a longer run would change.

    """
    checkpoint = _last_checkpoint(folder)
    run, step = RunSpec.model_validate(checkpoint.state["spec"]), checkpoint.state["progress"]["step"]
    if any(isinstance(event, float) for event in run.method.schedule.moments):
        raise NotCarriedOut(
            f"The method {run.arm!r} changes what trains at fractions of training, so a longer run would have another "
            "past. Train a new run of the whole length."
        )
    train = run.train.model_copy(update={"steps": step + more_steps, "epochs": None, "branch_at": ()})
    continues = ContinueSpec(fingerprint=checkpoint.state["fingerprint"], step=step, folder=folder)
    return run.model_copy(update={"train": train, "continues": continues})


def _last_checkpoint(folder: Path) -> Checkpoint:
    try:
        return read_checkpoint(RunFolder(folder).checkpoints / "latest")
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no checkpoint to continue from. Give the folder of a run that has saved one."
        ) from None


def _find_start(run: RunSpec, directory: Path) -> Trunk | None:
    """Find the checkpoint of another run that a run starts with, if it does."""
    asked = run.continues
    if asked is None:
        return find_branch(run, directory)
    if asked.folder is None:
        raise CheckpointError("The run continues another one, but its folder is not known. Set continues.folder.")
    checkpoint = _last_checkpoint(asked.folder)
    found = (checkpoint.state["fingerprint"], checkpoint.state["progress"]["step"])
    if found != (asked.fingerprint, asked.step):
        raise CheckpointError(
            f"The run continues {asked.fingerprint} after step {asked.step}, but {asked.folder} has {found[0]} after "
            f"step {found[1]}. Restore that folder."
        )
    return Trunk(RunFolder(asked.folder), checkpoint, BranchRecord(fingerprint=asked.fingerprint, step=asked.step))


def peak_memory(device: torch.device) -> int:
    """Return the peak memory of this process on its device, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes()


def matmul_peak(device: torch.device, precision: Precision) -> float:
    """Measure the FLOPs per second of a large matrix product: an upper bound for a training step."""
    size = 4096 if device.type == "cuda" else 768
    x = torch.randn(size, size, device=device)
    times = []
    with torch.no_grad(), autocast(device, precision):
        for _ in range(5):
            began = time.perf_counter()
            y = x @ x
            y[0, 0].item()  # waits for the device
            times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times)


PLAIN_LINE_SECONDS = 2.0
"""The shortest time between two printed lines where there is no terminal."""
SILENCE_SECONDS = 8.0
"""After this time without a line, one says what the run is doing."""
TRAINING, VALIDATING = "training", "validating"
WHOLE_VAL, WHOLE_TEST = "evaluating the whole validation split", "evaluating the whole test split"
FORWARD_SHARE = 1 / 3
"""The share of a training step that its forward pass takes, about: the backward pass has twice its products."""


class RunObserver:
    """Writes metrics, attention and the log of a run, and shows its progress.

    A terminal shows one live line at the bottom; elsewhere plain lines are printed. `training.log` has the wording of
    the published study where that printed the same.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: RunSpec,
        units_per_step: int,
        *,
        reports_perplexity: bool = True,
        resumed_at: int = 0,
        saved_lines: Mapping[str, int] | None = None,
        quiet: bool = False,
        leads: bool = True,
    ) -> None:
        self.spec, self.units, self.reports_perplexity = run.train, units_per_step, reports_perplexity
        self.console = Console(quiet=quiet or not leads, soft_wrap=True)
        self._bar: Bar | None = None
        self._tracker: Tracker | None = None
        self._folder, self._leads = folder, leads
        self._printed = time.monotonic()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True, name="progress")
        self._state = TrainingState()
        self._doing, self._since = "starting", time.monotonic()
        self.looks = Looks()
        self._last = ""
        """The accuracy at the last validation, as text."""
        self._metrics: TextIO | None = None
        self._log: TextIO | None = None
        self.damage: tuple[str, ...] = ()
        """Lines that the curves of an earlier session have lost."""
        if not leads:  # one process of several writes; the others train silently
            return
        self.damage = tuple(folder.drop_steps_after(resumed_at, saved_lines))
        self._metrics, self._log = folder.open_curve(), folder.open_log()
        self._tracker = Tracker(run, folder.path, resumed_at, self.said)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[left]}"),
                console=self.console,
            )
            self._bar.start()
            self._bar.add_task("starting", total=self.spec.steps, left="")
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._ticker.join()
        if self._bar:
            self._bar.stop()
        for file in (self._tracker, self._metrics, self._log):  # the tracker may have something to say
            if file is not None:
                file.close()

    def turn_to(self, doing: str) -> None:
        """Say what the run does from now on, in words for people."""
        self._doing, self._since = doing, time.monotonic()
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=self._state.step, description=doing, left=self._left())

    def trained(self, progress: TrainingState, loss: float, rate: float) -> None:
        """Write the mean loss since the last call."""
        self._state, self._doing, self._since = progress, TRAINING, time.monotonic()
        speed = self.units / _recent(progress.step_seconds)
        self._note(
            MetricRecord(
                kind="train",
                step=progress.step,
                loss=loss,
                seconds=progress.train_seconds,
                processor_seconds=progress.processor_seconds,
                learning_rate=rate,
                tokens_per_second=speed,
            )
        )
        judged = f"  ppl {perplexity(loss):.2f}" if self.reports_perplexity else self._last
        line = f"loss {loss:.4f}{judged}  lr {rate:.2e}  {speed:,.0f} tokens/s"
        plain = f"[Step {progress.step}] {line}"
        self._write_line(self._log, plain)
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=progress.step, description=line, left=self._left())
        elif time.monotonic() - self._printed >= PLAIN_LINE_SECONDS or progress.step == self.spec.steps:
            self._print(f"{plain}  {self._left()}")

    def validating(self, progress: TrainingState) -> None:
        """Show that a validation begins."""
        self._state = progress
        self.turn_to(VALIDATING)

    def validated(self, progress: TrainingState, measured: Measured) -> None:
        """Write the result of a validation."""
        self._doing, self._since = TRAINING, time.monotonic()
        loss, accuracy = measured.loss, measured.accuracy
        seconds, worked = progress.train_seconds, progress.processor_seconds
        self._note(
            MetricRecord(
                kind="val", step=progress.step, loss=loss, seconds=seconds, processor_seconds=worked, accuracy=accuracy
            )
        )
        if self._leads and measured.attention is not None:
            seen = {"step": progress.step, **asdict(measured.attention)}
            self._folder.append_attention(AttentionRecord.model_validate(seen))
        judged = f"PPL: {perplexity(loss):.2f}" if accuracy is None else f"Accuracy: {accuracy:.2%}"
        self._last = "" if accuracy is None else f"  accuracy {accuracy:.2%}"
        self.said(f"[Step {progress.step}] Validation - Loss: {loss:.4f}, {judged}")

    def said(self, sentence: str) -> None:
        """Print a line and keep it in the log."""
        self._print(sentence)
        self._write_line(self._log, sentence)

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        self.console.print(line)

    def _tick(self) -> None:
        """Say what the run is doing whenever nothing was printed for a while: a step or an evaluation may be long."""
        while not self._ended.wait(1.0):
            if self._bar:
                self._bar.update(self._bar.task_ids[0], left=self._left())
            elif time.monotonic() - self._printed >= SILENCE_SECONDS:
                self._print(f"[Step {self._state.step}] {self._doing} ...  {self._left()}".rstrip())

    def _left(self) -> str:
        """Return the estimated time left in words; nothing while there is nothing to estimate it from."""
        state, spec = self._state, self.spec
        step, looks = _recent(state.step_seconds), state.validation_seconds
        each = sum(looks) / len(looks) if looks else self.looks.steps * step * FORWARD_SHARE
        steps = spec.steps - state.step
        left = self.looks.left(self._doing, steps)
        if not step or left is None:
            return ""
        expected = steps * step + left * each
        return f"{max(expected - (time.monotonic() - self._since), 0):.0f} s left"

    def _write_line(self, file: TextIO | None, line: str) -> None:
        if file is not None:
            self._folder.check()
            print(line, file=file, flush=True)

    def _note(self, metric: MetricRecord) -> None:
        if self._metrics is not None:
            self._folder.append_metric(self._metrics, metric)
        if self._tracker is not None:
            self._tracker.log(
                metric.step,
                {
                    f"loss/{metric.kind}": metric.loss,
                    "accuracy": metric.accuracy,
                    "learning_rate": metric.learning_rate,
                    "tokens_per_second": metric.tokens_per_second,
                },
            )


def _recent(step_seconds: list[float]) -> float:
    last = step_seconds[-50:] or [0.0]
    return sum(last) / len(last)


@dataclass(frozen=True)
class Looks:
    """The sizes of a run's evaluations, from which their time is estimated."""

    steps: float = 0.0
    """How many training steps read as many tokens as one validation."""
    val: float = 1.0
    """How many validations the whole validation split is worth."""
    test: float = 0.0
    every: float = math.inf
    """How many steps are between two validations."""

    @classmethod
    def of(cls, run: RunSpec, data: DataRecord, task: Task) -> Self:
        """Return those of a run; validations read a part of the split if the run says so."""
        whole = data.tokens.get("val", 0)
        if not whole:
            return cls()
        seen = min(run.train.eval_tokens or whole, whole)
        test = data.tokens.get("test", 0) if run.scores_test else 0
        every = run.train.eval_every
        steps = every if isinstance(every, int) else task.steps_per_epoch
        return cls(seen / task.units_per_step, whole / seen, test / seen, steps)

    def left(self, doing: str, steps: int) -> float | None:
        """Return how many validations are to come in `steps`, with the current one; None when only writing is left."""
        whole = self.val + self.test
        later = steps // self.every + whole
        return {TRAINING: later, VALIDATING: 1 + later, WHOLE_VAL: whole, WHOLE_TEST: self.test}.get(doing)


def execute(
    run: RunSpec,
    data: Data,
    directory: Path,
    *,
    quiet: bool = False,
    make_checkpoints: type[Checkpoints] | Callable[..., Checkpoints] = Checkpoints,
) -> RunRecord:
    """Carry out a resolved run in its folder, from its last checkpoint if there is one; return its record.

    A run that is already complete is left alone. However the run ends, its record says so. `make_checkpoints` is for
    callers who also keep checkpoints of another layout.

    Raises:
        Interrupted: the run was asked to stop and has saved its state; the same call continues it.
        Diverged: the loss is not a number, or has grown without bound.
        RunLocked: another process is working in the folder, or has taken over while this one was suspended.

    """
    if processes() != run.train.processes:
        raise UsageError(
            f"train.processes={run.train.processes}, but {processes()} are running. Start the run with "
            f"torchrun --nproc_per_node={run.train.processes} -m oelm train ..., or set train.processes."
        )
    refuse_missing(run.train.track)
    torch.set_num_threads(run.train.threads)
    keep_large_blocks()
    with world(run.train.device) as here, catch_signals() as stop, ExitStack() as held:
        allow_tf32(here.device, allowed=run.train.tf32)
        folder, lock = RunFolder(directory), None
        if here.leads:
            # By UUID where the runner has assigned them, so that other runners know which GPUs are taken.
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES") if here.device.type == "cuda" else None
            threads = run.train.threads * run.train.processes
            lock = held.enter_context(hold_lock(directory, threads=threads, device=gpus or str(here.device)))
            folder = RunFolder(directory, lock.check)
            folder.refuse_links()
            folder.remove_leftovers()
        done = find_finished(run, directory)
        if done is not None:
            console = Console(quiet=quiet or not here.leads, soft_wrap=True)
            console.print(f"{directory} holds this run, complete already: nothing is left to do.")
            return done
        recorder = Recorder(run, folder, here)
        with _explain_system_errors(directory), recorder.whatever_happens():
            recorder.write("running")
            checkpoints = make_checkpoints(folder.checkpoints, fingerprint(run), run.model_dump(mode="json"))
            if lock is not None:
                checkpoints.check, checkpoints.owner = partial(_check_inputs, lock, data), lock.token
            checkpoints.count_lines = folder.count_lines
            return _carry_out(run, data, recorder, checkpoints, stop, quiet=quiet)


def _check_inputs(lock: Lock, data: Data) -> None:
    """Raise an error if this process has lost its lock, or its data were changed: such weights are not saved."""
    lock.check()
    data.refuse_changes()


@contextmanager
def _explain_system_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        details = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunFailed(
            f"The run in {directory} ran out of memory ({details}). Set a smaller train.batch_size or a larger "
            "train.accumulation, or use a machine with more memory."
        ) from error
    except (OSError, SafetensorError) as error:
        if _number(error) in UNWRITABLE:
            reason = getattr(error, "strerror", None) or str(error)
            raise RunFailed(
                f"{directory} could not be written to during the run ({reason}). What was saved before is intact: make "
                "room, then the same command continues."
            ) from error
        raise RunFailed(
            f"the run in {directory} failed ({type(error).__name__}: {error}). What was saved before is intact: fix "
            "the cause, then the same command continues."
        ) from error


def _number(error: Exception) -> int | None:
    """Return the system's number of an error; safetensors gives it in its message only."""
    found = re.search(r"os error (\d+)", str(error))
    return error.errno if isinstance(error, OSError) else int(found[1]) if found else None


def find_finished(run: RunSpec, directory: Path) -> RunRecord | None:
    """Return the record of a complete run; refuse a folder that belongs to another run."""
    folder = RunFolder(directory)
    if not folder.has_record():
        return None
    record = folder.read_record()
    if record.fingerprint != fingerprint(run):
        raise UsageError(
            f"{directory} holds run {record.fingerprint} ({record.status}), and {fingerprint(run)} was requested. "
            "Nothing is overwritten: use another folder."
        )
    if run.scores_test and record.is_unscored:
        return None  # it tuned another study: its last checkpoint is scored, or it is trained again without one
    return record if record.status == "complete" else None


def _carry_out(
    run: RunSpec, data: Data, recorder: Recorder, checkpoints: Checkpoints, stop: StopRequest, *, quiet: bool
) -> RunRecord:
    here = recorder.world
    task = make_task(run, data, here.device)
    recorder.data = task.data_record()
    refuse_too_large(run, recorder.data.vocab_size)
    model = task.build_model()
    refuse_changed_model(run.model)
    audit = surgery.apply(model, run.method, seed=run.seed_of("draw"), scheduled=True)
    cost = _cost(model, run, task)
    recorder.parameters = ParametersRecord(
        total=audit.total, trainable=audit.trainable, frozen=audit.frozen, qk=audit.qk, repair=audit.repair
    )
    recorder.cost = CostRecord(**asdict(cost)) if cost else None
    if here.leads:
        recorder.folder.write_tokenizer(task.tokenizer_files())
    saved, troubles = checkpoints.load()
    is_new = saved is None and (here.size == 1 or run.continues is not None)
    trunk = _find_start(run, recorder.folder.path) if is_new else None
    if trunk:
        saved = trunk.checkpoint
        recorder.branched_from = trunk.record
        if here.leads:
            recorder.folder.copy_curves_from(trunk.folder)
    resumed_at = saved.state["progress"]["step"] if saved else 0
    with RunObserver(
        recorder.folder,
        run,
        task.units_per_step,
        reports_perplexity=task.reports_perplexity,
        resumed_at=resumed_at,
        saved_lines=saved.state.get("lines") if saved else None,
        quiet=quiet,
        leads=here.leads,
    ) as observer:
        observer.looks = Looks.of(run, recorder.data, task)
        training = _training(task, model, checkpoints, recorder, observer, stop)
        recorder.damage += observer.damage
        replaced = (f"{trouble} The checkpoint before it is used instead." for trouble in troubles)
        for note in (*_notes(recorder, task, audit.total, cost, is_first=saved is None), *observer.damage, *replaced):
            observer.said(note)
        if saved is not None:
            load_into(model, saved.model, str(checkpoints.directory))
            training.resume(saved)
            del saved  # it would count in the memory that training needs
            if trunk and run.continues:  # the best checkpoint so far is in the other folder
                training.progress.best_loss, training.progress.best_accuracy = float("inf"), None
            observer.said(_describe_start(run, trunk, resumed_at))
        recorder.follow(training.progress)
        recorder.write("running")
        training.run()
        try:
            return _conclude(model, task, cost, recorder, observer, training.breaks)
        except StopNow:
            raise Interrupted(f"stopped by {stop.signal} during the last evaluation") from None


def _notes(recorder: Recorder, task: Task, parameters: int, cost: Cost | None, *, is_first: bool) -> Iterator[str]:
    """Yield what a user should know about the settings, the memory and the data before training starts."""
    run, data = recorder.run, recorder.data
    assert data is not None  # noqa: S101  (it was read before the model was built)
    if is_first and (note := warn_of_rising_rate(run.train)):
        yield note
    if "val" not in task.splits:
        yield "note: there are no validation tokens, so the run is trained without validation."
    shape = run.model
    if isinstance(shape, GPTSpec):
        shape = shape.model_copy(update={"vocab_size": data.vocab_size})
    yield from filter(None, (warn_of_vocabulary(shape, parameters), warn_of_memory(run, cost)))
    yield from (f"data: {note}" for note in data.notes)


def _describe_start(run: RunSpec, trunk: Trunk | None, step: int) -> str:
    other = f"run {trunk.record.fingerprint} " if trunk else ""
    why = ", where this run's decay begins" if trunk and not run.continues else ""
    return f"continuing {other}after step {step}{why}"


def _cost(model: nn.Module, run: RunSpec, task: Task) -> Cost | None:
    try:
        return training_cost(model, run.train.batch_size, task.length, task.answer_length)
    except NotCarriedOut:  # the FLOPs of some models cannot be counted from shapes; they train as well
        return None


def _training(
    task: Task, model: nn.Module, checkpoints: Checkpoints, recorder: Recorder, observer: Observer, stop: StopRequest
) -> Training:
    run, here = recorder.run, recorder.world
    names = [name for name, _ in model.named_parameters()]
    rates = multipliers(names, surgery.projections_in_reach(model), run.method.rates)
    optimizer = Optimizer(model, run.train, rates, keeps_moments=run.method.schedule.every is not None)
    freezing = surgery.FreezeSchedule(model, run.train.steps)
    return Training(
        model,
        task,
        run.train,
        run.seed,
        optimizer,
        freezing,
        checkpoints,
        here,
        observer,
        stop,
        clock=recorder.wall_seconds,
        memory=lambda: peak_memory(here.device),
    )


def _conclude(
    model: nn.Module,
    task: Task,
    cost: Cost | None,
    recorder: Recorder,
    observer: RunObserver,
    breaks: Callable[[], AbstractContextManager[None]],
) -> RunRecord:
    """Verify the frozen weights, measure the whole splits and write the results.

    A signal may end the measurements, which the last checkpoint allows to repeat, but no write.
    """
    progress, here = recorder.progress, recorder.world
    run = recorder.run
    recorder.frozen_hashes = surgery.verify_frozen(model)
    with breaks():
        observer.turn_to(WHOLE_VAL)
        # Token files may come without validation tokens; their run has no result but its weights.
        val = task.measure(model, "val") if "val" in task.splits else None
        observer.turn_to(WHOLE_TEST)
        test = task.measure(model, "test") if "test" in task.splits and run.scores_test else None
        observer.turn_to("writing samples and statistics")
        artefacts = task.artefacts(model, val, test) if here.leads and val else None
    seen = progress.step * task.units_per_step
    peak = matmul_peak(here.device, run.train.precision) * here.size
    recorder.result = ResultRecord(
        val_loss=val.loss if val else math.nan,
        test_loss=test.loss if test else None,
        best_val_loss=progress.best_loss,
        best_step=progress.best_step,
        train_tokens=seen,
        # Only of the steps that were timed: a run that continues a published checkpoint has done more.
        tokens_per_second=len(progress.step_seconds) * task.units_per_step / progress.train_seconds,
        flop_utilisation=cost.total_flops / statistics.median(progress.step_seconds) / peak if cost else None,
        peak_memory_bytes=max(progress.peak_memory, peak_memory(here.device)),
        val_accuracy=val.accuracy if val else None,
        test_accuracy=test.accuracy if test else None,
        best_val_accuracy=progress.best_accuracy,
        val_f1=val.macro_f1 if val else None,
        test_f1=test.macro_f1 if test else None,
    )
    unscored = "no test split" if run.scores_test else "not scored on test, because it tunes"
    validated = f"whole validation split: {_describe(val)}" if val else "no validation split"
    observer.said(f"{validated}; {f'test {_describe(test)}' if test else unscored}")
    if here.leads:
        recorder.folder.write_timing(_timing(run, task.steps_per_epoch, progress, recorder.wall_seconds()))
    if artefacts is not None:
        artefacts.write(recorder.folder)
    return recorder.write("complete")


def _timing(run: RunSpec, steps_per_epoch: float, progress: TrainingState, wall_seconds: float) -> TimingRecord:
    published: dict[str, InitMethod] = {"orthogonal": "orthogonal", "normal": "normal"}
    steps = progress.step_seconds
    epochs = range(epochs_ended(len(steps), steps_per_epoch) + 1)
    bounds = [round(epoch * steps_per_epoch) for epoch in epochs]
    return timing_stats(
        steps,
        model_type=run.arm,
        init_method=published.get(run.method.init.shape, "n/a"),
        dataset=run.data.corpus,
        total_wall_time=wall_seconds,
        validation_seconds=progress.validation_seconds,
        epoch_seconds=[sum(steps[first:last]) for first, last in itertools.pairwise(bounds)],
        best_val_loss=progress.best_loss if math.isfinite(progress.best_loss) else None,
    )


def _describe(measured: Measured) -> str:
    accuracy = "" if measured.accuracy is None else f", accuracy {measured.accuracy:.2%}"
    score = "" if measured.macro_f1 is None else f", F1 {measured.macro_f1:.4f}"
    return f"loss {measured.loss:.4f}{accuracy}{score}"
