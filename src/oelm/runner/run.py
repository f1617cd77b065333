"""One run, from its spec to its record: the one module that sees every stage."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError

from oelm import surgery
from oelm.data.prepare import prepared
from oelm.data.tokens import TokenData, open_tokens
from oelm.errors import BadData, NotCarriedOut, RunFailed, UsageError
from oelm.method.rates import multipliers
from oelm.models.cost import Cost, training_cost
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT
from oelm.record.losses import write_test_losses
from oelm.record.schema import CostRecord, DataRecord, ParametersRecord, ResultRecord, RunRecord
from oelm.record.store import RECORD, read_record
from oelm.runner.artefacts import matmul_peak, peak_memory, write_artefacts
from oelm.runner.claim import claimed
from oelm.runner.documents import DocumentLosses
from oelm.runner.language import LanguageTask, build_gpt, language_task
from oelm.runner.observe import RunObserver
from oelm.runner.recorder import Recorder
from oelm.spec.data import DataSpec
from oelm.spec.model import GPTSpec
from oelm.spec.run import RunSpec, fingerprint
from oelm.train.allocator import keep_large_blocks
from oelm.train.checkpoint import Checkpoints, load_into
from oelm.train.distributed import World, processes, world
from oelm.train.loop import Observer, Training
from oelm.train.optimizer import Optimizer
from oelm.train.signals import StopWish, listening


def bound(run: RunSpec) -> tuple[RunSpec, TokenData]:
    """Bind a run to its data, prepared now if need be; its fingerprint then names their bytes."""
    if not isinstance(run.data, DataSpec):
        raise NotCarriedOut(f"training on labelled text ({run.data.corpus!r}) is not carried out yet.")
    directory = run.data.directory or prepared(run.data)
    tokens = open_tokens(directory)
    if run.data.checksum not in (None, tokens.checksum):
        raise BadData(
            f"the run was declared for data with checksum {run.data.checksum}, but {directory} holds "
            f"{tokens.checksum}. Prepare the same data again, or declare the run without a checksum."
        )
    return run.model_copy(update={"data": run.data.model_copy(update={"checksum": tokens.checksum})}), tokens


def execute(
    run: RunSpec,
    tokens: TokenData,
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
            f"torchrun --nproc_per_node={run.train.processes}, or set train.processes."
        )
    torch.set_num_threads(run.train.threads)
    keep_large_blocks()
    with world(run.train.device) as here, listening() as stop, ExitStack() as held:
        if here.leads:
            held.enter_context(claimed(directory, threads=run.train.threads, device=str(here.device)))
        done = finished(run, directory)
        if done is not None:
            return done
        recorder = Recorder(run, directory, here)
        with _full_disk_in_words(directory), recorder.whatever_happens():
            recorder.write("running")
            checkpoints = make_checkpoints(directory / "checkpoints", fingerprint(run), run.model_dump(mode="json"))
            return _carry_out(run, tokens, recorder, checkpoints, stop, quiet=quiet)


@contextmanager
def _full_disk_in_words(directory: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunFailed(
            f"{directory} could not be written to in the middle of the run ({reason}). What was saved before is whole: "
            "make room, then the same command continues."
        ) from error


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
    return record if record.status == "complete" else None


def _carry_out(
    run: RunSpec, tokens: TokenData, recorder: Recorder, checkpoints: Checkpoints, stop: StopWish, *, quiet: bool
) -> RunRecord:
    here = recorder.world
    if not isinstance(run.model, GPTSpec):
        raise NotCarriedOut(f"training a {run.model.kind!r} model is not carried out yet; use a GPTSpec.")
    model = build_gpt(run.model, tokens, run.seed, here.device)
    audit = surgery.apply(model, run.method, seed=run.seed)
    task = language_task(run, tokens, model, here.device)
    cost = training_cost(model, run.train.batch_size, task.context)
    recorder.facts |= {
        "parameters": ParametersRecord(total=audit.total, trainable=audit.trainable, frozen=audit.frozen),
        "cost": CostRecord(**asdict(cost)),
        "data": _data_record(run, tokens),
    }
    saved, troubles = checkpoints.load()
    resumed_at = saved.state["progress"]["step"] if saved else 0
    with RunObserver(
        recorder.directory,
        run.train,
        task.units_per_step,
        resumed_at=resumed_at,
        quiet=quiet,
        leads=here.leads,
    ) as observer:
        training = _training(run, model, task, checkpoints, here, observer, stop)
        for trouble in troubles:
            observer.said(f"{trouble} The checkpoint before it is used instead.")
        if saved is not None:
            load_into(model, saved.model, str(checkpoints.directory))
            training.resume(saved)
            observer.said(f"continuing after step {resumed_at}")
        recorder.progress = training.progress
        recorder.write("running")
        training.run()
        return _conclude(model, task, cost, recorder, observer)


def _training(
    run: RunSpec,
    model: GPT,
    task: LanguageTask,
    checkpoints: Checkpoints,
    here: World,
    observer: Observer,
    stop: StopWish,
) -> Training:
    names = [name for name, _ in model.named_parameters()]
    rates = multipliers(names, architecture_of(model).projections(model), run.method.rates)
    optimizer = Optimizer(model, run.train, rates, keeps_moments=run.method.schedule.every is not None)
    freezing = surgery.FreezeSchedule(model, run.train.steps)
    return Training(model, task, run.train, run.seed, optimizer, freezing, checkpoints, here, observer, stop)


def _conclude(model: GPT, task: LanguageTask, cost: Cost, recorder: Recorder, observer: Observer) -> RunRecord:
    """Prove what was frozen, measure the whole splits, write everything down."""
    progress, here = recorder.progress, recorder.world
    hashes = surgery.verify_frozen(model)
    val_loss = task.loss(model, "val")
    by_document, has_test = DocumentLosses(model), "test" in task.tokens.splits
    test_loss = task.loss(by_document, "test") if has_test else None
    seen = progress.step * task.units_per_step
    peak = matmul_peak(here.device, task.run.train.precision) * here.size
    recorder.facts |= {
        "frozen_hashes": hashes,
        "result": ResultRecord(
            val_loss=val_loss,
            test_loss=test_loss,
            best_val_loss=progress.best_loss,
            best_step=progress.best_step,
            train_tokens=seen,
            tokens_per_second=seen / progress.train_seconds,
            flop_utilisation=cost.total_flops / statistics.median(progress.step_seconds) / peak,
            peak_memory_bytes=peak_memory(here.device),
        ),
    }
    test = f"test loss {test_loss:.4f}" if test_loss is not None else "no test split"
    observer.said(f"whole validation split: loss {val_loss:.4f}; {test}")
    if here.leads and has_test:
        write_test_losses(recorder.directory, by_document.record(task.tokens))
    if here.leads:
        write_artefacts(recorder.directory, model, task, progress, recorder.wall_seconds)
    return recorder.write("complete")


def _data_record(run: RunSpec, tokens: TokenData) -> DataRecord:
    return DataRecord(
        corpus=run.data.corpus,
        checksum=tokens.checksum,
        vocab_size=tokens.vocab_size,
        floor=dict(tokens.floor),
        tokens={split: tokens.num_tokens(split) for split in tokens.splits},
    )
