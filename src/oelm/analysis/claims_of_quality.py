"""The published claims about quality: what orthogonality gives, what freezing costs, on which corpora and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from oelm.analysis.ablation import ablations
from oelm.analysis.compare import Comparison
from oelm.analysis.finding import (
    Finding,
    LedgerVerdict,
    can_decide,
    counterpart,
    finding_of,
    frozen_rows,
    is_language,
    of_row,
    side,
)
from oelm.analysis.measure import judge
from oelm.analysis.rows import Row
from oelm.analysis.statistics import Verdict, percent
from oelm.spec.model import ForeignSpec

LEAST_GROWTH = 5
"""How many times as large the larger corpus must be."""


def orthogonal_beats_random(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Only the matched control tells orthogonality from scale; without it a win decides nothing."""
    for comparison in comparisons:
        for item in ablations(comparison):
            for step in item.steps:
                if step.difference and step.name in ("orthogonality", "scale-and-orthogonality"):
                    interval = step.difference.interval
                    verdict = side(interval, below="supported", above="contradicted")
                    rows = [comparison.row(name, item.cell) for name in (step.start, step.end)]
                    if verdict == "supported" and step.name != "orthogonality":
                        verdict = "undecided"
                    if not can_decide(comparison, rows[-1]):
                        verdict = "undecided"
                    yield finding_of(
                        comparison, f"{step.start} → {step.end}", verdict, step.difference.mean, interval, rows
                    )


def freezing_costs(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Ask whether the whole interval lies within the published 10 to 15 %, or outside."""
    for comparison in filter(is_language, comparisons):
        for row in frozen_rows(comparison):
            interval = row.difference.interval if row.difference else None
            verdict: LedgerVerdict = "undecided"
            if interval and can_decide(comparison, row):
                low, high = percent(interval.low), percent(interval.high)
                inside, outside = low >= 10 and high <= 15, high < 10 or low > 15
                verdict = "supported" if inside else "contradicted" if outside else "undecided"
            yield of_row(comparison, row, verdict)


def growing_corpora(comparisons: Iterable[Comparison]) -> Iterator[list[tuple[int, Comparison, Row]]]:
    """Yield frozen arms on parts of one text, with the tokens of each part, the smallest first.

    Other texts, models and lengths of training differ by more than size, and parts of about one size by too little.
    """
    series: dict[tuple[object, ...], list[tuple[int, Comparison, Row]]] = {}
    for comparison in filter(is_language, comparisons):
        for row in frozen_rows(comparison):
            spec, data = row.evidence[0].spec, row.evidence[0].record.data
            if data:
                alike = (spec.model.model_dump_json(), spec.data.corpus, data.vocab_size, spec.train.steps)
                series.setdefault(alike, []).append((data.tokens.get("train", 0), comparison, row))
    for members in series.values():
        ordered = sorted(members, key=lambda item: item[0])
        if ordered[-1][0] >= LEAST_GROWTH * ordered[0][0]:
            yield ordered


def grows_with_corpus(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Compare the smallest with the largest part of one text, within one model trained as long."""
    for ordered in growing_corpora(comparisons):
        (_, here, first), (_, there, last) = ordered[0], ordered[-1]
        if not first.difference or not last.difference:
            continue
        one, other = first.difference.interval, last.difference.interval
        verdict: LedgerVerdict = "undecided"
        if one and other and can_decide(here, first) and can_decide(there, last):
            verdict = "supported" if other.low > one.high else "contradicted" if other.high < one.low else verdict
        yield of_row(here, first, verdict)
        yield of_row(there, last, verdict)


def classification_tolerates(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Pretrained against from scratch is confounded with the task: only an encoder from scratch can support it."""
    for comparison in comparisons:
        for row in frozen_rows(comparison):
            other = counterpart(comparison, row)
            if other is None or other.arm == comparison.study.reference:
                judged = row.verdict if other else None
                yield of_row(comparison, row, _tolerates(comparison, row, judged))
            elif found := judge(comparison.measure, row.by_seed, other.by_seed, comparison.margin):
                verdict, difference = _tolerates(comparison, row, found.verdict), found.difference
                yield finding_of(
                    comparison, f"{other.arm} → {row.arm}", verdict, difference.mean, difference.interval, [other, row]
                )


def _tolerates(comparison: Comparison, row: Row, judged: Verdict | None) -> LedgerVerdict:
    model, labelled = row.evidence[0].spec.model, comparison.measure.name == "accuracy"
    if not can_decide(comparison, row):
        return "undecided"
    if labelled and judged == "met" and isinstance(model, ForeignSpec) and not model.pretrained:
        return "supported"
    return "contradicted" if judged == ("not met" if labelled else "met") else "undecided"
