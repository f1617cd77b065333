"""What each comparison and each bench measures about a published claim, and whether it counts.

Rules look at what arms and data are, never at what studies are called. A finding that does not count stays in the
report, with the reason. Findings about the quality of a GPT carry their regime: it is *small* where content, the part
of attention that positions cannot replace, is worth less than twice the margin.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from oelm.analysis.ablation import ablations, is_frozen, is_pretrained, starts_alike
from oelm.analysis.benches import Bench
from oelm.analysis.claims import LEAST_GROWTH, MODEL_SHARE_OF_MEMORY, Quantity, Unit
from oelm.analysis.compare import Comparison
from oelm.analysis.content import content_worth
from oelm.analysis.convergence import convergence, validation_curves
from oelm.analysis.evidence import Cell, Evidence
from oelm.analysis.pooling import Estimate, difference_of, estimate_of
from oelm.analysis.regime import MARGINS
from oelm.analysis.rows import LOST, Row
from oelm.analysis.savings import Saving, savings
from oelm.analysis.statistics import MARGIN, Difference
from oelm.spec.method import InitSpec, MethodSpec
from oelm.spec.model import ForeignSpec, GPTSpec

Regime = Literal["representative", "small", "unknown"]
Reason = Literal[
    "untuned", "repaired-baseline", "at-chance", "incomplete", "lost", "scale-confounded", "no-counterpart",
    "unexplained", "little-of-the-memory", "bench-instead", "small-regime", "no-interval",
]  # fmt: skip
"""Why a finding does not count."""

Pair = frozenset[str]
"""The fingerprints of the runs that one value comes from."""


@dataclass(frozen=True)
class Content:
    """What content is worth in a regime, in nats, and what that makes of it."""

    regime: Regime
    worth: Difference | None = None


@dataclass(frozen=True)
class Finding:
    """One effect of one study or bench, in the unit of the claim it is about."""

    study: str
    what: str
    """The arm, or the two arms, it is about."""
    place: str
    """Findings of one place (corpus, model and training) are one sample; places are pooled."""
    unit: Unit
    values: Mapping[Pair, float] = field(default_factory=dict)
    """One effect for each pair of runs; empty where there is only the estimate."""
    own: Estimate | None = None
    """The estimate of a bench, or of a difference of differences."""
    evidence: tuple[Evidence, ...] = ()
    bench: Bench | None = None
    content: Content | None = None
    """None where the regime does not matter: time, memory, encoders."""
    reason: Reason | None = None
    """Why it does not count; None: it counts."""
    at_least: bool = False
    """Whether some values are lower bounds: seeds that never reached the loss count with all their steps."""
    flop_share: float | None = None
    """What the method removes of a step's FLOPs, where time is asked about."""

    @property
    def estimate(self) -> Estimate | None:
        """The effect with its error; None with one pair, or where all pairs are equal."""
        return self.own or estimate_of(list(self.values.values()))

    @property
    def mean(self) -> float | None:
        """The effect alone."""
        if self.own:
            return self.own.mean
        return statistics.fmean(self.values.values()) if self.values else None


def find(quantity: Quantity, comparisons: Iterable[Comparison], benches: Sequence[Bench] = ()) -> list[Finding]:
    """Return every finding about a quantity, those that count and those that do not. Probes have none.

    Where a bench counts, the clocks of runs do not; where a representative regime counts, the others do not.
    """
    judged = [comparison for comparison in comparisons if not comparison.is_probe]
    found = _distinct(_FINDERS[quantity](judged, benches))
    if any(item.bench for item in found if item.reason is None):
        found = [item if item.bench else _without(item, "bench-instead") for item in found]
    if any(_is_representative(item) for item in found if item.reason is None):
        found = [item if _is_representative(item) else _without(item, "small-regime") for item in found]
    return found


def _distinct(found: Iterable[Finding]) -> list[Finding]:
    """Keep one finding of those that rest on the same runs: one that counts, if any does."""
    kept: dict[tuple[str, frozenset[Pair] | str], Finding] = {}
    for item in found:
        runs = (item.what, str(item.bench.path) if item.bench else frozenset(item.values) or item.study)
        if runs not in kept or (kept[runs].reason and not item.reason):
            kept[runs] = item
    return list(kept.values())


def _is_representative(item: Finding) -> bool:
    return item.content is not None and item.content.regime == "representative"


def _without(finding: Finding, reason: Reason) -> Finding:
    return finding if finding.reason else replace(finding, reason=reason)


def _orthogonality(comparisons: Sequence[Comparison], _: Sequence[Bench]) -> Iterator[Finding]:
    """Only the control of matched scale tells orthogonality from scale."""
    regimes = regimes_of(comparisons)
    for comparison in filter(is_language, comparisons):
        for item in ablations(comparison):
            for step in item.steps:
                if step.difference and step.name in ("orthogonality", "scale-and-orthogonality"):
                    start, end = (comparison.row(name, item.cell) for name in (step.start, step.end))
                    found = _of_rows(comparison, start, end, regimes)
                    yield found if step.name == "orthogonality" else _without(found, "scale-confounded")


def _freezing(comparisons: Sequence[Comparison], _: Sequence[Bench]) -> Iterator[Finding]:
    regimes = regimes_of(comparisons)
    for comparison in filter(is_language, comparisons):
        for row in frozen_rows(comparison):
            yield _of_rows(comparison, comparison.reference(row.cell), row, regimes)


def _growth(comparisons: Sequence[Comparison], benches: Sequence[Bench]) -> Iterator[Finding]:
    """Subtract the cost on the smallest part of a text from that on the largest, one model trained equally long."""
    series: dict[str, list[tuple[int, Finding]]] = {}
    for finding in _freezing(comparisons, benches):
        spec, data = finding.evidence[0].spec, finding.evidence[0].record.data
        if data:
            alike = [spec.model.model_dump_json(), spec.data.corpus, data.vocab_size, spec.train.steps]
            series.setdefault(json.dumps(alike), []).append((data.tokens.get("train", 0), finding))
    for key, members in series.items():
        ordered = sorted(members, key=lambda item: item[0])
        (few, small), (many, large) = ordered[0], ordered[-1]
        if many < LEAST_GROWTH * few:
            continue
        one, other = small.estimate, large.estimate
        yield replace(
            large,
            study=f"{small.study}, {large.study}",
            place=key,
            values={},
            own=difference_of(one, other) if one and other else None,
            evidence=(*small.evidence, *large.evidence),
            reason=small.reason or large.reason,
        )


def _encoder_quality(comparisons: Sequence[Comparison], _: Sequence[Bench], *, pretrained: bool) -> Iterator[Finding]:
    for comparison in comparisons:
        for row in frozen_rows(comparison):
            if comparison.measure.name == "accuracy" and is_pretrained(row) == pretrained:
                alike = counterpart(comparison, row)
                found = _of_rows(comparison, alike or comparison.reference(row.cell), row, {})
                yield found if alike else _without(found, "no-counterpart")


def _time(comparisons: Sequence[Comparison], benches: Sequence[Bench], *, encoder: bool) -> Iterator[Finding]:
    for bench in benches:
        if bench.is_encoder if encoder else bench.is_our_gpt:
            for name, arm in bench.frozen_arms:
                yield replace(
                    _of_bench(bench, name, bench.estimate(arm.saving, arm.saving_interval)), flop_share=arm.flop_share
                )
    for comparison in comparisons:
        if isinstance(comparison.study.base.model, ForeignSpec) if encoder else is_language(comparison):
            for saving, row in _savings(comparison):
                found = replace(_of_saving(comparison, row, saving.times), flop_share=saving.flops)
                yield _without(found, "unexplained") if saving.unexplained else found


def _memory(comparisons: Sequence[Comparison], benches: Sequence[Bench]) -> Iterator[Finding]:
    for bench in benches:
        if bench.is_our_gpt:
            for name, arm in bench.frozen_arms:
                estimate = bench.estimate(arm.memory_saving, arm.memory_saving_interval)
                yield replace(_of_bench(bench, name, estimate), values={frozenset({name}): bench.peak_saving(arm)})
    for comparison in filter(is_language, comparisons):
        for saving, row in _savings(comparison):
            found = _of_saving(comparison, row, saving.peaks)
            fills = _fills_memory(comparison.reference(row.cell))
            yield found if fills else _without(found, "little-of-the-memory")


def _encoder_steps(comparisons: Sequence[Comparison], _: Sequence[Bench]) -> Iterator[Finding]:
    for comparison in comparisons:
        for row in frozen_rows(comparison):
            if comparison.measure.name != "accuracy" or not is_pretrained(row):
                continue
            alike = counterpart(comparison, row)
            other = alike or comparison.reference(row.cell)
            own, theirs = (validation_curves(each, []) for each in (row, other))
            item = convergence(row, own, theirs)
            pairs = [_pair(row, other, seed) for seed in own if seed in theirs]
            if len(pairs) != len(item.step_shares) or not pairs:
                continue
            found = replace(
                _of_rows(comparison, other, row, {}),
                unit="steps", values=dict(zip(pairs, item.step_shares, strict=True)), at_least=item.missed > 0,
            )  # fmt: skip
            yield found if alike else _without(found, "no-counterpart")


_FINDERS: dict[Quantity, Callable[[Sequence[Comparison], Sequence[Bench]], Iterator[Finding]]] = {
    "orthogonality": _orthogonality,
    "freezing": _freezing,
    "growth": _growth,
    "pretrained-encoder": partial(_encoder_quality, pretrained=True),
    "fresh-encoder": partial(_encoder_quality, pretrained=False),
    "encoder-time": partial(_time, encoder=True),
    "gpt-time": partial(_time, encoder=False),
    "encoder-steps": _encoder_steps,
    "gpt-memory": _memory,
}


def _of_rows(comparison: Comparison, start: Row, end: Row, regimes: Mapping[str, Content]) -> Finding:
    """Return the cost of one arm over another, seed by seed."""
    costs, others = end.by_seed, start.by_seed
    what = end.arm if start.arm == comparison.study.reference else f"{start.arm} → {end.arm}"
    language = is_language(comparison)
    return Finding(
        study=comparison.study.name,
        what=what,
        place=place_of(end),
        unit="percent" if comparison.measure.name == "perplexity" else "points",
        values={_pair(end, start, seed): costs[seed] - others[seed] for seed in costs if seed in others},
        evidence=(*start.evidence, *end.evidence),
        content=regimes.get(place_of(end), Content("unknown")) if language else None,
        reason=why_not(comparison, (comparison.reference(end.cell), start, end)),
    )


def _of_saving(comparison: Comparison, row: Row, values: Mapping[int, float]) -> Finding:
    reference = comparison.reference(row.cell)
    return Finding(
        study=comparison.study.name,
        what=row.arm,
        place=place_of(row),
        unit="share",
        values={_pair(row, reference, seed): value for seed, value in values.items()},
        evidence=(*reference.evidence, *row.evidence),
    )


def _of_bench(bench: Bench, arm: str, estimate: Estimate | None) -> Finding:
    size = f"bench {bench.record.size}"
    reason: Reason | None = None if estimate else "no-interval"
    return Finding(size, arm, size, "share", own=estimate, bench=bench, reason=reason)


def _pair(row: Row, other: Row, seed: int) -> Pair:
    items = (*row.evidence, *other.evidence)
    return frozenset(item.record.fingerprint for item in items if item.spec.seed == seed)


def _savings(comparison: Comparison) -> Iterator[tuple[Saving, Row]]:
    rows = {(row.arm, row.cell): row for row in frozen_rows(comparison)}
    for saving in savings(comparison):
        if (saving.arm, saving.cell) in rows:
            yield saving, rows[saving.arm, saving.cell]


def _fills_memory(row: Row) -> bool:
    """Whether weights, gradients and moments are a large part of what a run held at its peak."""
    record = row.evidence[0].record
    if not record.cost or not record.result:
        return False
    held = 2 * record.cost.weight_bytes + record.cost.optimizer_bytes
    return held >= MODEL_SHARE_OF_MEMORY * record.result.peak_memory_bytes


def place_of(row: Row) -> str:
    """Name what a row's runs share with those of other studies that may be one sample with it, as JSON."""
    item = row.evidence[0]
    spec, data = item.spec, item.record.data
    model = spec.model.model_dump(mode="json", exclude={"checksum"})
    size = [data.vocab_size, data.tokens.get("train", 0)] if data else None
    return json.dumps([spec.data.corpus, size, model, spec.train.steps, spec.train.batch_size])


def frozen_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield the rows of the published method: frozen and head-wise orthogonal in all layers, and nothing else.

    From scratch that is a fresh draw, in a pretrained model QR of its current weights: a fresh draw there would discard
    what Q and K have learned, which no published run did. Compared with a reference that is frozen itself they say
    nothing about freezing.
    """
    if any(arm.name == comparison.study.reference and arm.method.freeze.roles for arm in comparison.study.arms):
        return
    methods = {arm.name: arm.method for arm in comparison.study.arms if not arm.model}
    for row in comparison.rows:
        method = methods.get(row.arm)
        if not method or not is_frozen(method) or not row.difference:
            continue
        source = "current" if is_pretrained(row) else "fresh"
        if method.init == InitSpec(shape="orthogonal", source=source):
            yield row


def counterpart(comparison: Comparison, row: Row) -> Row | None:
    """Return the arm that differs from a frozen arm by freezing alone; None where the study has no such arm.

    From scratch that is the reference. A pretrained baseline differs by orthogonalising as well, so there it is the arm
    that starts alike and trains, as in the published study.
    """
    if not is_pretrained(row):
        return comparison.reference(row.cell)
    (own,) = (arm for arm in comparison.study.arms if arm.name == row.arm)
    alike = (arm for arm in comparison.study.arms if starts_alike(arm.method, own.method) and not arm.model)
    rows = (comparison.row(arm.name, row.cell) for arm in alike)
    return next((other for other in rows if other.costs), None)


def why_not(comparison: Comparison, rows: Sequence[Row]) -> Reason | None:
    """Say why some rows of a comparison do not count as evidence about quality; None: they do."""
    study = comparison.study
    arms, cell = {row.arm for row in rows}, rows[-1].cell
    states = [gap.state for gap in comparison.gaps if gap.arm in arms and gap.cell == cell and gap.seed in study.seeds]
    if not study.is_tuned:
        return "untuned"
    if study.reference not in (arm.name for arm in study.arms if arm.method == MethodSpec() and not arm.model):
        return "repaired-baseline"
    if comparison.reference(cell).at_chance:
        return "at-chance"
    if any(state in LOST for state in states):
        return "lost"
    return "incomplete" if states else None


def is_language(comparison: Comparison) -> bool:
    """Whether a comparison is of language modelling from scratch."""
    return comparison.measure.name == "perplexity" and isinstance(comparison.study.base.model, GPTSpec)


def regimes_of(comparisons: Iterable[Comparison]) -> dict[str, Content]:
    """Tell what content is worth at every place where some study measures or bounds it."""
    found: dict[str, Content] = {}
    for comparison in filter(is_language, comparisons):
        for cell in comparison.cells:
            reference = comparison.reference(cell)
            content = _content(comparison, cell) if reference.evidence else None
            if content and (content.worth or place_of(reference) not in found):
                found[place_of(reference)] = content
    return found


def _content(comparison: Comparison, cell: Cell) -> Content | None:
    """Compare attention by position alone with trained Q/K that have the same position repair.

    Without such arms uniform attention gives an upper bound: positions can do at least as well as uniform weights.
    """
    enough = MARGINS * MARGIN  # of the success rule: a study may declare a margin of its own
    rows = {row.arm: row for row in comparison.rows if row.cell == cell and row.costs}
    for arms in comparison.study.content_arms:
        worth = content_worth(arms, {name: row.by_seed for name, row in rows.items()})
        if worth and worth.lower is not None:
            return Content("representative" if worth.lower >= enough else "small", worth.value)
    uniform = {arm.name for arm in comparison.study.arms if arm.method == MethodSpec(init=InitSpec(shape="absent"))}
    bound = next((row.difference.mean for name, row in rows.items() if name in uniform and row.difference), None)
    return Content("small") if bound is not None and bound < enough else None
