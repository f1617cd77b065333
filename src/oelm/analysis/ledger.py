"""The published claims, each with its verdict from the records at hand.

Rules look at what arms and data are, never at what studies are called. Each finding judges one comparison; a claim is
supported or contradicted if all findings that decide anything agree, *undecided* if they do not or decide nothing,
*not yet tested* if there is no finding at all. About quality only a comparison decides in which every arm was tuned,
and in which attention mattered: the baseline beats uniform attention by a tenth, or guessing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from oelm.analysis.ablation import ablations, is_frozen, is_pretrained, starts_alike
from oelm.analysis.compare import Comparison
from oelm.analysis.convergence import convergence, validation_curves
from oelm.analysis.fairness import Cell, Evidence
from oelm.analysis.measure import judge
from oelm.analysis.rows import Row
from oelm.analysis.savings import Saving, savings
from oelm.analysis.statistics import Interval, Verdict, paired_difference, percent
from oelm.spec.data import DataSpec
from oelm.spec.method import InitSpec
from oelm.spec.model import ForeignSpec, GPTSpec

LedgerVerdict = Literal["supported", "contradicted", "undecided", "not yet tested"]
Unit = Literal["percent", "points", "share", "steps"]
Claim = Literal[
    "orthogonal-beats-random", "freezing-costs-10-to-15", "loss-grows-with-the-corpus",
    "classification-tolerates-freezing", "57-percent-faster-on-bert", "no-gain-on-gpt",
    "converges-in-fewer-epochs", "less-memory",
]  # fmt: skip


LEAST_USE = 10.0
"""Percent by which uniform attention must be behind, or a regime says nothing about attention."""
LEAST_GROWTH = 5
"""How many times as large the larger corpus must be."""
LEAST_GAIN = 0.05
"""Of the time: below it nobody would call it a gain."""


@dataclass(frozen=True)
class Finding:
    """What one comparison says about a claim: a number with its interval, and the records behind it."""

    study: str
    what: str
    verdict: LedgerVerdict
    unit: Unit
    mean: float | None
    interval: Interval | None
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Entry:
    """A claim, its verdict and what it rests on."""

    claim: Claim
    verdict: LedgerVerdict
    findings: tuple[Finding, ...]


def ledger(comparisons: Sequence[Comparison]) -> list[Entry]:
    """Judge every published claim by some comparisons."""
    judged = [comparison for comparison in comparisons if not _is_probe(comparison)]
    return [_entry(claim, list(rule(judged))) for claim, rule in _RULES.items()]


def _is_probe(comparison: Comparison) -> bool:
    """Whether a comparison is of probes, which say why, and nothing about text or labels."""
    data = comparison.study.base.data
    return isinstance(data, DataSpec) and data.probe is not None


def _entry(claim: Claim, found: list[Finding]) -> Entry:
    """Sum up. Studies that share their runs are one finding, not several."""
    findings = list({(item.what, _runs(item)): item for item in found}.values())
    decided = {finding.verdict for finding in findings} & {"supported", "contradicted"}
    verdict: LedgerVerdict = "undecided" if findings else "not yet tested"
    if len(decided) == 1:
        (verdict,) = decided
    return Entry(claim, verdict, tuple(findings))


def _runs(finding: Finding) -> frozenset[str]:
    return frozenset(item.record.fingerprint for item in finding.evidence)


def frozen_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield the rows of the published method: frozen and head-wise orthogonal in all layers, and nothing else.

    From scratch that is a fresh draw, in a pretrained model what its current weights are made into: a fresh draw there
    would throw away what Q and K have learned, which no published run did.
    """
    methods = {arm.name: arm.method for arm in comparison.study.arms if not arm.model}
    for row in comparison.rows:
        method = methods.get(row.arm)
        if not method or not is_frozen(method) or not row.difference:
            continue
        source = "current" if is_pretrained(row) else "fresh"
        if method.init == InitSpec(shape="orthogonal", source=source):
            yield row


def _counterpart(comparison: Comparison, row: Row) -> Row | None:
    """Return what a frozen arm is held against where freezing is asked about; None where the study has no such arm.

    From scratch that is the reference. A pretrained baseline differs by orthogonalising as well, so there it is the arm
    that starts alike and trains, as it was in the published study.
    """
    if not is_pretrained(row):
        return comparison.reference(row.cell)
    (own,) = (arm for arm in comparison.study.arms if arm.name == row.arm)
    alike = (arm for arm in comparison.study.arms if starts_alike(arm.method, own.method) and not arm.model)
    rows = (comparison.row(arm.name, row.cell) for arm in alike)
    return next((other for other in rows if other.costs), None)


def _can_decide(comparison: Comparison, row: Row) -> bool:
    """Whether a comparison says anything about quality: every arm tuned, and attention mattered."""
    if not comparison.study.is_tuned or row.at_chance:
        return False
    return not is_language(comparison) or _uses_attention(comparison, row.cell)


def _uses_attention(comparison: Comparison, cell: Cell) -> bool:
    """Whether the reference beats uniform attention by a tenth; not known where no arm has it."""
    uniform = {arm.name for arm in comparison.study.arms if arm.method.init.shape == "absent"}
    rows = [row for row in comparison.rows if row.arm in uniform and row.cell == cell and row.difference]
    return any(row.difference is not None and percent(row.difference.mean) >= LEAST_USE for row in rows)


def is_language(comparison: Comparison) -> bool:
    """Whether a comparison is of language modelling from scratch."""
    return comparison.measure.name == "perplexity" and isinstance(comparison.study.base.model, GPTSpec)


def _orthogonal_beats_random(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Only the matched control tells orthogonality from scale; without it a win decides nothing."""
    for comparison in comparisons:
        for item in ablations(comparison):
            for step in item.steps:
                if step.difference and step.name in ("orthogonality", "scale-and-orthogonality"):
                    interval = step.difference.interval
                    verdict = _side(interval, below="supported", above="contradicted")
                    rows = [comparison.row(name, item.cell) for name in (step.start, step.end)]
                    if verdict == "supported" and step.name != "orthogonality":
                        verdict = "undecided"
                    if not _can_decide(comparison, rows[-1]):
                        verdict = "undecided"
                    yield _finding(
                        comparison, f"{step.start} → {step.end}", verdict, step.difference.mean, interval, rows
                    )


def _freezing_costs(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    for comparison in filter(is_language, comparisons):
        for row in frozen_rows(comparison):
            interval = row.difference.interval if row.difference else None
            verdict: LedgerVerdict = "undecided"
            if interval and _can_decide(comparison, row):
                low, high = percent(interval.low), percent(interval.high)
                inside, outside = low >= 10 and high <= 15, high < 10 or low > 15
                verdict = "supported" if inside else "contradicted" if outside else "undecided"
            yield _of_row(comparison, row, verdict)


def _grows_with_corpus(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Compare the smallest with the largest part of one text, within one model trained as long."""
    series: dict[tuple[object, ...], list[tuple[int, Comparison, Row]]] = {}
    for comparison in filter(is_language, comparisons):
        for row in frozen_rows(comparison):
            spec, data = row.evidence[0].spec, row.evidence[0].record.data
            if data:
                alike = (spec.model.model_dump_json(), spec.data.corpus, data.vocab_size, spec.train.steps)
                series.setdefault(alike, []).append((data.tokens.get("train", 0), comparison, row))
    for members in series.values():
        ordered = sorted(members, key=lambda item: item[0])
        (small, here, first), (large, there, last) = ordered[0], ordered[-1]
        if large < LEAST_GROWTH * small or not first.difference or not last.difference:
            continue
        one, other = first.difference.interval, last.difference.interval
        verdict: LedgerVerdict = "undecided"
        if one and other and _can_decide(here, first) and _can_decide(there, last):
            verdict = "supported" if other.low > one.high else "contradicted" if other.high < one.low else verdict
        yield _of_row(here, first, verdict)
        yield _of_row(there, last, verdict)


def _classification_tolerates(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Pretrained against from scratch is confounded with the task: only an encoder from scratch can support it."""
    for comparison in comparisons:
        for row in frozen_rows(comparison):
            other = _counterpart(comparison, row)
            if other is None or other.arm == comparison.study.reference:
                judged = row.verdict if other else None
                yield _of_row(comparison, row, _tolerates(comparison, row, judged))
            elif found := judge(comparison.measure, row.by_seed, other.by_seed, comparison.margin):
                verdict, difference = _tolerates(comparison, row, found.verdict), found.difference
                yield _finding(
                    comparison, f"{other.arm} → {row.arm}", verdict, difference.mean, difference.interval, [other, row]
                )


def _tolerates(comparison: Comparison, row: Row, judged: Verdict | None) -> LedgerVerdict:
    model, labelled = row.evidence[0].spec.model, comparison.measure.name == "accuracy"
    if not _can_decide(comparison, row):
        return "undecided"
    if labelled and judged == "met" and isinstance(model, ForeignSpec) and not model.pretrained:
        return "supported"
    return "contradicted" if judged == ("not met" if labelled else "met") else "undecided"


def _faster(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    for comparison in comparisons:
        if isinstance(comparison.study.base.model, ForeignSpec) and not comparison.mixed:
            for saving, row in _savings(comparison):
                if saving.time is not None:
                    verdict = _side(_shifted(saving.time_interval, 0.5), below="contradicted", above="supported")
                    yield _of_saving(comparison, row, saving.time, saving.time_interval, verdict)


def _no_gain(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    for comparison in filter(is_language, comparisons):
        for saving, row in _savings(comparison):
            if saving.time is not None and not comparison.mixed:
                interval = saving.time_interval
                # Below the least gain is no gain, be it surely more than nothing.
                verdict = _side(_shifted(interval, LEAST_GAIN), below="supported", above="contradicted")
                yield _of_saving(comparison, row, saving.time, interval, verdict)


def _less_memory(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Ask of the peak of memory, as measured; the published 4.7 % is of checkpoint files.

    A model so small that the program itself is most of the peak cannot save that much, whatever is frozen.
    """
    for comparison in filter(is_language, comparisons):
        for saving, row in _savings(comparison):
            if saving.memory is not None:
                interval = saving.memory_interval
                verdict = _side(_shifted(interval, 0.04), below="contradicted", above="supported")
                if not _fills_memory(comparison.reference(row.cell)):
                    verdict = "undecided"
                yield _of_saving(comparison, row, saving.memory, interval, verdict)


def _fills_memory(row: Row) -> bool:
    """Whether weights, gradients and moments are at least half of what a run held at its peak."""
    record = row.evidence[0].record
    if not record.cost or not record.result:
        return False
    return 2 * record.cost.weight_bytes + record.cost.optimizer_bytes >= record.result.peak_memory_bytes / 2


def _converges(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Ask for four fifths of the steps to the baseline's loss: published are 2.0 epochs instead of 2.5.

    Seeds that never come to it count with all their steps, which is a lower bound and no sample: then the final losses
    decide, and they can only contradict.
    """
    for comparison in comparisons:
        if comparison.measure.name != "accuracy":
            continue
        complaints: list[str] = []
        for row in frozen_rows(comparison):
            alike = _counterpart(comparison, row)
            other = alike or comparison.reference(row.cell)
            own, theirs = (validation_curves(each, complaints) for each in (row, other))
            item = convergence(row, own, theirs)
            if not item.step_shares:
                continue
            shares = paired_difference(item.step_shares)
            verdict: LedgerVerdict = "undecided"
            if alike and _can_decide(comparison, row):
                behind = [own[seed][-1].loss - theirs[seed][-1].loss for seed in own if seed in theirs]
                verdict = (
                    _side(paired_difference(behind).interval, below="undecided", above="contradicted")
                    if item.missed
                    else _fewer(shares.interval)
                )
            mean, interval = (None, None) if item.missed else (shares.mean, shares.interval)
            what = row.arm if other.arm == comparison.study.reference else f"{other.arm} → {row.arm}"
            yield Finding(comparison.study.name, what, verdict, "steps", mean, interval, row.evidence)


def _fewer(shares: Interval | None) -> LedgerVerdict:
    if shares is None:
        return "undecided"
    return "supported" if shares.high <= 0.85 else "contradicted" if shares.low >= 1 else "undecided"


_RULES: dict[Claim, Callable[[Sequence[Comparison]], Iterator[Finding]]] = {
    "orthogonal-beats-random": _orthogonal_beats_random,
    "freezing-costs-10-to-15": _freezing_costs,
    "loss-grows-with-the-corpus": _grows_with_corpus,
    "classification-tolerates-freezing": _classification_tolerates,
    "57-percent-faster-on-bert": _faster,
    "no-gain-on-gpt": _no_gain,
    "converges-in-fewer-epochs": _converges,
    "less-memory": _less_memory,
}


def _savings(comparison: Comparison) -> Iterator[tuple[Saving, Row]]:
    rows = {(row.arm, row.cell): row for row in frozen_rows(comparison)}
    for saving in savings(comparison):
        if (saving.arm, saving.cell) in rows:
            yield saving, rows[saving.arm, saving.cell]


def _side(interval: Interval | None, *, below: LedgerVerdict, above: LedgerVerdict) -> LedgerVerdict:
    if interval is None:
        return "undecided"
    return below if interval.high < 0 else above if interval.low > 0 else "undecided"


def _shifted(interval: Interval | None, by: float) -> Interval | None:
    return Interval(interval.low - by, interval.high - by) if interval else None


def _of_row(comparison: Comparison, row: Row, verdict: LedgerVerdict) -> Finding:
    difference = row.difference
    return _finding(
        comparison, row.arm, verdict, difference.mean if difference else None,
        difference.interval if difference else None, [comparison.reference(row.cell), row],
    )  # fmt: skip


def _of_saving(
    comparison: Comparison, row: Row, mean: float | None, interval: Interval | None, verdict: LedgerVerdict
) -> Finding:
    return Finding(comparison.study.name, row.arm, verdict, "share", mean, interval, row.evidence)


def _finding(
    comparison: Comparison, what: str, verdict: LedgerVerdict, mean: float | None, interval: Interval | None,
    rows: Sequence[Row],
) -> Finding:  # fmt: skip
    unit: Unit = "percent" if comparison.measure.name == "perplexity" else "points"
    evidence = tuple(itertools.chain.from_iterable(row.evidence for row in rows))
    return Finding(comparison.study.name, what, verdict, unit, mean, interval, evidence)
