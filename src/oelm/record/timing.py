"""Step times in the published study's terms: what `timing_stats.json` holds.

The first steps (compilation, caches, the allocator growing) and steps over three times the median (a
neighbour on the machine) are not what a step costs: both are left out, and the record says how many stayed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from oelm.record.schema import Record, perplexity

InitMethod = Literal["orthogonal", "normal", "n/a"]
WARMUP_STEPS = 100
OUTLIER = 3.0
"""Steps longer than this many medians are left out."""


class TimingRecord(Record):
    """`timing_stats.json`, field by field as published. Times are seconds; None: nothing was measured."""

    model_type: str
    init_method: InitMethod
    dataset: str
    total_wall_time: float
    total_formatted: str
    num_steps_measured: int
    warmup_steps: int
    mean_step_time: float | None
    std_step_time: float | None
    median_step_time: float | None
    min_step_time: float | None
    max_step_time: float | None
    p95_step_time: float | None
    p99_step_time: float | None
    total_validation_time: float
    mean_validation_time: float | None
    num_validations: int
    epoch_times: tuple[float, ...]
    final_perplexity: float | None
    """exp(best_val_loss), as published; the figure to report is the record's test perplexity."""
    best_val_loss: float | None


def timing_stats(
    step_seconds: Sequence[float],
    *,
    model_type: str,
    init_method: InitMethod,
    dataset: str,
    total_wall_time: float,
    validation_seconds: Sequence[float] = (),
    epoch_seconds: Sequence[float] = (),
    best_val_loss: float | None = None,
) -> TimingRecord:
    """Summarise a run's step times, without its first ones."""
    warmup = warmup_of(len(step_seconds))
    kept = steady(step_seconds[warmup:])
    validation = math.fsum(validation_seconds)
    return TimingRecord(
        model_type=model_type,
        init_method=init_method,
        dataset=dataset,
        total_wall_time=total_wall_time,
        total_formatted=formatted(total_wall_time),
        num_steps_measured=len(kept),
        warmup_steps=warmup,
        mean_step_time=statistics.fmean(kept) if kept else None,
        std_step_time=statistics.pstdev(kept) if kept else None,
        median_step_time=statistics.median(kept) if kept else None,
        min_step_time=kept[0] if kept else None,
        max_step_time=kept[-1] if kept else None,
        p95_step_time=quantile(kept, 0.95) if kept else None,
        p99_step_time=quantile(kept, 0.99) if kept else None,
        total_validation_time=validation,
        mean_validation_time=validation / len(validation_seconds) if validation_seconds else None,
        num_validations=len(validation_seconds),
        epoch_times=tuple(epoch_seconds),
        final_perplexity=None if best_val_loss is None else perplexity(best_val_loss),
        best_val_loss=best_val_loss,
    )


def warmup_of(steps: int) -> int:
    """Return how many first steps to leave out: the published number, but at most a tenth of the run."""
    return min(WARMUP_STEPS, steps // 10)


def steady(step_seconds: Sequence[float]) -> list[float]:
    """Sort the times and leave out those over `OUTLIER` medians."""
    if not step_seconds:
        return []
    limit = OUTLIER * statistics.median(step_seconds)
    return sorted(seconds for seconds in step_seconds if seconds <= limit)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate between the two nearest of the sorted values (numpy's default rule)."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def formatted(seconds: float) -> str:
    """Write a duration as published: "4h 31m 27s", "31m 27s", "27s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes}m {rest}s"
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"
