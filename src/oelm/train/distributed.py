"""One process or several: what torchrun's processes have to agree on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oelm.errors import UsageError


@dataclass(frozen=True)
class World:
    """This process among those of the run."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes, prints and decides."""
        return self.rank == 0

    def rows(self, batch_size: int, part: int = 0, parts: int = 1) -> slice:
        """Return the rows of a global batch that are this process's, or one of several parts of them."""
        share = batch_size // self.size // parts
        first = (self.rank * parts + part) * share
        return slice(first, first + share)

    def mean(self, value: Tensor) -> Tensor:
        """Average a value over the processes."""
        if self.size > 1:
            dist.all_reduce(value)
            value = value / self.size
        return value

    def any(self, *, flag: bool) -> bool:
        """Tell every process whether the flag is up in any of them."""
        if self.size == 1:
            return flag
        flags = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return bool(flags.item())

    def barrier(self) -> None:
        """Wait for the others."""
        if self.size > 1:
            dist.barrier()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Let gradients of `model` be averaged over the processes.

        All processes draw the same weights, so nothing is broadcast; wrap anew whenever what trains has changed.
        """
        if self.size == 1:
            return model
        return DistributedDataParallel(model, init_sync=False)

    def accumulating(self, wrapped: nn.Module, *, last: bool) -> Any:
        """Return a context in which gradients stay local until the last part of a batch."""
        inner = getattr(wrapped, "_orig_mod", wrapped)  # of torch.compile
        return inner.no_sync() if isinstance(inner, DistributedDataParallel) and not last else nullcontext()


def processes() -> int:
    """Return how many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def world(device: str) -> Iterator[World]:
    """Join the processes torchrun started (by its environment), or stand alone."""
    size, rank = processes(), int(os.environ.get("RANK", "0"))
    where = torch.device(device, int(os.environ.get("LOCAL_RANK", "0"))) if device == "cuda" else torch.device(device)
    if where.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(
                "train.device=cuda was asked for, and torch finds no GPU here. Take train.device=cpu, or see that the "
                "driver is loaded and that torch is a build with CUDA (python -m torch.utils.collect_env)."
            )
        torch.cuda.set_device(where)
    if size == 1:
        yield World(0, 1, where)
        return
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield World(rank, size, where)
    finally:
        dist.destroy_process_group()
