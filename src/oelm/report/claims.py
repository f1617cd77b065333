"""The ledger of the published claims: for each claim a paragraph, a small forest plot, and the runs behind it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args
from urllib.parse import quote

from oelm.analysis.regime import MARGINS_REQUIRED
from oelm.analysis.statistics import CONFIDENCE, MARGIN, Estimate
from oelm.published.claims import LEAST_PLACES_TO_POOL, ClaimRule, ClaimSize, Range, Unit, Words, scaled
from oelm.published.ledger import (
    LEDGER_POWER,
    ClaimFinding,
    DecidingNeed,
    JudgedRule,
    LedgerEntry,
    LedgerVerdict,
    TimerRecord,
    TimerSaving,
)
from oelm.report.figures import Band, ClaimDot, ClaimPanel, draw_claim_forest, draw_figure
from oelm.report.render import Answer, Column, Figure, Footnote, Line, Section, Table
from oelm.report.tables import link_record
from oelm.report.wording import Language, Say, format_probability, without_minus_zero, wording


def ledger_section(entries: Sequence[LedgerEntry], out: Path, lang: Language) -> Section:
    """Show the verdict on every published claim."""
    say = wording(lang)
    answers = tuple(
        Answer(
            subject=claim_text(entry.claim.title, lang),
            tone=entry.verdict,
            word=say(entry.verdict),
            sentence=say("join").join(_paragraph(entry, say, lang)),
            needs=tuple(_needs(entry, say, lang)),
            figure=_figure(entry, lang),
            footnotes=tuple(_footnotes(entry, out, say)),
            anchor=f"claim-{entry.claim.name}",
        )
        for entry in entries
    )
    note = say("ledger_note", pooled=LEAST_PLACES_TO_POOL, claims=len(entries))
    return Section("ledger", say("heading_ledger"), (note,), answers=answers)


def claims_by_verdict(entries: Sequence[LedgerEntry], lang: Language) -> Iterator[str]:
    """List the claims of each verdict."""
    say = wording(lang)
    for verdict in get_args(LedgerVerdict):
        titles = [claim_text(entry.claim.title, lang) for entry in entries if entry.verdict == verdict]
        if titles:
            yield say("claims_by_verdict", verdict=say(verdict), claims=say("ledger_join").join(titles))


def rules_section(entries: Sequence[LedgerEntry], lang: Language) -> Section:
    """Show the rules behind the verdicts: the table of oelm.published.claims."""
    say = wording(lang)
    keys = {"name": "rules_claim", "words": "rules_published", "state": "rules_claimed", "difference": "rules_none",
            "measure": "rules_counts"}  # fmt: skip
    columns = tuple(Column(name, say(key)) for name, key in keys.items())
    lines = tuple(
        Line((
            _name(entry, part, say, lang),
            _format_sizes(part.rule.sizes, part.rule.unit, say, lang),
            _format_claimed(part.rule, say),
            _format_no_effect(part.rule, say),
            claim_text(part.rule.counts, lang),
        ))
        for entry in entries
        for part in entry.judged
    )  # fmt: skip
    return Section("rules", say("heading_rules"), (say("rules_note"),), table=Table("rules", columns, lines))


def _name(entry: LedgerEntry, part: JudgedRule, say: Say, lang: Language) -> str:
    title = claim_text(entry.claim.title, lang)
    several = len(entry.judged) > 1
    return say("claim_size", size=title, source=say(f"quantity_{part.rule.quantity}")) if several else title


def claim_text(text: Words, lang: Language) -> str:
    """Return a text of the claims in the given language."""
    return text.zh if lang == "zh" else text.en


def _paragraph(entry: LedgerEntry, say: Say, lang: Language) -> Iterator[str]:
    several = len(entry.judged) > 1
    for part in entry.judged:
        if several:  # the figure and the rules have the published sizes
            yield say("claim_part", name=say(f"quantity_{part.rule.quantity}"), text=_describe_effect(part, say))
            if part.pooled:
                yield say("claim_part_verdict", verdict=say(part.verdict))
            continue
        yield say("claim_published", sizes=_format_sizes(part.rule.sizes, part.rule.unit, say, lang))
        yield _describe_effect(part, say)
        if part.flop_share:
            yield say("claim_flops", share=_format_number(part.flop_share, "share", say, signed=False))
        if entry.timer:
            yield _explain_timer(entry.timer, say)
    yield from _explain_correction(entry, say)
    yield from _regime(entry, say)


def _explain_timer(timer: TimerRecord, say: Say) -> str:
    def format_saving(found: TimerSaving) -> str:
        saving = _format_number(found.saving, "share", say)
        if found.interval is None:
            return saving
        low, high = (_format_number(bound, "share", say) for bound in found.interval)
        return say("claim_timer_saving", saving=saving, low=low, high=high)

    return say(
        "claim_timer",
        model=timer.size,
        published=format_saving(timer.as_published),
        alike=format_saving(timer.timed_alike),
        limit=_format_number(timer.flop_share, "share", say, signed=False),
    )


def _needs(entry: LedgerEntry, say: Say, lang: Language) -> Iterator[str]:
    """Say what would decide each rule of an undecided claim."""
    for part in entry.judged:
        if part.need:
            text = _describe_need(part.need, part.rule, say, lang)
            name = say(f"quantity_{part.rule.quantity}") if len(entry.judged) > 1 else ""
            yield say("claim_part", name=name, text=text) if name else text


def _explain_correction(entry: LedgerEntry, say: Say) -> Iterator[str]:
    """Give the reason for the verdict, or the verdict before the correction for all claims."""
    if entry.p is None:
        return
    if entry.alone != entry.verdict:
        yield say("claim_corrected_away", verdict=say(entry.alone), p=format_probability(entry.p, say))
    elif entry.verdict != "undecided":
        yield say(f"claim_because_{entry.verdict}", p=format_probability(entry.p, say))


def _regime(entry: LedgerEntry, say: Say) -> Iterator[str]:
    regimes = {part.regime for part in entry.judged if part.pooled}
    worth = [value for part in entry.judged for value in part.worth]
    margin = _format_number(MARGIN, "percent", say, signed=False)
    if "small" in regimes:
        shown = (
            [_format_number(value, "percent", say, signed=False) for value in sorted({min(worth), max(worth)})]
            if worth
            else []
        )
        yield (
            say("regime_small", worth=say("to").join(shown), times=f"{MARGINS_REQUIRED:g}", margin=margin)
            if shown
            else say("regime_small_bound", times=f"{MARGINS_REQUIRED:g}", margin=margin)
        )
    elif "unknown" in regimes:
        yield say("regime_unknown")


def _describe_effect(part: JudgedRule, say: Say) -> str:
    unit = part.rule.unit
    shown = [
        say("claim_at", place=place.name, effect=_format_effect(place.estimate, unit, say)) for place in part.places
    ]
    if not part.pooled:
        singles = [(item.study, item.mean) for item in part.findings if item.mean is not None]
        if not singles:
            return say("claim_unmeasured")
        listed = say("ledger_join").join(f"{study} {_format_number(mean, unit, say)}" for study, mean in singles)
        return say("claim_no_interval", listed=listed)
    if len(shown) == 1:
        return say("claim_measured_one", effect=shown[0])
    pooled = _format_effect(part.pooled.estimate, unit, say)
    listed = say("ledger_join").join(shown)
    return say("claim_measured_two" if len(shown) == 2 else "claim_measured_many", listed=listed, pooled=pooled,
               places=len(shown))  # fmt: skip


def _describe_need(need: DecidingNeed, rule: ClaimRule, say: Say, lang: Language) -> str:
    hours = say("none")
    if need.hours is not None:
        hours = say("gpu_hours" if need.on_gpu else "core_hours", value=f"{need.hours:.2g}")
    if need.seeds:
        seeds = say("ledger_join").join(
            say("need_seeds_at", place=name, count=more) for name, more in need.seeds.items()
        )
        power = say("percent", value=f"{100 * LEDGER_POWER:.0f}")
        return say("need_seeds", seeds=seeds, runs=need.runs, hours=hours, power=power)
    key = "need_bench" if need.runs == 1 else "need_experiment"
    return say(key, experiment=claim_text(rule.experiment, lang), runs=need.runs, hours=hours)


def _format_sizes(sizes: Sequence[ClaimSize], unit: Unit, say: Say, lang: Language) -> str:
    return say("ledger_join").join(
        say("claim_size", size=_format_number(size.value, unit, say), source=claim_text(size.source, lang))
        for size in sizes
    )


def _format_claimed(rule: ClaimRule, say: Say) -> str:
    return _format_range(rule.claimed, rule.unit, say)


def _format_range(bounds: Range, unit: Unit, say: Say) -> str:
    # Points gained are points lost with the sign changed, so the bounds change places.
    low, high = (-bounds.high, -bounds.low) if unit == "points" else (bounds.low, bounds.high)
    if math.isinf(low) or math.isinf(high):
        end = _format_number(bounds.low if math.isinf(bounds.high) else bounds.high, unit, say)
        return say("range_below", high=end) if math.isinf(low) else say("range_above", low=end)
    if unit == "steps":
        return say("range_plain", low=f"{low:.2f}", high=f"{high:.2f}")
    if unit == "points":
        return say("range_points", low=f"{low:+.2f}", high=f"{high:+.2f}")
    return say("range", low=f"{scaled(low, unit):+.1f}", high=f"{scaled(high, unit):+.1f}")


def _format_no_effect(rule: ClaimRule, say: Say) -> str:
    if rule.no_effect is None:
        return say("none")
    return f"± {_format_number(rule.no_effect, rule.unit, say, signed=False)}"


def _format_effect(estimate: Estimate, unit: Unit, say: Say) -> str:
    interval = estimate.interval(CONFIDENCE)
    return say("claim_effect", mean=_format_number(estimate.mean, unit, say),
               interval=_format_range(Range(interval.low, interval.high), unit, say))  # fmt: skip


def _format_number(value: float, unit: Unit, say: Say, *, signed: bool = True) -> str:
    """Format an effect. Points lost get a minus sign."""
    sign = "+" if signed else ""
    if unit == "points":
        return say("points", value=f"{without_minus_zero(-value):{sign}.2f}")
    if unit == "steps":
        return say("ledger_steps", value=f"{value:.2f}")
    return say("percent", value=f"{without_minus_zero(scaled(value, unit)):{sign}.1f}")


def _footnotes(entry: LedgerEntry, out: Path, say: Say) -> Iterator[Footnote]:
    """Describe every finding: its effect, whether it counts, and its runs, arm by arm."""
    said: set[tuple[str, str, str]] = set()
    for part in entry.judged:
        for finding in part.findings:
            key = (finding.study, finding.what, part.rule.quantity)
            if key not in said:
                said.add(key)
                yield Footnote(_describe_finding(finding, say), tuple(_links(finding, out, say)))


def _describe_finding(finding: ClaimFinding, say: Say) -> str:
    effect = say("none")
    if finding.estimate:
        effect = _format_effect(finding.estimate, finding.unit, say)
    elif finding.mean is not None:
        effect = _format_number(finding.mean, finding.unit, say)
    reason = say(f"reason_{finding.reason}") if finding.reason else say("reason_counts")
    return say("ledger_one", study=finding.study, arm=finding.what, difference=effect, verdict=reason)


def _links(finding: ClaimFinding, out: Path, say: Say) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    if finding.bench:
        yield say("ledger_bench"), ((finding.bench.path.name, _relative(finding.bench.path, out)),)
    for arm in dict.fromkeys(item.arm for item in finding.evidence):
        items = [item for item in finding.evidence if item.arm == arm]
        yield arm, tuple((str(item.spec.seed), link_record(item.directory, out)) for item in items)


def _relative(path: Path, out: Path) -> str:
    return quote(Path(os.path.relpath(path, out)).as_posix())


def _figure(entry: LedgerEntry, lang: Language) -> Figure:
    def panels(say: Say) -> list[ClaimPanel]:
        return [_panel(part, say, several=len(entry.judged) > 1) for part in entry.judged]

    return draw_figure(f"claim-{entry.claim.name}", lambda voice: draw_claim_forest(panels(voice), voice), "", lang)


def _panel(part: JudgedRule, say: Say, *, several: bool) -> ClaimPanel:
    rule = part.rule

    def drawn_at(value: float) -> float:
        return -value if rule.unit == "points" else scaled(value, rule.unit)

    def dot(label: str, estimate: Estimate, *, pooled: bool) -> ClaimDot:
        interval = estimate.interval(CONFIDENCE)
        low, high = sorted((drawn_at(interval.low), drawn_at(interval.high)))
        return ClaimDot(label, drawn_at(estimate.mean), low, high, pooled)

    dots = []
    for place in part.places:
        dots += [dot(item.study, item.estimate, pooled=False) for item in place.findings if item.estimate]
        if len(place.findings) > 1:
            dots.append(dot(say("claim_together", place=place.name), place.estimate, pooled=True))
    if part.pooled and part.pooled.places > 1:
        dots.append(dot(say("claim_pooled"), part.pooled.estimate, pooled=True))
    none = rule.no_effect
    return ClaimPanel(
        title=say(f"quantity_{rule.quantity}") if several else "",
        axis=say(f"claim_axis_{rule.unit}"),
        published=tuple(drawn_at(size.value) for size in rule.sizes),
        claimed=Band(*sorted((drawn_at(rule.claimed.low), drawn_at(rule.claimed.high)))),
        nothing=None if none is None else Band(*sorted((drawn_at(rule.zero - none), drawn_at(rule.zero + none)))),
        zero=drawn_at(rule.zero),
        dots=tuple(dots),
    )
