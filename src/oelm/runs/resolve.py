"""Resolve a run before it starts: find or prepare its data, and check that it fits into the memory that is free.

The data are needed first, because the fingerprint includes their checksum and they fix the number of steps. Whether the
run fits is checked before the model is built, because the system kills a process that runs out of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from oelm.cores import CGROUP, OWN_CGROUP, cgroup_folders
from oelm.errors import BadData, OelmError, UsageError
from oelm.files import digest, sha256_of
from oelm.models.flops import ADAM_MOMENTS, Cost
from oelm.spec.run import GPTSpec, HuggingFaceSpec, ModelSpec, RunSpec, in_precision, steps_of
from oelm.tasks import Data, make_task, refuse_changed_data, task_class
from oelm.train.device import resolve_precision


class ResolvedRun(NamedTuple):
    """A run that can be carried out: nothing in it is left to be derived, and its data are open."""

    spec: RunSpec
    """The run with the checksums of its data and weights, its number of steps and its precision."""
    data: Data


def resolve(run: RunSpec) -> ResolvedRun:
    """Find the data and weights of a run, prepare data that are missing, and derive its steps and precision.

    Raises:
        BadData: the data, or the weights in a folder, are damaged or not those that the run was declared for.
        NotCarriedOut: a Hugging Face model on a probe.
        InvalidSpec: a pretrained decoder on text with another vocabulary than its own.

    """
    data = task_class(run).open_data(run)
    refuse_changed_data(run, data)
    train = run.train
    if train.precision == "auto":
        train = in_precision(train, resolve_precision(train.device, train.precision))
    named = run.model_copy(
        update={
            "data": run.data.model_copy(update={"checksum": data.checksum}),
            "model": _add_checksum(run.model),
            "train": train,
        }
    )
    if train.epochs is None:
        return ResolvedRun(named, data)
    steps = steps_of(train.epochs, make_task(named, data, torch.device("cpu")).steps_per_epoch)
    return ResolvedRun(named.model_copy(update={"train": train.model_copy(update={"steps": steps})}), data)


def prepare_data(runs: Iterable[RunSpec]) -> Iterator[tuple[str, Data]]:
    """Open the data of some runs, each corpus once, and prepare what is missing; yield their names and the data.

    Data that cannot be had are left out: the runs that need them report the reason when they are resolved.
    """
    seen = set()
    for run in runs:
        if run.data in seen:
            continue
        seen.add(run.data)
        with suppress(OelmError):
            yield run.data.corpus, task_class(run).open_data(run)


def refuse_changed_model(model: ModelSpec) -> None:
    """Raise BadData if the files of a resolved model were changed, for example between their check and their use."""
    _add_checksum(model)


def _add_checksum(model: ModelSpec) -> ModelSpec:
    """Return a model that is a folder with the checksum of its files; any other model is identified by its name."""
    if not isinstance(model, HuggingFaceSpec) or not Path(model.name).is_dir():
        return model
    kinds = ("config.json", "*.safetensors", "*.bin", "*.index.json") if model.pretrained else ("config.json",)
    files = sorted(path for kind in kinds for path in Path(model.name).glob(kind))
    found = digest({path.name: _hash(path, _state(path)) for path in files})[:16]
    if model.checksum not in (None, found):
        raise BadData(
            f"the run was declared for the model with checksum {model.checksum}, but the files in {model.name} have "
            f"{found}. Restore the files, or declare the run without a checksum."
        )
    return model.model_copy(update={"checksum": found})


@lru_cache(maxsize=64)  # the runs of a study start from the same weights
def _hash(path: Path, _state: tuple[int, ...]) -> str:
    return sha256_of(path)


def _state(path: Path) -> tuple[int, ...]:
    """Return everything that changes when a file is written."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


# Memory.

GIB = 2**30
DWARFS = 4
"""A vocabulary dwarfs a model if its embedding has this many times the parameters of everything else."""


def free_memory(device: str = "cpu") -> int:
    """Return the bytes that this process can still get: of the GPU, or of the machine and its cgroups, with swap."""
    if device == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    machine: int = psutil.virtual_memory().available + psutil.swap_memory().free
    return min([machine, *_cgroup_room()])


def _cgroup_room(root: Path = CGROUP, own: Path = OWN_CGROUP) -> list[int]:
    """Return the bytes that the limits of this process's cgroups (version 2) leave; none if there is no limit."""
    found = []
    for place in cgroup_folders(root, own):
        try:
            limit, used = ((place / f"memory.{name}").read_text().strip() for name in ("max", "current"))
            counts = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit != "max":  # file pages are given back when memory is short
            found.append(max(0, int(limit) - int(used) + int(counts.get("file", 0))))
    return found


def refuse_too_large(run: RunSpec, vocab_size: int | None, free: int | None = None) -> None:
    """Refuse a run of our GPT whose weights, gradients and moments alone do not fit, before the model is built.

    Counted are the embedding, V, O and the feed-forward, which train in every method, so the true need is larger.
    """
    spec = run.model
    if not isinstance(spec, GPTSpec):
        return
    block = 2 * spec.model_dim**2 + 2 * spec.model_dim * (spec.ffn_dim or 4 * spec.model_dim)
    trained = spec.num_layers * block + (spec.vocab_size or vocab_size or 1) * spec.model_dim
    needed, free = 4 * trained * (2 + ADAM_MOMENTS), free_memory(run.train.device) if free is None else free
    if needed > free:
        raise UsageError(
            f"The run needs over {needed / GIB:.1f} GiB for weights, gradients and moments, and {free / GIB:.1f} GiB "
            "are free. Choose a smaller model or vocabulary, or a machine with more memory."
        )


def warn_of_memory(run: RunSpec, cost: Cost | None, free: int | None = None) -> str | None:
    """Return a warning if the estimated peak of a step, with activations, is above what is free; None if it fits."""
    if cost is None:
        return None
    needed = memory_of_step(run, cost) - cost.weight_bytes  # the weights have been allocated already
    free = free_memory(run.train.device) if free is None else free
    if needed <= free:
        return None
    return (
        f"warning: a step needs about {needed / GIB:.1f} GiB more, and {free / GIB:.1f} GiB are free. The system may "
        "kill the run: set a smaller train.batch_size, or a larger train.accumulation, which changes no result."
    )


def memory_of_step(run: RunSpec, cost: Cost) -> int:
    """Return the estimated peak memory of a step. A device has one part of a batch at a time."""
    parts = run.train.processes * run.train.accumulation
    return cost.memory_bytes - cost.activation_bytes + cost.activation_bytes // parts


def warn_of_vocabulary(model: ModelSpec, total: int) -> str | None:
    """Return a warning if the embedding of our GPT's vocabulary dwarfs the rest of the model; None if it does not."""
    if not isinstance(model, GPTSpec) or model.vocab_size is None:
        return None
    embedding = model.vocab_size * model.model_dim
    if embedding < DWARFS * max(1, total - embedding):
        return None
    return (
        f"warning: the vocabulary of {model.vocab_size:,} entries has {embedding:,} parameters, at least {DWARFS} "
        "times the rest of the model, so the run mostly trains its embedding. A smaller vocabulary (data.vocab_size) "
        "suits this size."
    )
