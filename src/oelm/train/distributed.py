"""Training in one process or in several processes of torchrun."""

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
    """The position of this process among the processes of the run."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes files, prints and decides."""
        return self.rank == 0

    def rows(self, batch_size: int, part: int = 0, parts: int = 1) -> slice:
        """Return the rows of a global batch for this process, or one of several parts of them."""
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
        """Return whether the flag is set in any process."""
        if self.size == 1:
            return flag
        flags = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return bool(flags.item())

    def barrier(self) -> None:
        """Wait for the other processes."""
        if self.size > 1:
            dist.barrier()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Average the gradients of `model` over the processes.

        All processes draw the same weights, so nothing is broadcast. Wrap again when tensors are frozen or unfrozen.
        """
        if self.size == 1:
            return model
        return DistributedDataParallel(model, init_sync=False)

    def accumulating(self, wrapped: nn.Module, *, last: bool) -> Any:
        """Return a context in which gradients stay local until the last part of a batch."""
        inner = getattr(wrapped, "_orig_mod", wrapped)  # inside torch.compile
        return inner.no_sync() if isinstance(inner, DistributedDataParallel) and not last else nullcontext()


def processes() -> int:
    """Return the number of processes that torchrun has started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def world(device: str) -> Iterator[World]:
    """Join the processes of torchrun (read from the environment), or run as a single process."""
    size, rank = processes(), int(os.environ.get("RANK", "0"))
    where = torch.device(device, int(os.environ.get("LOCAL_RANK", "0"))) if device == "cuda" else torch.device(device)
    if where.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(
                "train.device=cuda was requested, but torch finds no GPU. Use train.device=cpu, or check the driver "
                "and that torch is built with CUDA (python -m torch.utils.collect_env)."
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
