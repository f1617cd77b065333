"""Where arms differ on text: on repeats or on other tokens, at which positions, by content or by position.

A repeat completes a bigram that has already been seen in the window (oelm.record.window_losses).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell
from oelm.analysis.rows import Row
from oelm.errors import BadRecord
from oelm.record.attention import read_logit_variance
from oelm.record.window_losses import WindowLossesRecord, read_window_losses

T = TypeVar("T")


@dataclass(frozen=True)
class Why:
    """What one arm's runs say, means over their seeds; None where it was not measured."""

    arm: str
    cell: Cell
    split: str | None
    repeats: float | None
    """Nats per token on repeats."""
    others: float | None
    """Nats per token on all other tokens."""
    share_of_repeats: float | None
    positions: tuple[int, ...]
    """The middle of each bin of positions, in tokens of past, and the loss there."""
    by_position: tuple[float, ...]
    content_share: float | None
    """Median over heads of the share of the logits' variance that content explains; None where nothing else does."""


def whys(comparison: Comparison, complaints: list[str]) -> list[Why]:
    """Read the losses by position and the variances of logits of every arm that left them."""
    found = [_why(row, complaints) for row in comparison.rows]
    return [item for item in found if item.repeats is not None or item.content_share is not None]


def _why(row: Row, complaints: list[str]) -> Why:
    losses = _read(row, read_window_losses, complaints)
    variances = _read(row, read_logit_variance, complaints)
    one = min(losses, key=lambda item: item.split != "test", default=None)  # all of one split, test where there is one
    alike = [item for item in losses if one and (item.split, item.starts) == (one.split, one.starts)]
    positions, by_position = _by_position(alike)
    return Why(
        arm=row.arm,
        cell=row.cell,
        split=one.split if one else None,
        repeats=_mean([item.repeats.mean for item in alike]),
        others=_mean([item.others.mean for item in alike]),
        share_of_repeats=_mean([item.share_of_repeats for item in alike]),
        positions=positions,
        by_position=by_position,
        content_share=_mean([item.median_share for item in variances]),
    )


def _by_position(losses: Sequence[WindowLossesRecord]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    if not losses:
        return (), ()
    ends = (*losses[0].starts[1:], losses[0].context)
    means = [_mean(values) for values in zip(*(item.by_position for item in losses), strict=True)]
    kept = [
        (1 + (first + last - 1) // 2, mean) for first, last, mean in zip(losses[0].starts, ends, means, strict=True)
    ]
    return tuple(place for place, mean in kept if mean is not None), tuple(mean for _, mean in kept if mean is not None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _read(row: Row, read: Callable[[Path], T | None], complaints: list[str]) -> list[T]:
    found = []
    for item in row.evidence:
        try:
            record = read(item.directory)
        except BadRecord as error:
            complaints.append(str(error))
            continue
        if record is not None:
            found.append(record)
    return found
