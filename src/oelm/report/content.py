"""The value of content in a report: the first lines, the table of content kept, and the tokens on which arms differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from oelm.analysis.compare import Comparison
from oelm.analysis.content import Kept, RatioSet
from oelm.analysis.evidence import Cell
from oelm.analysis.regime import Criterion, Regime, Why
from oelm.analysis.statistics import percent
from oelm.report.figures import Profile, arm_places, draw_figure, draw_position_profiles
from oelm.report.render import Column, Line, Section, Table
from oelm.report.wording import (
    ONE_SEED,
    Language,
    Say,
    format_interval,
    format_percent,
    format_place,
    format_share,
    mark_notes,
    wording,
)
from oelm.spec.study import missing_arms

Regimes = Mapping[Cell, Regime]


def regime_lines(comparison: Comparison, regimes: Regimes, say: Say) -> list[str]:
    """Say whether the regime of a language study is representative, and why."""
    if comparison.measure.name != "perplexity" or not comparison.study.is_language:
        return []
    by_sentence: dict[str, list[Cell]] = {}
    for cell in dict.fromkeys([*comparison.cells, *regimes]):
        sentence = _regime(comparison, regimes.get(cell), say)
        by_sentence.setdefault(sentence, []).append(cell)
    if len(by_sentence) == 1:
        return list(by_sentence)
    return [
        say("regime_at", place=" / ".join(map(format_place, cells)), sentence=sentence)
        for sentence, cells in by_sentence.items()
    ]


def _regime(comparison: Comparison, regime: Regime | None, say: Say) -> str:
    study = comparison.study
    if regime is None and study.content_arms:
        arms = study.content_arms[0]
        return say("content_pending", trained=arms.trained, position=arms.position)
    if regime is None:
        return say("content_unmeasured", arms=_to_add(comparison, say))
    return say("join").join(_sentences(comparison, regime, say))


def _to_add(comparison: Comparison, say: Say) -> str:
    names = missing_arms({arm.name: arm.method for arm in comparison.study.arms if not arm.model})
    return say("add_one" if len(names) == 1 else "add_several", arms=say("and").join(names))


def _sentences(comparison: Comparison, regime: Regime, say: Say) -> Iterator[str]:
    worth, *others = regime.criteria
    # The first lines name only the conditions that are not met; the section below has all three.
    reasons = [
        explain_condition(regime, worth, say),
        *(explain_condition(regime, each, say) for each in others if not each.is_met),
    ]
    if regime.is_representative:
        reasons = [explain_condition(regime, each, say) for each in regime.criteria]
    key = {True: "regime_yes", False: "regime_no", None: "regime_open"}[regime.is_representative]
    if not regime.same_text:
        yield say("regime_other_text", study=regime.study, arms=_to_add(comparison, say))
    yield say(key, reasons=say("reason_join").join(reasons))
    lower = regime.worth.lower
    if worth.is_met is False and lower is not None:
        yield say("regime_without_content", half=_percent(max(0.0, lower / 2), say))
    if regime.same_text and regime.study != comparison.study.name:
        yield say("regime_elsewhere", study=regime.study)


def explain_condition(regime: Regime, criterion: Criterion, say: Say) -> str:
    """Describe the result for one condition of a representative regime."""
    arms = regime.worth.arms
    if criterion.name == "worth":
        values = {
            "worth": _percent(regime.worth.value.mean, say), "required": _percent(criterion.required, say),
            "bound": say("none") if criterion.value is None else _percent(criterion.value, say),
            "trained": arms.trained, "position": arms.position, "reference": regime.reference,
        }  # fmt: skip
        if regime.against_reference is None:
            return say("reason_worth", **values)
        return say("reason_worth_two", behind=_percent(regime.against_reference, say), **values)
    if criterion.value is None:
        return say(f"reason_{criterion.name}_unknown")
    if criterion.name == "doubling":
        value = "∞" if math.isinf(criterion.value) else say("percent", value=f"{100 * criterion.value:+.0f}")
        return say("reason_doubling", value=value, required=say("percent", value=f"{100 * criterion.required:.0f}"))
    return say(
        "reason_repeats", trained=arms.trained, position=arms.position, value=f"{criterion.value:.2f}",
        required=f"{criterion.required:.1f}",
    )  # fmt: skip


def _percent(log_ratio: float, say: Say) -> str:
    return say("percent", value=f"{percent(log_ratio):.1f}")


def content_section(comparison: Comparison, regimes: Regimes, say: Say) -> Iterator[Section]:
    """Show the value of content, and the cost and the content kept of each frozen arm, if known for this text."""
    known = [regime for regime in regimes.values() if regime.same_text]
    if not known:
        return
    reasons = dict.fromkeys(
        say("reason_join").join(explain_condition(regime, each, say) for each in regime.criteria) for regime in known
    )
    paragraphs = tuple(f"{text[0].upper()}{text[1:]}." if say("join") else f"{text}。" for text in reasons)
    yield Section("content", say("heading_content"), paragraphs, table=content_table(comparison, known, say))


def content_table(comparison: Comparison, regimes: Sequence[Regime], say: Say) -> Table:
    """Format C, and for every frozen arm d and the content kept."""
    columns = (
        *(Column("axis", axis) for axis in comparison.study.axis_names),
        Column("arm", say("arm")),
        Column("words", say("content_role")),
        Column("difference", say("content_cost")),
        Column("interval", say("interval")),
        Column("kept", say("content_kept")),
        Column("interval", say("interval")),
    )
    lines = [line for regime in regimes for line in _lines(regime, say)]
    borrowed = {regime.study for regime in regimes} - {comparison.study.name}
    nearly = {regime.worth.arms.position for regime in regimes if not regime.worth.arms.is_exact}
    notes = [
        say("content_note"),
        *(say("content_borrowed", study=study) for study in sorted(borrowed)),
        *(say("content_nearly", position=position) for position in sorted(nearly)),
        *mark_notes("".join(cell for line in lines for cell in line.cells), say),
    ]
    return Table("content", columns, tuple(lines), tuple(notes))


def _lines(regime: Regime, say: Say) -> Iterator[Line]:
    place, none, measure = tuple(value for _, value in regime.cell), say("none"), regime.measure
    worth, arms = regime.worth, regime.worth.arms
    yield Line((*place, arms.trained, say("role_trained"), none, none, none, none))
    single = ONE_SEED if worth.value.pairs == 1 else ""
    shown = format_percent(worth.value.mean, say) + single
    yield Line(
        (*place, arms.position, say("role_position"), shown, format_interval(worth.value, measure, say), none, none)
    )
    for item in worth.kept:
        cost = format_percent(item.cost.mean, say) + (ONE_SEED if item.cost.pairs == 1 else "")
        interval = format_interval(item.cost, measure, say)
        yield Line(
            (
                *place,
                item.arm,
                say("role_frozen"),
                cost,
                interval,
                _format_kept(item, say),
                format_set(item.interval, say),
            )
        )


def _format_kept(item: Kept, say: Say) -> str:
    """Format the share of content that an arm keeps; a dash if its confidence set is unbounded."""
    if item.share is None or (item.interval is not None and item.interval.kind != "between"):
        return say("none")
    return say("percent", value=f"{100 * item.share:.0f}") + (ONE_SEED if item.interval is None else "")


def format_set(interval: RatioSet | None, say: Say) -> str:
    """Format a confidence set of a share as percent; it may be unbounded."""
    if interval is None:
        return say("none")
    if interval.kind == "everything":
        return say("kept_everything")
    low, high = (f"{100 * bound:.0f}" for bound in (interval.low, interval.high))
    if interval.kind == "between":
        return say("range", low=low, high=high)
    return say("kept_outside", low=say("percent", value=low), high=say("percent", value=high))


def why_section(comparison: Comparison, found: Sequence[Why], lang: Language) -> Iterator[Section]:
    """Show on which tokens and positions the arms differ, and how much of their logits is content."""
    if not found:
        return
    say, reference, order = wording(lang), comparison.study.reference, arm_places(comparison)
    panels = []
    for cell in dict.fromkeys(item.cell for item in found):
        profiles = [
            Profile(item.arm, order.index(item.arm), item.position_differences)
            for item in found
            if item.cell == cell and item.position_differences
        ]
        if profiles:
            panels.append((format_place(cell), profiles))
    picture = None
    if panels:
        caption = say("why_caption", reference=reference)
        picture = draw_figure(
            "positions", lambda voice: draw_position_profiles(panels, reference, voice), caption, lang
        )
    yield Section("why", say("heading_why"), table=_why_table(comparison, found, say), figure=picture)


def _why_table(comparison: Comparison, found: Sequence[Why], say: Say) -> Table:
    reference = comparison.study.reference
    columns = (
        *(Column("axis", axis) for axis in comparison.study.axis_names),
        Column("arm", say("arm")),
        Column("repeats", say("why_repeats")),
        Column("others", say("why_others")),
        Column("difference", say("why_repeats_difference", reference=reference)),
        Column("difference", say("why_others_difference", reference=reference)),
        Column("content", say("why_content")),
    )
    lines = tuple(
        Line((
            *(value for _, value in item.cell), item.arm, _nats(item.repeats, say), _nats(item.others, say),
            _nats(item.repeats_difference, say, "+"), _nats(item.others_difference, say, "+"),
            format_share(item.content_share, say),
        ))
        for item in found
    )  # fmt: skip
    shares = [item.share_of_repeats for item in found if item.share_of_repeats is not None]
    splits = list(dict.fromkeys(say(f"split_{item.split}") for item in found if item.split))
    note = say("why_note", split=say("and").join(splits), share=format_share(shares[0] if shares else None, say))
    return Table("why", columns, lines, (note,))


def _nats(value: float | None, say: Say, sign: str = "") -> str:
    return say("none") if value is None else f"{value:{sign}.3f}"
