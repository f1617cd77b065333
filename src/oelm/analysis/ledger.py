"""The verdict on every published claim, from the records and benches at hand, by the rules of oelm.analysis.claims.

Findings of one place (corpus, model, training) are one sample of paired seeds. Places are pooled by random effects
(oelm.analysis.pooling); two places are too few to pool and must agree. The p-value of each claim's verdict is corrected
for there being eight claims (Holm). An undecided claim says how many more seeds or which experiment would decide it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from oelm.analysis.benches import Bench
from oelm.analysis.claims import (
    LEAST_PLACES_TO_POOL,
    PublishedClaim,
    Range,
    Rule,
    published_claims,
)
from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Evidence
from oelm.analysis.findings import Finding, Regime, find
from oelm.analysis.pooling import Estimate, Pooled, combine, estimate_of, pool
from oelm.analysis.statistics import CONFIDENCE, MOST_SEEDS, Adjusted, Interval, holm

LedgerVerdict = Literal["supported", "no effect", "contradicted", "undecided", "not yet tested"]
DECIDED: tuple[LedgerVerdict, ...] = ("supported", "no effect", "contradicted")
"""In the order in which they are tried: the first that holds is the verdict."""
ALPHA = 1 - CONFIDENCE
POWER = 0.8
"""How often the number of seeds that is named would decide, if means and spreads are as measured."""

Probabilities = dict[LedgerVerdict, float]
"""The p-value of each verdict that decides."""


@dataclass(frozen=True)
class Place:
    """All counted findings of one corpus, model and training, as one sample."""

    name: str
    """The corpus, with the study where several places share it; of a bench, its own name."""
    findings: tuple[Finding, ...]
    estimate: Estimate

    @property
    def at_least(self) -> bool:
        """Whether some values are lower bounds."""
        return any(finding.at_least for finding in self.findings)


@dataclass(frozen=True)
class Need:
    """What would decide an undecided rule: more seeds at some places, or else the experiment of the rule."""

    seeds: dict[str, int]
    """Name of the place -> how many more pairs; empty: seeds alone would not, or there is nothing yet."""
    runs: int
    hours: float | None
    """Core- or GPU-hours, from runs of the same kind on record; None where there are none."""
    on_gpu: bool


@dataclass(frozen=True)
class Judged:
    """One rule of a claim with its evidence and what that says before it is corrected for the other claims."""

    rule: Rule
    findings: tuple[Finding, ...]
    places: tuple[Place, ...]
    pooled: Pooled | None
    verdict: LedgerVerdict
    p: Probabilities
    need: Need | None = None

    @property
    def interval(self) -> Interval | None:
        """The pooled 95 % interval."""
        return self.pooled.estimate.interval(CONFIDENCE) if self.pooled else None

    @property
    def regime(self) -> Regime | None:
        """The regime of the counted evidence: representative only if all of it is; None where it does not matter."""
        regimes = {item.content.regime for place in self.places for item in place.findings if item.content}
        return next((name for name in ("small", "unknown", "representative") if name in regimes), None)

    @property
    def worth(self) -> list[float]:
        """What content is worth at the counted places, where it is measured."""
        contents = (item.content for place in self.places for item in place.findings[:1])
        return [content.worth.mean for content in contents if content and content.worth]

    @property
    def flop_share(self) -> float | None:
        """The most that freezing removes of a step's FLOPs at the counted places."""
        return max(
            (item.flop_share for place in self.places for item in place.findings if item.flop_share), default=None
        )


@dataclass(frozen=True)
class Entry:
    """A claim, its verdict and the rules it rests on."""

    claim: PublishedClaim
    verdict: LedgerVerdict
    judged: tuple[Judged, ...]
    p: float | None
    """Of the verdict, corrected for all claims; None where nothing is tested."""
    alone: LedgerVerdict
    """The verdict without that correction."""


def ledger(comparisons: Iterable[Comparison], benches: Sequence[Bench] = ()) -> list[Entry]:
    """Judge every published claim by some comparisons and benches."""
    comparisons = list(comparisons)
    judged = {
        claim.name: tuple(judge_rule(rule, find(rule.quantity, comparisons, benches)) for rule in claim.rules)
        for claim in published_claims()
    }
    summed = {name: _sum_up(parts) for name, parts in judged.items()}
    # A claim without evidence is one of the family as well: it must not make the correction lighter.
    adjusted = holm({name: p for name, (_, p) in summed.items()})
    # What an experiment costs that has not been tried at all: as much as the runs of frozen GPTs on record.
    like = [item for finding in find("freezing", comparisons) for item in finding.evidence]
    return [
        _entry(claim, judged[claim.name], summed[claim.name][0], adjusted[claim.name], like)
        for claim in published_claims()
    ]


def judge_rule(rule: Rule, findings: Sequence[Finding]) -> Judged:
    """Gather the findings that count into places, pool them, and find the verdict."""
    places, findings = _places(findings)
    if not places:
        verdict: LedgerVerdict = "undecided" if findings else "not yet tested"
        return Judged(rule, tuple(findings), (), None, verdict, dict.fromkeys(DECIDED, 1.0))
    estimates = [place.estimate for place in places]
    p = probabilities(rule, estimates, censored=any(place.at_least for place in places))
    return Judged(rule, tuple(findings), tuple(places), pool(estimates), _verdict(p), p)


def probabilities(
    rule: Rule, estimates: Sequence[Estimate], *, censored: bool = False, short: float = 0.0
) -> Probabilities:
    """Return the p-value of each verdict, from the pooled estimate or, of two, from the weaker one.

    Values that are lower bounds (`censored`) can show that an effect is above the published sizes, and nothing else.
    `short` moves every mean so many standard errors towards the bound it is tested against.
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


def _places(findings: Sequence[Finding]) -> tuple[list[Place], list[Finding]]:
    """Merge what counts by place; runs that two studies share are one value.

    A place with a single pair, or whose pairs are all equal, has no interval: its findings are returned as not counted.
    """
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.reason is None:
            groups.setdefault(finding.place, []).append(finding)
    corpora = Counter(_corpus(members[0]) for members in groups.values())
    places: list[Place] = []
    without: list[Finding] = []
    for members in groups.values():
        corpus = _corpus(members[0])
        name = corpus if corpora[corpus] == 1 else f"{corpus} ({members[0].study})"
        values = {pair: value for member in members for pair, value in member.values.items()}
        own = combine([member.own for member in members if member.own])  # benches have no values by pairs to merge
        if estimate := own or estimate_of(list(values.values())):
            places.append(Place(name, tuple(members), estimate))
        else:
            without += members
    marked = [replace(item, reason="no-interval") if item in without else item for item in findings]
    return places, sorted(marked, key=lambda item: item.reason is not None)


def _corpus(finding: Finding) -> str:
    return finding.evidence[-1].spec.data.corpus if finding.evidence else finding.study


def _sum_up(parts: Sequence[Judged]) -> tuple[LedgerVerdict, float]:
    """Return the verdict of a claim before the correction for others, and its p-value.

    Every rule must hold, so support is as weak as the weakest rule; one that fails contradicts the claim, corrected for
    how many could.
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


def _entry(
    claim: PublishedClaim,
    parts: tuple[Judged, ...],
    alone: LedgerVerdict,
    corrected: Adjusted,
    like: Sequence[Evidence],
) -> Entry:
    verdict: LedgerVerdict = "undecided" if alone in DECIDED and corrected.p > ALPHA else alone
    if verdict not in DECIDED:
        level = ALPHA / corrected.times
        holds = [len(parts) > 1 and _verdict(part.p, level) == "supported" for part in parts]
        parts = tuple(part if held else _with_need(part, level, like) for part, held in zip(parts, holds, strict=True))
    tested = any(part.pooled for part in parts)
    return Entry(claim, verdict, parts, corrected.p if tested else None, alone)


def _with_need(part: Judged, alpha: float, like: Sequence[Evidence]) -> Judged:
    """Say what would decide a rule at some level: seeds where the records can tell how many, else its experiment."""
    seeds = _more_seeds(part, alpha)
    evidence = [item for finding in part.findings for item in finding.evidence] or like
    evidence = [item for item in evidence if item.record.seconds]
    benches = [finding.bench for finding in part.findings if finding.bench]
    runs = 2 * sum(seeds.values()) or part.rule.runs
    hours = statistics.fmean(map(_hours, evidence)) * runs if evidence else None
    if benches and not seeds:
        hours = max(bench.core_hours for bench in benches)
    on_gpu = bool(evidence) and evidence[0].spec.train.device == "cuda"
    return replace(part, need=Need(seeds, runs, hours, on_gpu))


def _more_seeds(part: Judged, alpha: float) -> dict[str, int]:
    """Return how many more pairs places need if means and spreads stay; empty: seeds alone would not decide."""
    places = part.places
    if not places or any(place.at_least or not place.findings[0].evidence for place in places):
        return {}

    def decides(more: Sequence[int]) -> bool:
        grown = [place.estimate.with_more(count) for place, count in zip(places, more, strict=True)]
        return _verdict(probabilities(part.rule, grown, short=NormalDist().inv_cdf(POWER)), alpha) in DECIDED

    enough = next((count for count in range(1, MOST_SEEDS + 1) if decides([count] * len(places))), None)
    if enough is None:
        return {}
    more = [enough] * len(places)
    for number in range(len(places)):  # most places need fewer than the one that needs most
        more[number] = next(
            fewer for fewer in range(enough + 1) if decides([*more[:number], fewer, *more[number + 1 :]])
        )
    return {place.name: count for place, count in zip(places, more, strict=True) if count}


def _hours(item: Evidence) -> float:
    """Return the core-hours of a run, or its GPU-hours."""
    seconds, train = item.record.seconds, item.spec.train
    units = train.processes if train.device == "cuda" else train.processes * train.threads
    return seconds.total * units / 3600 if seconds else 0.0
