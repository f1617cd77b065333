"""The published claims, each with its verdict from the records at hand.

Rules look at what arms and data are, never at what studies are called. Each finding judges one comparison; a claim is
supported or contradicted if all findings that decide anything agree, *undecided* if they do not or decide nothing,
*not yet tested* if there is no finding at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from oelm.analysis.claims_of_cost import converges_sooner, faster, less_memory, no_gain
from oelm.analysis.claims_of_quality import (
    classification_tolerates,
    freezing_costs,
    grows_with_corpus,
    orthogonal_beats_random,
)
from oelm.analysis.compare import Comparison
from oelm.analysis.finding import Finding, LedgerVerdict

Claim = Literal[
    "orthogonal-beats-random", "freezing-costs-10-to-15", "loss-grows-with-the-corpus",
    "classification-tolerates-freezing", "57-percent-faster-on-bert", "no-gain-on-gpt",
    "converges-in-fewer-epochs", "less-memory",
]  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A claim, its verdict and what it rests on."""

    claim: Claim
    verdict: LedgerVerdict
    findings: tuple[Finding, ...]


_RULES: dict[Claim, Callable[[Sequence[Comparison]], Iterator[Finding]]] = {
    "orthogonal-beats-random": orthogonal_beats_random,
    "freezing-costs-10-to-15": freezing_costs,
    "loss-grows-with-the-corpus": grows_with_corpus,
    "classification-tolerates-freezing": classification_tolerates,
    "57-percent-faster-on-bert": faster,
    "no-gain-on-gpt": no_gain,
    "converges-in-fewer-epochs": converges_sooner,
    "less-memory": less_memory,
}


def ledger(comparisons: Sequence[Comparison]) -> list[Entry]:
    """Judge every published claim by some comparisons."""
    judged = [comparison for comparison in comparisons if not comparison.is_probe]
    return [_entry(claim, list(rule(judged))) for claim, rule in _RULES.items()]


def _entry(claim: Claim, found: list[Finding]) -> Entry:
    """Sum up. Studies that share their runs are one finding, not several: that of the study which could decide."""
    by_weight = sorted(found, key=lambda item: item.verdict != "undecided")
    decisive = {(item.what, _runs(item)): item for item in by_weight}
    findings = [item for item in found if decisive[item.what, _runs(item)] is item]
    decided = {finding.verdict for finding in findings} & {"supported", "contradicted"}
    verdict: LedgerVerdict = "undecided" if findings else "not yet tested"
    if len(decided) == 1:
        (verdict,) = decided
    return Entry(claim, verdict, tuple(findings))


def _runs(finding: Finding) -> frozenset[str]:
    return frozenset(item.record.fingerprint for item in finding.evidence)
