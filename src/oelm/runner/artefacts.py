"""What a finished run leaves beside its record, whatever its task: step times, and measures of the machine."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import torch

from oelm.files import write_atomically
from oelm.record.memory import peak_resident_bytes
from oelm.record.store import TIMING
from oelm.record.timing import InitMethod, timing_stats
from oelm.spec.epochs import epochs_ended
from oelm.spec.run import RunSpec
from oelm.spec.train import Precision
from oelm.train.loop import Progress
from oelm.train.precision import autocast


def write_timing(
    directory: Path, run: RunSpec, progress: Progress, *, steps_per_epoch: float, wall_seconds: float
) -> None:
    """Write timing_stats.json."""
    published: dict[str, InitMethod] = {"orthogonal": "orthogonal", "normal": "normal"}
    stats = timing_stats(
        progress.step_seconds,
        model_type=run.arm,
        init_method=published.get(run.method.init.shape, "n/a"),
        dataset=run.data.corpus,
        total_wall_time=wall_seconds,
        validation_seconds=progress.validation_seconds,
        epoch_seconds=_epochs(progress.step_seconds, steps_per_epoch),
        best_val_loss=progress.best_loss,
    )
    write_atomically(directory / TIMING, stats.model_dump_json(indent=1) + "\n")


def peak_memory(device: torch.device) -> int:
    """Return the most memory this process has held, in bytes, on its device."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes()


def matmul_peak(device: torch.device, precision: Precision) -> float:
    """Measure the FLOPs per second of a large matrix product: what a training step can at most use."""
    size = 4096 if device.type == "cuda" else 768
    x = torch.randn(size, size, device=device)
    times = []
    with torch.no_grad(), autocast(device, precision):
        for _ in range(5):
            began = time.perf_counter()
            y = x @ x
            y[0, 0].item()  # waits for the device
            times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times)


def _epochs(step_seconds: list[float], steps_per_epoch: float) -> list[float]:
    """Sum the step times of each whole epoch."""
    whole = epochs_ended(len(step_seconds), steps_per_epoch)
    bounds = [round(epoch * steps_per_epoch) for epoch in range(whole + 1)]
    return [sum(step_seconds[first:last]) for first, last in itertools.pairwise(bounds)]
