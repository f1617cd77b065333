"""Everything that the report of a study says: the answer first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import oelm
from oelm.analysis.bootstrap import Noise, noise_of
from oelm.analysis.compare import Comparison
from oelm.analysis.convergence import Curves, validation_curves
from oelm.analysis.evidence import Cell
from oelm.analysis.regime import find_regimes
from oelm.analysis.rows import Row
from oelm.analysis.why import whys
from oelm.report.certificates import evidence_section, named, remark_sections
from oelm.report.document import Answer, Document, Section
from oelm.report.equal import equal_section
from oelm.report.noise import noise_sentences, power_sentences
from oelm.report.numbers import shown_crossed, shown_difference, shown_interval, shown_margin, shown_verdict
from oelm.report.price import price_sections
from oelm.report.registration import registration_lines, registration_sections
from oelm.report.scaling import scaling_sections
from oelm.report.sealed import sealed_section
from oelm.report.sections import (
    ablation_section,
    convergence_section,
    cost_section,
    forest_section,
    heads_sections,
    published_section,
    samples_section,
    statistics_section,
    tuning_section,
)
from oelm.report.tables import floors, guesses, results
from oelm.report.wording import Language, Say, wording
from oelm.report.worth import content_section, regime_lines, why_section


def study_document(comparison: Comparison, root: Path, out: Path, lang: Language) -> tuple[Document, Comparison]:
    """Say what a comparison means. Links are relative to `out`, where the report will lie.

    The comparison is returned with what turned out to be unreadable on the way.
    """
    say = wording(lang)
    noise, complaints = noise_of(comparison)
    curves = {(row.arm, row.cell): validation_curves(row, complaints) for row in comparison.rows}
    heads = heads_sections(comparison, complaints, lang)
    declared = list(registration_sections(comparison, root, out, complaints, say))
    regimes, why = find_regimes(comparison, root, complaints), whys(comparison, complaints)
    comparison = replace(comparison, unreadable=tuple(dict.fromkeys([*comparison.unreadable, *complaints])))
    tables = [] if comparison.study.is_screen else [table_section(comparison, noise, say)]
    sections = [
        verdict_section(comparison, say),
        *tables,
        *content_section(comparison, regimes, say),
        *scaling_sections(comparison, root, lang),
        *_optional(comparison, curves, out, lang),
        *why_section(comparison, why, lang),
        *heads,
        *samples_section(comparison, say),
        *published_section(comparison, out, say, lang),
        *sealed_section(comparison, root, say),
        *declared,
        *evidence_section(comparison, out, say),
        *remark_sections(comparison, root, out, say),
    ]
    footer = say("made_by", version=oelm.__version__, root=root.resolve().name)
    notice = tuple(regime_lines(comparison, regimes, say))
    document = Document(comparison.study.name, comparison.study.question, tuple(sections), footer, notice)
    return document, comparison


def _optional(
    comparison: Comparison, curves: dict[tuple[str, Cell], Curves], out: Path, lang: Language
) -> Iterator[Section]:
    say = wording(lang)
    yield from forest_section(comparison, lang)
    yield from statistics_section(comparison, say)
    # On a probe the least loss is mostly chance and says little; what counts there is the share that guessing gets.
    if guessed := guesses(comparison, say):
        yield Section("guess", say("heading_guess"), (say("guess_note", guessed=", ".join(guessed)),))
    elif floor := floors(comparison, say):
        yield Section("floor", say("heading_floor"), (say("floor_note", floor=", ".join(floor)),))
    yield from price_sections(comparison, say)
    yield from ablation_section(comparison, lang)
    if not comparison.study.is_screen:
        yield convergence_section(comparison, curves, lang)
        yield from equal_section(comparison, curves, lang)
    yield from tuning_section(comparison, out, lang)
    yield from cost_section(comparison, say)


def verdict_section(comparison: Comparison, say: Say) -> Section:
    """Answer the question in plain words."""
    judged = () if comparison.study.is_screen else comparison.rows
    answers = tuple(answer(comparison, row, say) for row in judged if row.verdict)
    lead = (*_lead(comparison, say), *registration_lines(comparison, say))
    return Section("verdict", say("heading_verdict"), lead, answers=answers)


def table_section(comparison: Comparison, noise: Noise, say: Say) -> Section:
    """Set the arms side by side."""
    return Section("table", say("heading_table"), table=results(comparison, say, noise))


def _lead(comparison: Comparison, say: Say) -> Iterator[str]:
    study, measure = comparison.study, comparison.measure
    margin = shown_margin(comparison.margin, measure, say)
    target = "target" if measure.name == "perplexity" else "target_accuracy"
    if study.margin == "content":
        target = "target_content_open" if math.isnan(comparison.margin) else "target_content"
    yield say(target, margin=margin, reference=study.reference)
    for reason in comparison.unfair:
        yield say("forced", reason=reason)
    if comparison.stage.name == "tune":
        ended = len(comparison.stage.tune) - sum(gap.state != "diverged" for gap in comparison.gaps)
        yield say("stage_tune", ended=ended, whole=len(comparison.stage.tune))
        return
    if study.is_screen:
        yield say("stage_screen", fields=", ".join(study.tuned), seeds=len(study.tuning_seeds))
        return
    if study.is_tuned:
        yield say("stage_confirm", fields=", ".join(study.tuned))
    else:
        yield say("stage_untuned")
    complete = sum(len(row.evidence) for row in comparison.rows)
    missing = [gap for gap in comparison.gaps if len(gap.cell) == len(study.axis_names)]
    yield say("progress", complete=complete, expected=complete + len(missing))
    if comparison.judged == "val":
        yield say("judged_on_validation")


def answer(comparison: Comparison, row: Row, say: Say) -> Answer:
    """Say what was found about one arm."""
    verdict = row.verdict or "undecided"
    return Answer(
        named(row.arm, row.cell), verdict, shown_verdict(row, say), say("join").join(_sentences(comparison, row, say))
    )


def _sentences(comparison: Comparison, row: Row, say: Say) -> Iterator[str]:
    difference, measure, reference = row.difference, comparison.measure, comparison.study.reference
    if row.awaits and row.verdict == "undecided":
        yield say("verdict_awaits", pairs=row.awaits[0], seeds=row.awaits[1])
    if difference is None or row.judgement is None:
        yield say("verdict_no_pairs", reference=reference)
        return
    suffix = "" if measure.name == "perplexity" else "_accuracy"
    distance = {"difference": shown_difference(difference.mean, measure, say), "reference": reference}
    if difference.interval is None or difference.bounds is None:
        alone = difference.pairs == 1
        yield say(f"distance{suffix}_one_seed" if alone else f"distance{suffix}_no_spread", **distance)
        yield say("verdict_one_seed" if alone else "verdict_no_spread", pairs=difference.pairs)
        return
    yield say(f"distance{suffix}", interval=shown_interval(difference, measure, say), **distance)
    yield from noise_sentences(row, measure, say)
    margin = shown_margin(comparison.margin, measure, say)
    if row.verdict == "met":
        yield say("verdict_met", margin=margin, bound=shown_difference(difference.bounds.high, measure, say))
    elif row.verdict == "not met":
        crossed = shown_crossed(row.judgement, comparison.margin, measure, say)
        yield say("verdict_not_met", margin=crossed, bound=shown_difference(difference.bounds.low, measure, say))
    elif row.at_chance:
        yield say("verdict_at_chance", reference=reference)
    elif row.awaits:
        pass
    elif row.judgement.verdict == "undecided":
        yield say("verdict_undecided", margin=margin, pairs=difference.pairs)
    else:
        overruled = row.lost and row.judgement.verdict == "met"
        yield say("verdict_lost" if overruled else "verdict_family")
    if row.more_seeds is not None:
        yield say("verdict_more", more=row.more_seeds)
    yield from power_sentences(row, measure, say)
