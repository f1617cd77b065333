"""The figures of a sealed split, next to those of the test split."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from oelm.analysis.compare import Comparison
from oelm.analysis.measure import Measure
from oelm.analysis.rows import Row
from oelm.analysis.statistics import Difference, paired_difference
from oelm.record.seal import SealedScore, read_unsealed
from oelm.report.document import Column, Line, Section, Table
from oelm.report.numbers import shown_difference, shown_figure, shown_interval
from oelm.report.wording import Say


def sealed_section(comparison: Comparison, root: Path, say: Say) -> Iterator[Section]:
    """Set the sealed figures next to the test figures, if the seal has been broken."""
    found = read_unsealed(root)
    if found is None:
        return
    commit = found.commit[:12] if found.commit else say("commit_unknown")
    note = say("sealed_note", day=found.opened[:10], commit=commit)
    scores = {score.fingerprint: score for score in found.scores}
    yield Section("sealed", say("heading_sealed"), (note,), table=_table(comparison, scores, say))


def _table(comparison: Comparison, scores: Mapping[str, SealedScore], say: Say) -> Table:
    reference = comparison.study.reference
    test, sealed = say("sealed_test"), say("sealed_sealed")
    columns = (
        *(Column("axis", axis) for axis in comparison.study.axis_names),
        Column("arm", say("arm")),
        Column("test", test),
        Column("sealed", sealed),
        Column("test_difference", say("sealed_difference", split=test, reference=reference)),
        Column("sealed_difference", say("sealed_difference", split=sealed, reference=reference)),
        Column("test_interval", say("sealed_interval", split=test)),
        Column("sealed_interval", say("sealed_interval", split=sealed)),
    )
    lines = tuple(Line(tuple(_cells(comparison, row, scores, say))) for row in comparison.rows)
    return Table("sealed", columns, lines)


def _cells(comparison: Comparison, row: Row, scores: Mapping[str, SealedScore], say: Say) -> Iterator[str]:
    measure = comparison.measure
    own = sealed_costs(row, scores, measure)
    other = sealed_costs(comparison.reference(row.cell), scores, measure)
    pairs = [own[seed] - other[seed] for seed in own if seed in other]
    is_reference = row.arm == comparison.study.reference
    sealed = paired_difference(pairs, margin=comparison.margin) if pairs and not is_reference else None
    yield from (value for _, value in row.cell)
    yield row.arm
    yield shown_figure(row.figure, measure, say)
    yield shown_figure(measure.figure(statistics.fmean(own.values())) if own else None, measure, say)
    yield from (_difference(item, measure, say) for item in (row.difference, sealed))
    yield from (shown_interval(item, measure, say) for item in (row.difference, sealed))


def _difference(difference: Difference | None, measure: Measure, say: Say) -> str:
    return say("none") if difference is None else shown_difference(difference.mean, measure, say)


def sealed_costs(row: Row, scores: Mapping[str, SealedScore], measure: Measure) -> dict[int, float]:
    """Return what each seed of a row costs on the sealed split."""
    found = [(item.spec.seed, scores.get(item.record.fingerprint)) for item in row.evidence]
    return {
        seed: score.loss if measure.name == "perplexity" else -100 * (score.accuracy or 0.0)
        for seed, score in found
        if score is not None
    }
