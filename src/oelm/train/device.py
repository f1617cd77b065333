"""Where a run computes: precision, memory allocation, peak memory, and the processes of torchrun."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oelm.errors import UsageError
from oelm.spec.run import Precision

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(device: str, asked: Precision) -> Precision:
    """Return the precision of the computation: "auto" is bf16 if the device supports it natively, otherwise fp32."""
    if asked != "auto":
        return asked
    return "bf16" if has_native_bf16(device) else "fp32"


def has_native_bf16(device: str) -> bool:
    """Return whether the device multiplies bf16 matrices in hardware.

    If no GPU is visible, for example where jobs are submitted, the GPU of the run is assumed to do so.
    """
    if device == "cuda":
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    # A CPU without bf16 instructions converts to float32 and back, which is slower than float32.
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001  (no public name)


def allow_tf32(device: torch.device, *, allowed: bool) -> None:
    """Allow or forbid TensorFloat-32 for fp32 products on a GPU. A CPU always computes in fp32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if allowed else "highest")


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Return the context for the forward pass."""
    precision = resolve_precision(device.type, precision)
    return torch.autocast(device.type, _HALF[precision]) if precision in _HALF else nullcontext()


def scaler(device: torch.device, precision: Precision) -> torch.amp.GradScaler:
    """Return a gradient scaler; it acts only in fp16, whose gradients underflow."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


# Parameters of mallopt(3), from malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_large_blocks() -> bool:
    """Let glibc keep freed memory instead of returning it to the system; return whether it does.

    By default glibc maps every large block again when it is allocated. A training step allocates the same large tensors
    again and again, so the kernel would spend a good part of the time on clearing pages.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, _NEVER))


def peak_resident_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the peak resident memory of this process in bytes.

    VmHWM of the Linux kernel starts at zero with each program. ru_maxrss is inherited over fork and exec, so it may be
    the peak of the parent process; it is used only if there is no VmHWM.
    """
    try:
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, the others kibibytes
    return int(line.split()[1]) * 1024


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
