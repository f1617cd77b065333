"""Whether a run fits into the memory that is free, before it starts: too late is a process that the system kills."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from oelm.errors import UsageError
from oelm.models.flops import ADAM_MOMENTS, Cost
from oelm.spec.model import GPTSpec, ModelSpec
from oelm.spec.run import RunSpec

GIB = 2**30
DWARFS = 4
"""A vocabulary dwarfs a model if its embedding has this many times the parameters of everything else."""
_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: str = "cpu") -> int:
    """Return the bytes that this process can still get: of the GPU, or of the machine and its cgroups, with swap."""
    if device == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    machine: int = psutil.virtual_memory().available + psutil.swap_memory().free
    return min([machine, *_cgroup_room()])


def _cgroup_room(root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Return the bytes that the limits of this process's cgroups (version 2) leave; none if there is no limit."""
    try:
        group = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    found = []
    folder = root / group.strip().lstrip("/")
    for place in (folder, *folder.parents):
        if not place.is_relative_to(root):
            break
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
