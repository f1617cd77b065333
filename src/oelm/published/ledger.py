"""The verdict on every published claim, from the records and benches on file, by the rules of oelm.published.claims.

A `ClaimFinding` is what one comparison or bench measures about a claim. Findings are recognised by the methods of the
arms and by the data, never by the names of studies. One that does not count stays in the report, with the reason.
Findings about the quality of a GPT carry their regime: it is *small* if the value of content is less than twice the
margin.

Findings of one place (corpus, model, training) are one sample of paired seeds. Places are pooled by random effects
(oelm.analysis.statistics); two places are too few to pool and must agree. The p-value of each claim's verdict is
corrected for the number of claims (Holm). An undecided claim says how many more seeds, or which experiment, would
decide it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from oelm.analysis.ablation import ablations, is_frozen, is_pretrained, starts_alike
from oelm.analysis.budgets import Saving, measure_convergence, savings, validation_curves
from oelm.analysis.compare import Comparison
from oelm.analysis.content import content_worth
from oelm.analysis.evidence import LOST, Cell, Evidence, Row
from oelm.analysis.regime import MARGINS_REQUIRED
from oelm.analysis.statistics import (
    CONFIDENCE,
    MARGIN,
    MOST_SEEDS,
    Adjusted,
    Difference,
    Estimate,
    Interval,
    Pooled,
    combine_estimates,
    difference_of,
    estimate_of,
    holm,
    pool,
)
from oelm.errors import UnknownName
from oelm.published.claims import (
    LEAST_GROWTH,
    LEAST_PLACES_TO_POOL,
    MODEL_SHARE_OF_MEMORY,
    ClaimQuantity,
    ClaimRule,
    PublishedClaim,
    Range,
    Unit,
    published_claims,
    published_flop_share,
)
from oelm.spec import explain_validation
from oelm.spec.method import InitSpec, MethodSpec, named_method
from oelm.spec.run import GPT_SIZES, GPTSpec, HuggingFaceSpec

# Benches: files of `oelm bench methods --json`, with the time and memory that a frozen arm saves.

PATTERN = "methods-*.json"
"""File names of benches, in any folder directly below the results."""
PUBLISHED_STARTS = tuple(InitSpec(shape="orthogonal", source=source) for source in ("fresh", "current"))
"""The two initialisations of the published method. A training step costs the same with both."""


class BenchArm(BaseModel):
    """One arm of a bench, without the fields that are not needed here. The savings are None for the reference."""

    model_config = ConfigDict(frozen=True)

    flop_share: float
    seconds: float
    saving: float | None = None
    saving_interval: tuple[float, float] | None = None
    peak_bytes: float
    memory_saving: float | None = None
    """None in old benches, which did not record the peak of each block."""
    memory_saving_interval: tuple[float, float] | None = None


class BenchRecord(BaseModel):
    """A file of `oelm bench methods --json`."""

    model_config = ConfigDict(frozen=True)

    size: str
    labels: int | None
    batch: tuple[int, int]
    threads: int
    reference: str
    blocks: int
    steps_per_block: int
    arms: dict[str, BenchArm]


@dataclass(frozen=True)
class Bench:
    """A bench and the file it comes from."""

    path: Path
    record: BenchRecord

    @property
    def is_encoder(self) -> bool:
        """Whether the model has a classification head; our GPT has none in benches."""
        return self.record.labels is not None

    @property
    def is_our_gpt(self) -> bool:
        """Whether it times our GPT."""
        return self.record.size in GPT_SIZES

    @property
    def frozen_arms(self) -> Iterator[tuple[str, BenchArm]]:
        """The arms of the published method."""
        for name, arm in self.record.arms.items():
            try:
                method = named_method(name)
            except UnknownName:
                continue
            if is_frozen(method) and method.init in PUBLISHED_STARTS:
                yield name, arm

    @property
    def core_hours(self) -> float:
        """Processor time of one such bench, without warm-up and ceilings."""
        per_turn = sum(arm.seconds for arm in self.record.arms.values())
        return per_turn * self.record.steps_per_block * self.record.blocks / 3600

    def peak_saving(self, arm: BenchArm) -> float:
        """Return the share that an arm saves of the highest memory peak of all blocks."""
        return 1 - arm.peak_bytes / self.record.arms[self.record.reference].peak_bytes

    def estimate(self, mean: float | None, interval: tuple[float, float] | None) -> Estimate | None:
        """Return a saving with its standard error over blocks; None if the bench has no interval for it."""
        if mean is None or interval is None or self.record.blocks < 2 or interval[0] == interval[1]:
            return None
        unit = Estimate(0.0, 1.0, self.record.blocks - 1).interval(CONFIDENCE)
        return Estimate(mean, (interval[1] - interval[0]) / (unit.high - unit.low), self.record.blocks - 1)


def read_benches(root: Path) -> tuple[list[Bench], list[str]]:
    """Read the benches below a folder of results; also return messages about unreadable files."""
    found: list[Bench] = []
    unreadable: list[str] = []
    for path in sorted(root.glob(f"*/{PATTERN}")):
        try:
            found.append(Bench(path, BenchRecord.model_validate_json(path.read_bytes())))
        except ValidationError as error:
            unreadable.append(f"{path} is not a result of `oelm bench methods --json`: {explain_validation(error)}")
    return found, unreadable


TIMER = "published-timing.json"


class TimerSaving(BaseModel):
    """A share of the baseline's step that is saved, with its interval over blocks."""

    model_config = ConfigDict(frozen=True)

    saving: float
    interval: tuple[float, float] | None


class TimerRecord(BaseModel):
    """A file of `oelm bench published-timing --json`: why the published study found 57 % on BERT."""

    model_config = ConfigDict(frozen=True)

    size: str
    blocks: int
    as_published: TimerSaving
    timed_alike: TimerSaving
    flop_share: float


def read_timer(root: Path) -> tuple[TimerRecord | None, list[str]]:
    """Read the bench of the published timer below a folder of results; also return messages about unreadable files."""
    for path in sorted(root.glob(f"*/{TIMER}")):
        try:
            return TimerRecord.model_validate_json(path.read_bytes()), []
        except ValidationError as error:
            why = explain_validation(error)
            return None, [f"{path} is not a result of `oelm bench published-timing --json`: {why}"]
    return None, []


# Findings.

RegimeKind = Literal["representative", "small", "unknown"]
Reason = Literal[
    "untuned", "repaired-baseline", "at-chance", "incomplete", "lost", "scale-confounded", "no-counterpart",
    "unexplained", "little-of-the-memory", "bench-instead", "small-regime", "no-interval",
]  # fmt: skip
"""Why a finding does not count."""

Pair = frozenset[str]
"""The fingerprints of the runs that one value comes from."""


@dataclass(frozen=True)
class ContentFinding:
    """The kind of a regime, and the value of content there in nats."""

    regime: RegimeKind
    worth: Difference | None = None


@dataclass(frozen=True)
class ClaimFinding:
    """One effect of one study or bench, in the unit of its claim."""

    study: str
    what: str
    """The arm, or the two arms, of the effect."""
    place: str
    """Corpus, model and training as JSON. Findings of one place are one sample; places are pooled."""
    unit: Unit
    values: Mapping[Pair, float] = field(default_factory=dict)
    """One effect for each pair of runs; empty if there is only an estimate."""
    own: Estimate | None = None
    """The estimate of a bench, or of a difference of differences."""
    evidence: tuple[Evidence, ...] = ()
    bench: Bench | None = None
    content: ContentFinding | None = None
    """None if the regime does not matter: for time, memory and encoders."""
    reason: Reason | None = None
    """Why the finding does not count; None: it counts."""
    at_least: bool = False
    """Whether some values are lower bounds: seeds that never reached the loss count with all their steps."""
    flop_share: float | None = None
    """The share of a step's FLOPs that the method removes, for findings about time."""

    @property
    def estimate(self) -> Estimate | None:
        """The effect with its standard error; None with one pair, or if all pairs are equal."""
        return self.own or estimate_of(list(self.values.values()))

    @property
    def mean(self) -> float | None:
        """The effect without its error."""
        if self.own:
            return self.own.mean
        return statistics.fmean(self.values.values()) if self.values else None


def find(
    quantity: ClaimQuantity, comparisons: Iterable[Comparison], benches: Sequence[Bench] = ()
) -> list[ClaimFinding]:
    """Return every finding about a quantity, whether it counts or not. Probes have none.

    If a bench counts, the clocks of runs do not; if a representative regime counts, other regimes do not.
    """
    judged = [comparison for comparison in comparisons if not comparison.is_probe]
    found = _drop_duplicates(_FINDERS[quantity](judged, benches))
    if any(item.bench for item in found if item.reason is None):
        found = [item if item.bench else _exclude(item, "bench-instead") for item in found]
    if any(_is_representative(item) for item in found if item.reason is None):
        found = [item if _is_representative(item) else _exclude(item, "small-regime") for item in found]
    return found


def _drop_duplicates(found: Iterable[ClaimFinding]) -> list[ClaimFinding]:
    """Keep one of several findings from the same runs: one that counts, if any does."""
    kept: dict[tuple[str, frozenset[Pair] | str], ClaimFinding] = {}
    for item in found:
        runs = (item.what, str(item.bench.path) if item.bench else frozenset(item.values) or item.study)
        if runs not in kept or (kept[runs].reason and not item.reason):
            kept[runs] = item
    return list(kept.values())


def _is_representative(item: ClaimFinding) -> bool:
    return item.content is not None and item.content.regime == "representative"


def _exclude(finding: ClaimFinding, reason: Reason) -> ClaimFinding:
    return finding if finding.reason else replace(finding, reason=reason)


def _find_orthogonality(comparisons: Sequence[Comparison], _: Sequence[Bench]) -> Iterator[ClaimFinding]:
    """Only the control of matched scale separates orthogonality from scale."""
    regimes = find_content_by_place(comparisons)
    for comparison in filter(is_language, comparisons):
        for item in ablations(comparison):
            for step in item.steps:
                if step.difference and step.name in ("orthogonality", "scale-and-orthogonality"):
                    start, end = (comparison.row(name, item.cell) for name in (step.start, step.end))
                    found = _compare_rows(comparison, start, end, regimes)
                    yield found if step.name == "orthogonality" else _exclude(found, "scale-confounded")


def _find_freezing(comparisons: Sequence[Comparison], _: Sequence[Bench]) -> Iterator[ClaimFinding]:
    regimes = find_content_by_place(comparisons)
    for comparison in filter(is_language, comparisons):
        for row in frozen_rows(comparison):
            yield _compare_rows(comparison, comparison.reference(row.cell), row, regimes)


def _find_growth(comparisons: Sequence[Comparison], benches: Sequence[Bench]) -> Iterator[ClaimFinding]:
    """Subtract the cost on the smallest part of a text from that on the largest, for one model and equal steps."""
    series: dict[str, list[tuple[int, ClaimFinding]]] = {}
    for finding in _find_freezing(comparisons, benches):
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


def _find_encoder_quality(
    comparisons: Sequence[Comparison], _: Sequence[Bench], *, pretrained: bool
) -> Iterator[ClaimFinding]:
    for comparison in comparisons:
        for row in frozen_rows(comparison):
            if comparison.measure.name == "accuracy" and is_pretrained(row) == pretrained:
                alike = counterpart(comparison, row)
                found = _compare_rows(comparison, alike or comparison.reference(row.cell), row, {})
                yield found if alike else _exclude(found, "no-counterpart")


def _find_time(comparisons: Sequence[Comparison], benches: Sequence[Bench], *, encoder: bool) -> Iterator[ClaimFinding]:
    for bench in benches:
        if bench.is_encoder if encoder else bench.is_our_gpt:
            for name, arm in bench.frozen_arms:
                yield replace(
                    _from_bench(bench, name, bench.estimate(arm.saving, arm.saving_interval)), flop_share=arm.flop_share
                )
    for comparison in comparisons:
        if _is_classifier(comparison) if encoder else is_language(comparison):
            for saving, row in _find_savings(comparison):
                found = replace(_from_saving(comparison, row, saving.times), flop_share=saving.flops)
                yield _exclude(found, "unexplained") if saving.unexplained else found


def _find_memory(comparisons: Sequence[Comparison], benches: Sequence[Bench]) -> Iterator[ClaimFinding]:
    for bench in benches:
        if bench.is_our_gpt:
            for name, arm in bench.frozen_arms:
                estimate = bench.estimate(arm.memory_saving, arm.memory_saving_interval)
                yield replace(_from_bench(bench, name, estimate), values={frozenset({name}): bench.peak_saving(arm)})
    for comparison in filter(is_language, comparisons):
        for saving, row in _find_savings(comparison):
            found = _from_saving(comparison, row, saving.peaks)
            fills = _fills_memory(comparison.reference(row.cell))
            yield found if fills else _exclude(found, "little-of-the-memory")


def _find_encoder_steps(comparisons: Sequence[Comparison], _: Sequence[Bench]) -> Iterator[ClaimFinding]:
    for comparison in comparisons:
        for row in frozen_rows(comparison):
            if comparison.measure.name != "accuracy" or not is_pretrained(row):
                continue
            alike = counterpart(comparison, row)
            other = alike or comparison.reference(row.cell)
            own, theirs = (validation_curves(each, []) for each in (row, other))
            item = measure_convergence(row, own, theirs)
            pairs = [_pair(row, other, seed) for seed in own if seed in theirs]
            if len(pairs) != len(item.step_shares) or not pairs:
                continue
            found = replace(
                _compare_rows(comparison, other, row, {}),
                unit="steps", values=dict(zip(pairs, item.step_shares, strict=True)), at_least=item.missed > 0,
            )  # fmt: skip
            yield found if alike else _exclude(found, "no-counterpart")


_FINDERS: dict[ClaimQuantity, Callable[[Sequence[Comparison], Sequence[Bench]], Iterator[ClaimFinding]]] = {
    "orthogonality": _find_orthogonality,
    "freezing": _find_freezing,
    "growth": _find_growth,
    "pretrained-encoder": partial(_find_encoder_quality, pretrained=True),
    "fresh-encoder": partial(_find_encoder_quality, pretrained=False),
    "encoder-time": partial(_find_time, encoder=True),
    "gpt-time": partial(_find_time, encoder=False),
    "encoder-steps": _find_encoder_steps,
    "gpt-memory": _find_memory,
}


def _compare_rows(comparison: Comparison, start: Row, end: Row, regimes: Mapping[str, ContentFinding]) -> ClaimFinding:
    """Return the cost of one arm over another, seed by seed."""
    costs, others = end.by_seed, start.by_seed
    what = end.arm if start.arm == comparison.study.reference else f"{start.arm} → {end.arm}"
    language = is_language(comparison)
    return ClaimFinding(
        study=comparison.study.name,
        what=what,
        place=describe_place(end),
        unit="percent" if comparison.measure.name == "perplexity" else "points",
        values={_pair(end, start, seed): costs[seed] - others[seed] for seed in costs if seed in others},
        evidence=(*start.evidence, *end.evidence),
        content=regimes.get(describe_place(end), ContentFinding("unknown")) if language else None,
        reason=why_not(comparison, (comparison.reference(end.cell), start, end)),
    )


def _from_saving(comparison: Comparison, row: Row, values: Mapping[int, float]) -> ClaimFinding:
    reference = comparison.reference(row.cell)
    return ClaimFinding(
        study=comparison.study.name,
        what=row.arm,
        place=describe_place(row),
        unit="share",
        values={_pair(row, reference, seed): value for seed, value in values.items()},
        evidence=(*reference.evidence, *row.evidence),
    )


def _from_bench(bench: Bench, arm: str, estimate: Estimate | None) -> ClaimFinding:
    size = f"bench {bench.record.size}"
    reason: Reason | None = None if estimate else "no-interval"
    return ClaimFinding(size, arm, size, "share", own=estimate, bench=bench, reason=reason)


def _pair(row: Row, other: Row, seed: int) -> Pair:
    items = (*row.evidence, *other.evidence)
    return frozenset(item.record.fingerprint for item in items if item.spec.seed == seed)


def _find_savings(comparison: Comparison) -> Iterator[tuple[Saving, Row]]:
    rows = {(row.arm, row.cell): row for row in frozen_rows(comparison)}
    for saving in savings(comparison, published_flop_share):
        if (saving.arm, saving.cell) in rows:
            yield saving, rows[saving.arm, saving.cell]


def _fills_memory(row: Row) -> bool:
    """Whether weights, gradients and moments are a large share of a run's memory peak."""
    record = row.evidence[0].record
    if not record.cost or not record.result:
        return False
    held = 2 * record.cost.weight_bytes + record.cost.optimizer_bytes
    return held >= MODEL_SHARE_OF_MEMORY * record.result.peak_memory_bytes


def describe_place(row: Row) -> str:
    """Return the corpus, model and training of a row as JSON. Rows of several studies that agree are one sample."""
    item = row.evidence[0]
    spec, data = item.spec, item.record.data
    model = spec.model.model_dump(mode="json", exclude={"checksum"})
    size = [data.vocab_size, data.tokens.get("train", 0)] if data else None
    return json.dumps([spec.data.corpus, size, model, spec.train.steps, spec.train.batch_size])


def frozen_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield the rows of the published method: frozen and head-wise orthogonal in all layers, and nothing else.

    From scratch that is a fresh draw; in a pretrained model it is QR of the current weights, as in the published frozen
    runs, because a fresh draw would discard what Q and K have learned. There are none if the reference is frozen
    itself, because such rows say nothing about freezing.
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
    """Return the arm that differs from a frozen arm by freezing alone; None if the study has no such arm.

    From scratch that is the reference. A pretrained baseline also differs in its Q/K, which are not orthogonalised, so
    there it is the arm that starts alike and trains. The published baselines were not: XNLI-01 replaced its pretrained
    Q/K by N(0, 0.02), and for SST-2-01 and MNLI-01 the public code contradicts itself.
    """
    if not is_pretrained(row):
        return comparison.reference(row.cell)
    (own,) = (arm for arm in comparison.study.arms if arm.name == row.arm)
    alike = (arm for arm in comparison.study.arms if starts_alike(arm.method, own.method) and not arm.model)
    rows = (comparison.row(arm.name, row.cell) for arm in alike)
    return next((other for other in rows if other.costs), None)


def why_not(comparison: Comparison, rows: Sequence[Row]) -> Reason | None:
    """Return why some rows of a comparison do not count as evidence about quality; None: they count."""
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


def _is_classifier(comparison: Comparison) -> bool:
    """Whether a comparison is of Hugging Face models on labelled text, as the encoders of the published study."""
    return comparison.measure.name == "accuracy" and isinstance(comparison.study.base.model, HuggingFaceSpec)


def find_content_by_place(comparisons: Iterable[Comparison]) -> dict[str, ContentFinding]:
    """Return the value of content at every place where a study measures or bounds it."""
    found: dict[str, ContentFinding] = {}
    for comparison in filter(is_language, comparisons):
        for cell in comparison.cells:
            reference = comparison.reference(cell)
            content = _measure_content(comparison, cell) if reference.evidence else None
            if content and (content.worth or describe_place(reference) not in found):
                found[describe_place(reference)] = content
    return found


def _measure_content(comparison: Comparison, cell: Cell) -> ContentFinding | None:
    """Compare attention by position alone with trained Q/K that have the same position repair.

    Without such arms uniform attention gives an upper bound: positions do at least as well as uniform weights.
    """
    enough = MARGINS_REQUIRED * MARGIN  # the published margin of 5 %; a study may declare another one
    rows = {row.arm: row for row in comparison.rows if row.cell == cell and row.costs}
    for arms in comparison.study.content_arms:
        worth = content_worth(arms, {name: row.by_seed for name, row in rows.items()})
        if worth and worth.lower is not None:
            return ContentFinding("representative" if worth.lower >= enough else "small", worth.value)
    uniform = {arm.name for arm in comparison.study.arms if arm.method == MethodSpec(init=InitSpec(shape="absent"))}
    bound = next((row.difference.mean for name, row in rows.items() if name in uniform and row.difference), None)
    return ContentFinding("small") if bound is not None and bound < enough else None


# Verdicts: pool the findings of each rule and decide.

LedgerVerdict = Literal["supported", "no effect", "contradicted", "undecided", "not yet tested"]
DECIDED: tuple[LedgerVerdict, ...] = ("supported", "no effect", "contradicted")
"""The verdicts in the order of testing: the first that holds counts."""
ALPHA = 1 - CONFIDENCE
LEDGER_POWER = 0.8
"""Power of the suggested number of seeds, if means and spreads are as measured."""

Probabilities = dict[LedgerVerdict, float]
"""The p-value of each verdict that decides."""


@dataclass(frozen=True)
class PlaceSample:
    """All counted findings of one corpus, model and training, as one sample."""

    name: str
    """The corpus, with the study if several places share the corpus; for a bench its own name."""
    findings: tuple[ClaimFinding, ...]
    estimate: Estimate

    @property
    def at_least(self) -> bool:
        """Whether some values are lower bounds."""
        return any(finding.at_least for finding in self.findings)


@dataclass(frozen=True)
class DecidingNeed:
    """What would decide an undecided rule: more seeds at some places, or else the experiment of the rule."""

    seeds: dict[str, int]
    """Name of the place -> additional pairs; empty if seeds alone would not decide, or without any evidence."""
    runs: int
    hours: float | None
    """Core-hours or GPU-hours, estimated from similar runs on record; None without such runs."""
    on_gpu: bool


@dataclass(frozen=True)
class JudgedRule:
    """One rule of a claim with its evidence, and its verdict before the correction for the other claims."""

    rule: ClaimRule
    findings: tuple[ClaimFinding, ...]
    places: tuple[PlaceSample, ...]
    pooled: Pooled | None
    verdict: LedgerVerdict
    p: Probabilities
    need: DecidingNeed | None = None

    @property
    def interval(self) -> Interval | None:
        """The pooled 95 % interval."""
        return self.pooled.estimate.interval(CONFIDENCE) if self.pooled else None

    @property
    def regime(self) -> RegimeKind | None:
        """The regime of the counted evidence: representative only if all of it is; None if it does not matter."""
        regimes = {item.content.regime for place in self.places for item in place.findings if item.content}
        return next((name for name in ("small", "unknown", "representative") if name in regimes), None)

    @property
    def worth(self) -> list[float]:
        """The value of content at the counted places, if it was measured."""
        contents = (item.content for place in self.places for item in place.findings[:1])
        return [content.worth.mean for content in contents if content and content.worth]

    @property
    def flop_share(self) -> float | None:
        """The largest share of a step's FLOPs that freezing removes at the counted places."""
        return max(
            (item.flop_share for place in self.places for item in place.findings if item.flop_share), default=None
        )


@dataclass(frozen=True)
class LedgerEntry:
    """A claim, its verdict and the rules behind it."""

    claim: PublishedClaim
    verdict: LedgerVerdict
    judged: tuple[JudgedRule, ...]
    p: float | None
    """The p-value of the verdict, corrected for all claims; None if nothing is tested."""
    alone: LedgerVerdict
    """The verdict without that correction."""
    timer: TimerRecord | None = None
    """What explains a published saving of time, measured here."""


def ledger(
    comparisons: Iterable[Comparison], benches: Sequence[Bench] = (), timer: TimerRecord | None = None
) -> list[LedgerEntry]:
    """Judge every published claim by some comparisons and benches. `timer` explains the published time on BERT."""
    comparisons = list(comparisons)
    judged = {
        claim.name: tuple(judge_rule(rule, find(rule.quantity, comparisons, benches)) for rule in claim.rules)
        for claim in published_claims()
    }
    summed = {name: _sum_up(parts) for name, parts in judged.items()}
    # A claim without evidence belongs to the family as well: it must not make the correction weaker.
    adjusted = holm({name: p for name, (_, p) in summed.items()})
    # An experiment without any run on record is assumed to cost as much as the runs of frozen GPTs.
    like = [item for finding in find("freezing", comparisons) for item in finding.evidence]
    entries = [
        _build_entry(claim, judged[claim.name], summed[claim.name][0], adjusted[claim.name], like)
        for claim in published_claims()
    ]
    explained = "57-percent-faster-on-bert"
    return [replace(entry, timer=timer) if entry.claim.name == explained else entry for entry in entries]


def judge_rule(rule: ClaimRule, findings: Sequence[ClaimFinding]) -> JudgedRule:
    """Group the findings that count by place, pool the places, and find the verdict."""
    places, findings = _group_by_place(findings)
    if not places:
        verdict: LedgerVerdict = "undecided" if findings else "not yet tested"
        return JudgedRule(rule, tuple(findings), (), None, verdict, dict.fromkeys(DECIDED, 1.0))
    estimates = [place.estimate for place in places]
    p = probabilities(rule, estimates, censored=any(place.at_least for place in places))
    return JudgedRule(rule, tuple(findings), tuple(places), pool(estimates), _verdict(p), p)


def probabilities(
    rule: ClaimRule, estimates: Sequence[Estimate], *, censored: bool = False, short: float = 0.0
) -> Probabilities:
    """Return the p-value of each verdict, from the pooled estimate or, with two places, from the weaker one.

    Values that are lower bounds (`censored`) can only show that an effect is above the published sizes. `short` moves
    every mean by this many standard errors towards the bound it is tested against.
    """
    deciding = [pool(estimates).estimate] if len(estimates) >= LEAST_PLACES_TO_POOL else list(estimates)
    sides = [side for side in (1, -1) if not (rule.is_open(side) or (censored and side < 0))]
    beyond = min((_p_beyond(deciding, rule.published, side, short) for side in sides), default=1.0)
    if censored:
        return {"supported": 1.0, "no effect": 1.0, "contradicted": min(1.0, beyond)}
    within = max(2 * _p_within(item, rule.claimed, short) for item in deciding)
    nothing = 1.0
    if rule.no_effect is not None:
        zone = Range(rule.zero - rule.no_effect, rule.zero + rule.no_effect)
        nothing = max(_p_within(item, zone, short) for item in deciding)
    return {"supported": min(1.0, within), "no effect": nothing, "contradicted": min(1.0, beyond)}


def _p_within(item: Estimate, bounds: Range, short: float) -> float:
    """Return the p-value of the two one-sided tests that an effect is between two bounds."""
    distances = [item.mean - bounds.low, bounds.high - item.mean]
    return max(0.0 if math.isinf(distance) else item.tail(distance - short * item.error) for distance in distances)


def _p_beyond(items: Sequence[Estimate], sizes: Range, side: int, short: float) -> float:
    """Return the two-sided p-value that every effect is beyond all published sizes, on one side of them."""
    edge = sizes.high if side > 0 else sizes.low
    return max(2 * item.tail(side * (item.mean - edge) - short * item.error) for item in items)


def _verdict(p: Probabilities, alpha: float = ALPHA) -> LedgerVerdict:
    return next((name for name in DECIDED if p[name] <= alpha), "undecided")


def _group_by_place(findings: Sequence[ClaimFinding]) -> tuple[list[PlaceSample], list[ClaimFinding]]:
    """Merge the findings that count by place; a pair of runs that two studies share counts once.

    A place with a single pair, or with equal pairs, has no interval: its findings are returned as not counted.
    """
    groups: dict[str, list[ClaimFinding]] = {}
    for finding in findings:
        if finding.reason is None:
            groups.setdefault(finding.place, []).append(finding)
    corpora = Counter(_corpus(members[0]) for members in groups.values())
    places: list[PlaceSample] = []
    without: list[ClaimFinding] = []
    for members in groups.values():
        corpus = _corpus(members[0])
        name = corpus if corpora[corpus] == 1 else f"{corpus} ({members[0].study})"
        values = {pair: value for member in members for pair, value in member.values.items()}
        own = combine_estimates(
            [member.own for member in members if member.own]
        )  # benches have no values by pairs to merge
        if estimate := own or estimate_of(list(values.values())):
            places.append(PlaceSample(name, tuple(members), estimate))
        else:
            without += members
    marked = [replace(item, reason="no-interval") if item in without else item for item in findings]
    return places, sorted(marked, key=lambda item: item.reason is not None)


def _corpus(finding: ClaimFinding) -> str:
    return finding.evidence[-1].spec.data.corpus if finding.evidence else finding.study


def _sum_up(parts: Sequence[JudgedRule]) -> tuple[LedgerVerdict, float]:
    """Return the verdict of a claim before the correction for other claims, and its p-value.

    Every rule must hold, so support is as weak as the weakest rule. One rule that fails contradicts the claim; its
    p-value is corrected for the number of tested rules.
    """
    if len(parts) == 1:
        p = parts[0].p
    else:
        tested = [part for part in parts if part.pooled]
        failing = (min(part.p["contradicted"], part.p["no effect"]) for part in tested if part.verdict != "supported")
        p = {
            "supported": max(part.p["supported"] for part in parts),
            "no effect": 1.0,
            "contradicted": min(1.0, max(1, len(tested)) * min(failing, default=1.0)),
        }
    verdict = _verdict(p)
    if verdict == "undecided" and not any(part.findings for part in parts):
        verdict = "not yet tested"
    return verdict, p[verdict] if verdict in DECIDED else min(p.values())


def _build_entry(
    claim: PublishedClaim,
    parts: tuple[JudgedRule, ...],
    alone: LedgerVerdict,
    corrected: Adjusted,
    like: Sequence[Evidence],
) -> LedgerEntry:
    verdict: LedgerVerdict = "undecided" if alone in DECIDED and corrected.p > ALPHA else alone
    if verdict not in DECIDED:
        level = ALPHA / corrected.times
        holds = [len(parts) > 1 and _verdict(part.p, level) == "supported" for part in parts]
        parts = tuple(part if held else _add_need(part, level, like) for part, held in zip(parts, holds, strict=True))
    tested = any(part.pooled for part in parts)
    return LedgerEntry(claim, verdict, parts, corrected.p if tested else None, alone)


def _add_need(part: JudgedRule, alpha: float, like: Sequence[Evidence]) -> JudgedRule:
    """Add what would decide a rule at some level: more seeds if they would, else the experiment of the rule."""
    seeds = _count_more_seeds(part, alpha)
    evidence = [item for finding in part.findings for item in finding.evidence] or like
    evidence = [item for item in evidence if item.record.seconds]
    benches = [finding.bench for finding in part.findings if finding.bench]
    runs = 2 * sum(seeds.values()) or part.rule.runs
    hours = statistics.fmean(map(_hours, evidence)) * runs if evidence else None
    if benches and not seeds:
        hours = max(bench.core_hours for bench in benches)
    on_gpu = bool(evidence) and evidence[0].spec.train.device == "cuda"
    return replace(part, need=DecidingNeed(seeds, runs, hours, on_gpu))


def _count_more_seeds(part: JudgedRule, alpha: float) -> dict[str, int]:
    """Return how many more pairs each place needs if means and spreads stay; empty: seeds alone would not decide."""
    places = part.places
    if not places or any(place.at_least or not place.findings[0].evidence for place in places):
        return {}

    def decides(more: Sequence[int]) -> bool:
        grown = [place.estimate.with_more(count) for place, count in zip(places, more, strict=True)]
        return _verdict(probabilities(part.rule, grown, short=NormalDist().inv_cdf(LEDGER_POWER)), alpha) in DECIDED

    enough = next((count for count in range(1, MOST_SEEDS + 1) if decides([count] * len(places))), None)
    if enough is None:
        return {}
    more = [enough] * len(places)
    for number in range(len(places)):  # reduce each place to what it needs
        more[number] = next(
            fewer for fewer in range(enough + 1) if decides([*more[:number], fewer, *more[number + 1 :]])
        )
    return {place.name: count for place, count in zip(places, more, strict=True) if count}


def _hours(item: Evidence) -> float:
    """Return the core-hours of a run, or its GPU-hours."""
    seconds, train = item.record.seconds, item.spec.train
    units = train.processes if train.device == "cuda" else train.processes * train.threads
    return seconds.total * units / 3600 if seconds else 0.0
