"""Precision as a switch: fp32, or autocast to a half type."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context in which the forward pass runs."""
    return torch.autocast(device.type, _HALF[precision]) if precision in _HALF else nullcontext()


def scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Return a gradient scaler; only fp16, whose gradients underflow, makes it do anything."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
