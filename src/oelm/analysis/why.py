"""Where arms differ on text: on repeats or on other tokens, at which positions, by content or by position.

A repeat completes a bigram that has already been seen in the window (oelm.record.window_losses). Differences to the
reference are paired by seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
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
Losses = Mapping[int, WindowLossesRecord]
"""Seed -> the losses of its run, all of one split and the same bins."""


@dataclass(frozen=True)
class Why:
    """What one arm's runs say, means over their seeds; None where it was not measured. Losses are nats per token."""

    arm: str
    cell: Cell
    split: str | None
    repeats: float | None
    others: float | None
    """On all other tokens."""
    share_of_repeats: float | None
    repeats_difference: float | None
    """Against the reference, over the seeds that both have; None for the reference itself. So the next two."""
    others_difference: float | None
    position_differences: tuple[tuple[int, float], ...]
    """The middle of each bin of positions, in tokens of past, and the difference there."""
    content_share: float | None
    """Median over heads of the share of the logits' variance that content explains; None where nothing else does."""


def whys(comparison: Comparison, complaints: list[str]) -> list[Why]:
    """Read the losses by position and the variances of logits of every arm that left them."""
    losses = {(row.arm, row.cell): _of_one_split(_read(row, read_window_losses, complaints)) for row in comparison.rows}
    found = []
    for row in comparison.rows:
        own = losses[row.arm, row.cell]
        is_reference = row.arm == comparison.study.reference
        other = {} if is_reference else losses.get((comparison.study.reference, row.cell), {})
        shares = [item.median_share for item in _read(row, read_logit_variance, complaints).values()]
        found.append(_why(row, own, other, _mean(shares)))
    return [item for item in found if item.repeats is not None or item.content_share is not None]


def _why(row: Row, own: Losses, other: Losses, content_share: float | None) -> Why:
    pairs = [(own[seed], other[seed]) for seed in own if seed in other and _bins(own[seed]) == _bins(other[seed])]
    return Why(
        arm=row.arm,
        cell=row.cell,
        split=next((item.split for item in own.values()), None),
        repeats=_mean([item.repeats.mean for item in own.values()]),
        others=_mean([item.others.mean for item in own.values()]),
        share_of_repeats=_mean([item.share_of_repeats for item in own.values()]),
        repeats_difference=_mean([_minus(one.repeats.mean, two.repeats.mean) for one, two in pairs]),
        others_difference=_mean([_minus(one.others.mean, two.others.mean) for one, two in pairs]),
        position_differences=tuple(_by_position(pairs)),
        content_share=content_share,
    )


def _by_position(pairs: Sequence[tuple[WindowLossesRecord, WindowLossesRecord]]) -> list[tuple[int, float]]:
    if not pairs:
        return []
    starts, context = pairs[0][0].starts, pairs[0][0].context
    middles = [1 + (first + last - 1) // 2 for first, last in zip(starts, (*starts[1:], context), strict=True)]
    by_pair = [map(_minus, one.by_position, two.by_position) for one, two in pairs]
    means = map(_mean, zip(*by_pair, strict=True))
    return [(middle, mean) for middle, mean in zip(middles, means, strict=True) if mean is not None]


def _of_one_split(losses: Losses) -> Losses:
    """Return the losses of one split with the same bins: of test where there are any."""
    first = min(losses.values(), key=lambda item: item.split != "test", default=None)
    return {seed: item for seed, item in losses.items() if first and _bins(item) == _bins(first)}


def _bins(losses: WindowLossesRecord) -> tuple[object, ...]:
    return losses.split, losses.starts, losses.context


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _read(row: Row, read: Callable[[Path], T | None], complaints: list[str]) -> dict[int, T]:
    """Return seed -> what its run left; what cannot be read is reported and left out."""
    found = {}
    for item in row.evidence:
        try:
            record = read(item.directory)
        except BadRecord as error:
            complaints.append(str(error))
            continue
        if record is not None:
            found[item.spec.seed] = record
    return found
