"""Whether the regime of a study is representative: whether attention by content matters there as it does at scale.

A regime is the model, the data and the training, without learning rate, seed and machine. It is *representative* if

1. the lower 95 % bound of C, the value of content, is at least twice the margin;
2. C changes by less than a fifth over the last doubling of tokens;
3. T beats P by at least 0.2 nats on tokens that complete a bigram already seen in the window.

Elsewhere an arm can meet the margin without any attention by content; half the lower bound of C is the margin to use.
A study that did not measure C takes it from another study of the same regime. analysis/content.py defines T, P and C.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from oelm.analysis.budgets import SeedCurves, validation_curves
from oelm.analysis.compare import Comparison, compare_folder
from oelm.analysis.content import Costs, Worth, content_worth, tuning_costs
from oelm.analysis.evidence import Cell, JudgedSplit, Measure, Row, cell_of, list_meaning, margin_of
from oelm.errors import OelmError
from oelm.record.archive import open_archives_with_neighbours
from oelm.record.folder import STUDY, WindowLossesRecord, read_logit_variance, read_study, read_window_losses
from oelm.record.record import MetricRecord
from oelm.record.stages import index_by_declaration
from oelm.spec.study import Listing, Setting, Study, frozen_arms, replace_fields

MARGINS_REQUIRED = 2.0
"""C must be this many margins."""
MOST_CHANGE = 0.2
"""C must change by less than this share over the last doubling of tokens."""
LEAST_ON_REPEATS = 0.2
"""T must beat P by this many nats on repeats."""

_OF_THE_MACHINE = frozenset(
    f"train.{name}"
    for name in ("accumulation", "compiled", "device", "eval_every", "eval_tokens", "precision", "processes", "tf32",
                 "threads")
)  # fmt: skip
_OF_THE_TEXT = frozenset({"data.corpus", "data.tokens", "data.seed"})

CriterionName = Literal["worth", "doubling", "repeats"]


@dataclass(frozen=True)
class Criterion:
    """One of the three conditions: measured value, required value, and whether it is met (None: unknown)."""

    name: CriterionName
    value: float | None
    required: float
    is_met: bool | None


@dataclass(frozen=True)
class Regime:
    """One regime, measured by the arms of one study."""

    study: str
    cell: Cell
    measure: Measure
    worth: Worth
    against_reference: float | None
    """log ppl(P) - log ppl(reference), if the reference is another arm than T."""
    reference: str
    change: float | None
    """C at the end over C at half the tokens, minus one; None without curves."""
    on_repeats: float | None
    """Nats by which T beats P on repeats; None if it was not measured."""
    margin: float
    """Margin of the study that is being judged."""
    costs: Costs
    """Log perplexities of T and P."""
    checksums: frozenset[str | None]
    """Checksums of the training data of T and P."""
    precisions: frozenset[str]
    """Precisions of T and P."""
    is_tuned: bool
    """Whether each arm had a rate of its own."""
    same_text: bool = True
    """Whether it is the same regime as the judged study's; False: the same model and training on another text."""

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The three conditions."""
        lower, needed = self.worth.lower, MARGINS_REQUIRED * self.margin
        change, repeats = self.change, self.on_repeats
        return (
            Criterion("worth", lower, needed, None if lower is None else lower >= needed),
            Criterion("doubling", change, MOST_CHANGE, None if change is None else abs(change) < MOST_CHANGE),
            Criterion("repeats", repeats, LEAST_ON_REPEATS, None if repeats is None else repeats >= LEAST_ON_REPEATS),
        )

    @property
    def is_representative(self) -> bool | None:
        """False if one condition is violated, True if all are met, None if some are unknown."""
        found = [criterion.is_met for criterion in self.criteria]
        return False if False in found else None if None in found else True


def regimes_of(comparison: Comparison, complaints: list[str]) -> list[Regime]:
    """Measure a study's regime by its own arms, for each place on the axes and each position scheme."""
    study = comparison.study
    if comparison.measure.name != "perplexity" or not study.content_arms:
        return []
    found = []
    for cell, costs, judged in _costs(comparison):
        for arms in study.content_arms:
            worth = content_worth(arms, costs)
            if worth is None:
                continue
            trained, position = (_find_row(comparison, name, cell) for name in (arms.trained, arms.position))
            other = costs.get(study.reference, {}) if study.reference != arms.trained else {}
            own = costs.get(arms.position, {})
            behind = [own[seed] - other[seed] for seed in own if seed in other]
            found.append(
                Regime(
                    study=study.name,
                    cell=cell,
                    measure=Measure("perplexity", judged),
                    worth=worth,
                    against_reference=statistics.fmean(behind) if behind else None,
                    reference=study.reference,
                    change=_change(trained, position, complaints),
                    on_repeats=_on_repeats(trained, position, complaints),
                    margin=judged_margin(comparison),
                    costs={name: costs[name] for name in (arms.trained, arms.position)},
                    checksums=_checksums(trained, position),
                    precisions=_precisions(trained, position),
                    is_tuned=study.is_tuned,
                )
            )
    return found


def judged_margin(comparison: Comparison) -> float:
    """Return the margin that a regime is judged by. A margin of half of C would make any regime representative."""
    return margin_of(comparison.measure) if comparison.study.margin == "content" else comparison.margin


def _costs(comparison: Comparison) -> Iterator[tuple[Cell, Costs, JudgedSplit]]:
    """Yield the log perplexities at each place: those of the study's measure, or of validation for a screen."""
    study, choice = comparison.study, comparison.stage.choice
    if not study.is_screen:
        for cell in comparison.cells:
            rows = [row for row in comparison.rows if row.cell == cell]
            yield cell, {row.arm: row.by_seed for row in rows}, comparison.judged
    elif choice is not None:
        records = index_by_declaration(item.record for item in comparison.tuning)
        for setting, chosen in zip(study.cells(), choice.cells, strict=True):
            yield _cell(study, setting), tuning_costs(study, setting, chosen, records), "val"


def _checksums(*rows: Row | None) -> frozenset[str | None]:
    return frozenset(item.spec.data.checksum for row in rows if row for item in row.evidence)


def _precisions(*rows: Row | None) -> frozenset[str]:
    return frozenset(item.spec.train.precision for row in rows if row for item in row.evidence)


def _find_row(comparison: Comparison, arm: str, cell: Cell) -> Row | None:
    return next((row for row in comparison.rows if (row.arm, row.cell) == (arm, cell)), None)


def _cell(study: Study, setting: Setting) -> Cell:
    return cell_of(study, replace_fields(study.base, setting))


def _change(trained: Row | None, position: Row | None, complaints: list[str]) -> float | None:
    if trained is None or position is None:
        return None
    return change_over_last_doubling(validation_curves(trained, complaints), validation_curves(position, complaints))


def change_over_last_doubling(trained: SeedCurves, position: SeedCurves) -> float | None:
    """Return C(N) / C(N/2) - 1 from the validation curves, means over shared seeds; infinite if C(N/2) <= 0.

    None if no shared seed has both curves up to the same last step N, with a point at or before N/2.
    """
    ends, halves = [], []
    for seed in trained:
        curves = (trained[seed], position.get(seed, []))
        if not all(curves) or len({points[-1].step for points in curves}) > 1:
            continue
        at_half = [loss_at(points, points[-1].step / 2) for points in curves]
        if at_half[0] is not None and at_half[1] is not None:
            ends.append(curves[1][-1].loss - curves[0][-1].loss)
            halves.append(at_half[1] - at_half[0])
    if not ends:
        return None
    half = statistics.fmean(halves)
    return statistics.fmean(ends) / half - 1 if half > 0 else math.inf


def loss_at(points: Sequence[MetricRecord], step: float) -> float | None:
    """Return a curve's loss at a step, interpolated in log steps; None before its first point."""
    for before, after in itertools.pairwise(points):
        if 0 < before.step <= step <= after.step and before.step < after.step:
            share = math.log(step / before.step) / math.log(after.step / before.step)
            return before.loss + share * (after.loss - before.loss)
    return None


def _on_repeats(trained: Row | None, position: Row | None, complaints: list[str]) -> float | None:
    """Return by how many nats T beats P on repeats, the mean over shared seeds; None if it was not measured."""
    if trained is None or position is None:
        return None
    own, other = (
        {
            (seed, losses.split): losses.repeats.mean
            for seed, losses in row.read(read_window_losses, complaints).items()
            if losses.repeats.mean is not None
        }
        for row in (trained, position)
    )
    gains = [other[place] - own[place] for place in own if place in other]
    return statistics.fmean(gains) if gains else None


def find_regimes(comparison: Comparison, root: Path | None, complaints: list[str]) -> dict[Cell, Regime]:
    """Return the regime at each place on the axes: measured by this study, else by a study next to `root`.

    A study of the same regime is preferred to one of the same model and training on another text, then one that tuned
    its arms, then the position scheme of most frozen arms of this study, because content kept is defined within one
    scheme, then the most seeds.
    """
    study = comparison.study
    if comparison.measure.name != "perplexity" or not study.is_language:
        return {}
    found: dict[Cell, Regime] = {}
    for regime in regimes_of(comparison, complaints):
        found.setdefault(regime.cell, regime)
    if root is None:
        return found
    missing = {cell: setting for setting in study.cells() if (cell := _cell(study, setting)) not in found}
    if not missing:
        return found
    methods = {arm.name: arm.method for arm in study.arms if not arm.model}

    def preference(regime: Regime) -> tuple[bool, bool, int, int]:
        return (
            regime.same_text,
            regime.is_tuned,
            len(frozen_arms(methods, regime.worth.arms.scheme)),
            regime.worth.value.pairs,
        )

    with open_archives_with_neighbours(root) as own:
        for cell, setting in missing.items():
            candidates = _find_elsewhere(comparison, setting, own, complaints)
            best = max(candidates, key=preference, default=None)
            if best is not None:
                found[cell] = _adopt(comparison, cell, best)
    return found


def _adopt(comparison: Comparison, cell: Cell, regime: Regime) -> Regime:
    """Return another study's regime with the margin of this study and what its frozen arms keep.

    T and P of the other study are paired with the frozen arms by seed: they saw the same data in the same order. T and
    P at one rate for all are not paired with frozen arms that were tuned, nor across precisions.
    """
    methods = {arm.name: arm.method for arm in comparison.study.arms if not arm.model}
    rows = [_find_row(comparison, name, cell) for name in frozen_arms(methods, regime.worth.arms.scheme)]
    paired = (
        regime.same_text
        and regime.measure == comparison.measure
        and (regime.is_tuned or not comparison.study.is_tuned)
        and regime.precisions == _precisions(*rows)
    )
    own = {row.arm: row.by_seed for row in rows if paired and row and _checksums(row) == regime.checksums}
    arms = replace(regime.worth.arms, frozen=tuple(own))
    worth = content_worth(arms, {**own, **regime.costs})
    return replace(regime, margin=judged_margin(comparison), worth=worth or regime.worth)


def _find_elsewhere(comparison: Comparison, setting: Setting, root: Path, complaints: list[str]) -> Iterator[Regime]:
    """Yield the regimes that other studies in the same folder measured with this study's model and training."""
    study = comparison.study
    for folder in sorted(path.parent for path in root.resolve().parent.glob(f"*/{STUDY}")):
        try:
            other = read_study(folder)
            if folder == root.resolve() or isinstance(other, Listing) or not other.content_arms:
                continue
            cells = {_cell(other, cell): differing_regime_fields(study, setting, other, cell) for cell in other.cells()}
            if any(differs <= _OF_THE_TEXT for differs in cells.values()):
                for regime in regimes_of(compare_folder(other, folder), complaints):
                    if cells[regime.cell] <= _OF_THE_TEXT:
                        yield replace(regime, same_text=not cells[regime.cell])
        except OelmError as error:
            complaints.append(f"{folder.name}: {error}")


def differing_regime_fields(one: Study, own: Setting, other: Study, its: Setting) -> set[str]:
    """Name the fields in which the regimes of two studies differ, each at one place on its axes."""
    apart = {*_OF_THE_MACHINE, "train.learning_rate", "train.min_learning_rate", *one.tuned, *other.tuned}
    first, second = (_fields(study, setting, apart) for study, setting in ((one, own), (other, its)))
    return {field for field in {**first, **second} if first.get(field) != second.get(field)}


def _fields(study: Study, setting: Setting, apart: set[str]) -> Mapping[str, Any]:
    fields = list_meaning(replace_fields(study.base, setting))
    kept = ("model.", "data.", "train.")
    return {field: value for field, value in fields.items() if field.startswith(kept) and field not in apart}


# Where arms differ on text: on repeats or on other tokens, at which positions, by content or by position.
#
# A repeat completes a bigram that has already been seen in the window (oelm.record.folder). Differences to the
# reference are paired by seed.

Losses = Mapping[int, WindowLossesRecord]
"""Seed -> the losses of its run, all on one split with the same bins."""


@dataclass(frozen=True)
class Why:
    """Where one arm differs, as means over its seeds; None if it was not measured. Losses are nats per token."""

    arm: str
    cell: Cell
    split: str | None
    repeats: float | None
    others: float | None
    """Loss on all other tokens."""
    share_of_repeats: float | None
    repeats_difference: float | None
    """This and the next two are differences to the reference over shared seeds; None or empty for the reference."""
    others_difference: float | None
    position_differences: tuple[tuple[int, float], ...]
    """The middle of each bin of positions, in tokens of past context, and the difference there."""
    content_share: float | None
    """Median over heads of the share of the logits' variance that content explains."""


def explain_differences(comparison: Comparison, complaints: list[str]) -> list[Why]:
    """Read the losses by position and the variances of logits of every arm whose runs kept them."""
    losses = {(row.arm, row.cell): _keep_one_split(row.read(read_window_losses, complaints)) for row in comparison.rows}
    found = []
    for row in comparison.rows:
        own = losses[row.arm, row.cell]
        is_reference = row.arm == comparison.study.reference
        other = {} if is_reference else losses.get((comparison.study.reference, row.cell), {})
        shares = [item.median_share for item in row.read(read_logit_variance, complaints).values()]
        found.append(_explain(row, own, other, _mean(shares)))
    return [item for item in found if item.repeats is not None or item.content_share is not None]


def _explain(row: Row, own: Losses, other: Losses, content_share: float | None) -> Why:
    pairs = [(own[seed], other[seed]) for seed in own if seed in other and _bins(own[seed]) == _bins(other[seed])]
    return Why(
        arm=row.arm,
        cell=row.cell,
        split=next((item.split for item in own.values()), None),
        repeats=_mean([item.repeats.mean for item in own.values()]),
        others=_mean([item.others.mean for item in own.values()]),
        share_of_repeats=_mean([item.share_of_repeats for item in own.values()]),
        repeats_difference=_mean([_subtract(one.repeats.mean, two.repeats.mean) for one, two in pairs]),
        others_difference=_mean([_subtract(one.others.mean, two.others.mean) for one, two in pairs]),
        position_differences=tuple(_by_position(pairs)),
        content_share=content_share,
    )


def _by_position(pairs: Sequence[tuple[WindowLossesRecord, WindowLossesRecord]]) -> list[tuple[int, float]]:
    if not pairs:
        return []
    starts, context = pairs[0][0].starts, pairs[0][0].context
    middles = [1 + (first + last - 1) // 2 for first, last in zip(starts, (*starts[1:], context), strict=True)]
    by_pair = [map(_subtract, one.by_position, two.by_position) for one, two in pairs]
    means = map(_mean, zip(*by_pair, strict=True))
    return [(middle, mean) for middle, mean in zip(middles, means, strict=True) if mean is not None]


def _keep_one_split(losses: Losses) -> Losses:
    """Keep the losses of one split with the same bins: test if there are any."""
    first = min(losses.values(), key=lambda item: item.split != "test", default=None)
    return {seed: item for seed, item in losses.items() if first and _bins(item) == _bins(first)}


def _bins(losses: WindowLossesRecord) -> tuple[object, ...]:
    return losses.split, losses.starts, losses.context


def _subtract(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
