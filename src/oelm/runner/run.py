"""One run, from its spec to its record: the one module that sees every stage."""

from __future__ import annotations

import importlib.util
import os
import re
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from safetensors import SafetensorError
from torch import nn

from oelm import surgery
from oelm.errors import NotCarriedOut, RunFailed, UsageError
from oelm.files import UNWRITABLE
from oelm.method.rates import multipliers
from oelm.models.cost import Cost, training_cost
from oelm.record.schema import CostRecord, ParametersRecord, ResultRecord, RunRecord
from oelm.record.store import RECORD, read_record
from oelm.runner.artefacts import matmul_peak, peak_memory, write_timing
from oelm.runner.bind import Data
from oelm.runner.branch import copy_curves, find_branch
from oelm.runner.claim import claimed
from oelm.runner.language import LanguageTask
from oelm.runner.observe import RunObserver
from oelm.runner.recorder import Recorder
from oelm.runner.tasks import AnyTask, build_model, task_of
from oelm.spec.run import RunSpec, fingerprint
from oelm.train.allocator import keep_large_blocks
from oelm.train.checkpoint import Checkpoints, load_into
from oelm.train.distributed import processes, world
from oelm.train.evaluate import Measured
from oelm.train.loop import Observer, Training
from oelm.train.optimizer import Optimizer
from oelm.train.precision import allow_tf32
from oelm.train.schedule import doubt
from oelm.train.signals import StopWish, listening


def execute(
    run: RunSpec,
    data: Data,
    directory: Path,
    *,
    quiet: bool = False,
    make_checkpoints: type[Checkpoints] | Callable[..., Checkpoints] = Checkpoints,
) -> RunRecord:
    """Carry out a bound run in its directory, from its last checkpoint if there is one; return its record.

    A run that is complete already is left alone. However it ends, a record says so. `make_checkpoints` is for callers
    who keep checkpoints of another layout as well.

    Raises:
        Interrupted: the run was asked to stop and has saved itself; the same call continues it.
        Diverged: the loss ran away.
        RunLocked: another process is at it.

    """
    if processes() != run.train.processes:
        raise UsageError(
            f"train.processes={run.train.processes}, but {processes()} are running. Start the run with "
            f"torchrun --nproc_per_node={run.train.processes} -m oelm train ..., or set train.processes."
        )
    if run.train.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "train.tensorboard was asked for, and tensorboard is not installed. Say `pip install -c constraints.txt "
            "'.[tensorboard]'`, or leave it out: metrics.jsonl holds the same curves."
        )
    torch.set_num_threads(run.train.threads)
    keep_large_blocks()
    with world(run.train.device) as here, listening() as stop, ExitStack() as held:
        allow_tf32(here.device, allowed=run.train.tf32)
        if here.leads:
            # By UUID where the runner has assigned them, so that other runners know which ones are taken.
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES") if here.device.type == "cuda" else None
            threads = run.train.threads * run.train.processes
            held.enter_context(claimed(directory, threads=threads, device=gpus or str(here.device)))
        done = finished(run, directory)
        if done is not None:
            console = Console(quiet=quiet or not here.leads, highlight=False, soft_wrap=True)
            console.print(f"{directory} holds this run, complete already: nothing is left to do.", markup=False)
            return done
        recorder = Recorder(run, directory, here)
        with _system_errors_in_words(directory), recorder.whatever_happens():
            recorder.write("running")
            checkpoints = make_checkpoints(directory / "checkpoints", fingerprint(run), run.model_dump(mode="json"))
            return _carry_out(run, data, recorder, checkpoints, stop, quiet=quiet)


@contextmanager
def _system_errors_in_words(directory: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        if _number(error) in UNWRITABLE:
            reason = getattr(error, "strerror", None) or str(error)
            raise RunFailed(
                f"{directory} could not be written to in the middle of the run ({reason}). What was saved before is "
                "whole: make room, then the same command continues."
            ) from error
        raise RunFailed(
            f"the run in {directory} broke off ({type(error).__name__}: {error}). What was saved before is whole: see "
            "to that, then the same command continues."
        ) from error


def _number(error: Exception) -> int | None:
    """Return the system's number of an error; safetensors has it in its words alone."""
    told = re.search(r"os error (\d+)", str(error))
    return error.errno if isinstance(error, OSError) else int(told[1]) if told else None


def finished(run: RunSpec, directory: Path) -> RunRecord | None:
    """Return the record of a complete run; refuse a directory that belongs to another run."""
    if not (directory / RECORD).exists():
        return None
    record = read_record(directory)
    if record.fingerprint != fingerprint(run):
        raise UsageError(
            f"{directory} holds run {record.fingerprint} ({record.status}), and {fingerprint(run)} was "
            "asked for. Nothing is overwritten: use another folder."
        )
    if run.scores_test and record.is_unscored:
        return None  # it tuned another study: its last checkpoint is scored, or without one it is trained again
    return record if record.status == "complete" else None


def _carry_out(
    run: RunSpec, data: Data, recorder: Recorder, checkpoints: Checkpoints, stop: StopWish, *, quiet: bool
) -> RunRecord:
    here = recorder.world
    model = build_model(run, data, here.device)
    audit = surgery.apply(model, run.method, seed=run.seed_of("draw"))
    task = task_of(run, data, model, here.device)
    cost = _cost(model, run, task)
    recorder.facts |= {
        "parameters": ParametersRecord(
            total=audit.total, trainable=audit.trainable, frozen=audit.frozen, qk=audit.qk, repair=audit.repair
        ),
        "cost": CostRecord(**asdict(cost)) if cost else None,
        "data": task.data_record(),
    }
    saved, troubles = checkpoints.load()
    trunk = find_branch(run, recorder.directory) if saved is None and here.size == 1 else None
    if trunk:
        saved = trunk.checkpoint
        recorder.facts["branched_from"] = trunk.record
        copy_curves(trunk.directory, recorder.directory)
    resumed_at = saved.state["progress"]["step"] if saved else 0
    with RunObserver(
        recorder.directory,
        run.train,
        task.units_per_step,
        is_language=isinstance(task, LanguageTask) and not task.probe,
        resumed_at=resumed_at,
        quiet=quiet,
        leads=here.leads,
    ) as observer:
        training = _training(task, model, checkpoints, recorder, observer, stop)
        if saved is None and (note := doubt(run.train)):
            observer.said(note)
        for note in recorder.facts["data"].notes:
            observer.said(f"data: {note}")
        for trouble in troubles:
            observer.said(f"{trouble} The checkpoint before it is used instead.")
        if saved is not None:
            load_into(model, saved.model, str(checkpoints.directory))
            training.resume(saved)
            del saved  # or it would count among what training needs
            observer.said(
                f"continuing run {trunk.record.fingerprint} after step {resumed_at}, where this run's decay begins"
                if trunk
                else f"continuing after step {resumed_at}"
            )
        recorder.follow(training.progress)
        recorder.write("running")
        training.run()
        return _conclude(model, task, cost, recorder, observer)


def _cost(model: nn.Module, run: RunSpec, task: AnyTask) -> Cost | None:
    try:
        return training_cost(model, run.train.batch_size, task.length, task.written)
    except NotCarriedOut:  # a model whose step cannot be counted from shapes trains all the same
        return None


def _training(
    task: AnyTask, model: nn.Module, checkpoints: Checkpoints, recorder: Recorder, observer: Observer, stop: StopWish
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


def _conclude(model: nn.Module, task: AnyTask, cost: Cost | None, recorder: Recorder, observer: Observer) -> RunRecord:
    """Prove what was frozen, measure the whole splits, write everything down."""
    progress, here = recorder.progress, recorder.world
    hashes = surgery.verify_frozen(model)
    val = task.measure(model, "val")
    test = task.measure(model, "test") if "test" in task.splits and task.run.scores_test else None
    seen = progress.step * task.units_per_step
    peak = matmul_peak(here.device, task.run.train.precision) * here.size
    recorder.facts |= {
        "frozen_hashes": hashes,
        "result": ResultRecord(
            val_loss=val.loss,
            test_loss=test.loss if test else None,
            best_val_loss=progress.best_loss,
            best_step=progress.best_step,
            train_tokens=seen,
            # Of the steps that were timed: a run that continues a published checkpoint has more behind it.
            tokens_per_second=len(progress.step_seconds) * task.units_per_step / progress.train_seconds,
            flop_utilisation=cost.total_flops / statistics.median(progress.step_seconds) / peak if cost else None,
            peak_memory_bytes=max(progress.peak_memory, peak_memory(here.device)),
            val_accuracy=val.accuracy,
            test_accuracy=test.accuracy if test else None,
            best_val_accuracy=progress.best_accuracy,
            val_f1=val.macro_f1,
            test_f1=test.macro_f1 if test else None,
        ),
    }
    unscored = "no test split" if task.run.scores_test else "not scored on test, because it tunes"
    observer.said(f"whole validation split: {_in_words(val)}; {f'test {_in_words(test)}' if test else unscored}")
    if here.leads:
        write_timing(
            recorder.directory,
            task.run,
            progress,
            steps_per_epoch=task.steps_per_epoch,
            wall_seconds=recorder.wall_seconds(),
        )
        task.write_artefacts(recorder.directory, model, val, test)
    return recorder.write("complete")


def _in_words(measured: Measured) -> str:
    accuracy = "" if measured.accuracy is None else f", accuracy {measured.accuracy:.2%}"
    score = "" if measured.macro_f1 is None else f", F1 {measured.macro_f1:.4f}"
    return f"loss {measured.loss:.4f}{accuracy}{score}"
