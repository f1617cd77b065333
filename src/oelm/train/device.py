"""Properties of the device: precision, memory allocation and peak memory."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import resource
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from oelm.spec.train import Precision

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
