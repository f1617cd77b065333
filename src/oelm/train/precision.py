"""Precision as a switch: fp32, or autocast to a half type, or what the device computes fastest in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from oelm.spec.train import Precision

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(device: str, asked: Precision) -> Precision:
    """Return the precision to compute in: "auto" is bf16 where the device has it natively, fp32 elsewhere."""
    if asked != "auto":
        return asked
    return "bf16" if has_native_bf16(device) else "fp32"


def has_native_bf16(device: str) -> bool:
    """Tell whether the device multiplies bf16 matrices in hardware.

    Where no GPU is visible, as where jobs are submitted, the one that the run will get is taken to do so.
    """
    if device == "cuda":
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    # Without instructions of its own a CPU converts to float32 and back, which is slower than float32.
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001  (no public name)


def allow_tf32(device: torch.device, *, allowed: bool) -> None:
    """Let fp32 products on a GPU use TensorFloat-32, or not. On a CPU fp32 is always fp32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if allowed else "highest")


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Return the context in which the forward pass runs."""
    precision = resolve_precision(device.type, precision)
    return torch.autocast(device.type, _HALF[precision]) if precision in _HALF else nullcontext()


def scaler(device: torch.device, precision: Precision) -> torch.amp.GradScaler:
    """Return a gradient scaler; only fp16, whose gradients underflow, makes it do anything."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
