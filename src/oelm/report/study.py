"""The report of a study: the answer first, then the evidence behind it.

Each function yields the sections for one topic, and nothing if the records have no data for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import oelm
from oelm.analysis.ablation import Ablation, ablations
from oelm.analysis.budgets import SeedCurves, convergence_of, savings, validation_curves
from oelm.analysis.compare import Comparison
from oelm.analysis.evidence import Cell, Evidence, Measure, Row, format_value
from oelm.analysis.power import noise_of, reach_of
from oelm.analysis.regime import explain_differences, find_regimes
from oelm.analysis.statistics import Difference, is_marked, paired_difference
from oelm.analysis.tuning import Sensitivity, misfits, sensitivities
from oelm.errors import BadRecord, UsageError
from oelm.published.claims import contradictions_about, is_at_published_size, published_flop_share, published_run
from oelm.record.folder import REGISTERED, SAMPLES, AttentionRecord, read_attention
from oelm.record.registration import RegistrationRecord
from oelm.record.test_split import SealedScore, SplitLooks, StudyLooks, looks_at, read_unsealed
from oelm.report.figures import (
    Bar,
    Dot,
    Panel,
    Rank,
    arm_places,
    draw_convergence,
    draw_figure,
    draw_forest,
    draw_heads,
    draw_heads_over_training,
    draw_ranking,
    draw_tuning,
    draw_waterfall,
    gather_curve,
)
from oelm.report.render import Answer, Column, Document, Figure, Folded, Line, Remark, Section, Table
from oelm.report.sections import (
    content_section,
    equal_section,
    price_sections,
    regime_lines,
    scaling_sections,
    why_section,
)
from oelm.report.tables import (
    ablation_table,
    axis_columns,
    convergence_table,
    cost_table,
    evidence_section,
    format_floors,
    format_guesses,
    link_record,
    name_arm,
    remark_sections,
    results,
    statistics_table,
    tuning_table,
)
from oelm.report.wording import (
    ONE_SEED,
    Language,
    Say,
    format_bounds,
    format_crossed,
    format_difference,
    format_figure,
    format_freedom,
    format_interval,
    format_margin,
    format_place,
    format_setting,
    format_share,
    format_verdict,
    without_minus_zero,
    wording,
)

if TYPE_CHECKING:
    import matplotlib.figure

SAMPLE_BYTES = 4000
"""Size of the part of a run's samples that a report shows."""


def forest_section(comparison: Comparison, lang: Language) -> Iterator[Section]:
    """Draw the differences with their intervals and the margin."""
    if not _forest_dots(comparison):
        return
    say = wording(lang)
    caption = say("forest_caption", reference=comparison.study.reference)
    picture = draw_figure("forest", lambda voice: _draw_differences(comparison, voice), caption, lang)
    yield Section("forest", say("heading_forest"), figure=picture)


def forest_figure(comparison: Comparison, lang: Language) -> matplotlib.figure.Figure:
    """Draw the differences as a figure of matplotlib; raise UsageError if no difference has an interval."""
    if not _forest_dots(comparison):
        raise UsageError(
            "There is nothing to draw: no arm has two complete seeds in common with the reference. Run more seeds."
        )
    return _draw_differences(comparison, wording(lang))


def _draw_differences(comparison: Comparison, say: Say) -> matplotlib.figure.Figure:
    margin, axis = comparison.measure.scaled(comparison.margin), say(f"forest_axis_{comparison.measure.name}")
    return draw_forest(_forest_dots(comparison), margin, axis, say)


def _forest_dots(comparison: Comparison) -> list[Dot]:
    scaled = comparison.measure.scaled
    return [
        Dot(row.arm, scaled(row.difference.mean), scaled(row.difference.interval.low),
            scaled(row.difference.interval.high), row.verdict or "undecided", format_place(row.cell))
        for row in comparison.rows if row.difference and row.difference.interval
    ]  # fmt: skip


def statistics_section(comparison: Comparison, say: Say) -> Iterator[Section]:
    """Show how certain the differences are: a table, and the details of each arm."""
    if any(row.difference and row.difference.pairs > 1 for row in comparison.rows):
        waiting = any(row.more_seeds is not None for row in comparison.rows)
        yield Section(
            "statistics",
            say("heading_statistics"),
            (say("more_seeds_note"),) if waiting else (),
            table=statistics_table(comparison, say),
            remarks=tuple(statistics_remarks(comparison, say)),
        )


def statistics_remarks(comparison: Comparison, say: Say) -> Iterator[Remark]:
    """Say for each arm what its interval is based on, whether its noise is skewed, and what could be detected."""
    for row in comparison.rows:
        details = [*_describe_interval(row, comparison.measure, say), *_describe_power(row, comparison.measure, say)]
        if details:
            yield Remark(name_arm(row.arm, row.cell), say("join").join(details))


def _describe_interval(row: Row, measure: Measure, say: Say) -> Iterator[str]:
    difference = row.difference
    if difference is None or difference.interval is None:
        return
    if look := difference.look:
        level = say("percent", value=f"{100 * look.level:.2g}")
        yield say(
            "look_at", number=look.number, looks=len(look.seeds), seeds=look.count, all=look.seeds[-1], level=level
        )
    if prior := difference.prior:
        own = difference.freedom == difference.pairs - 1
        yield say(
            "interval_own" if own else "interval_moderated" if prior.arms else "interval_declared",
            arms=prior.arms,
            freedom=format_freedom(difference.freedom, say),
            plain=format_bounds(difference.plain, measure, say),
        )
    if difference.skewness is not None and is_marked(difference.skewness):
        yield say(
            "noise_skewed" if difference.robust else "noise_skewed_few",
            skewness=f"{difference.skewness:+.1f}",
            robust=format_bounds(difference.robust, measure, say),
        )


def _describe_power(row: Row, measure: Measure, say: Say) -> Iterator[str]:
    reach = reach_of(row.difference)
    if reach and row.difference:
        ends = {name: format_difference(getattr(reach, name), measure, say) for name in ("met", "not_met", "nonzero")}
        key = "power_line" if measure.name == "perplexity" else "power_line_accuracy"
        yield say(key, pairs=row.difference.pairs, **ends)


def ablation_section(comparison: Comparison, lang: Language) -> Iterator[Section]:
    """Split the difference of frozen orthogonal weights into steps, and show other comparisons of two arms."""
    found = [item for item in ablations(comparison) if len(item.steps) > 1 or item.apart]
    say, measure = wording(lang), comparison.measure
    if not found:
        return
    picture = None
    if any(step.difference for item in found for step in item.steps):
        axis = f"forest_axis_{measure.name}"
        picture = draw_figure(
            "ablation",
            lambda voice: draw_waterfall(_bars(found, voice), voice(axis), relative=measure.name == "perplexity"),
            say("ablation_caption"),
            lang,
        )
    notes = [say("ablation_note")]
    notes += [say("ablation_apart")] if any(item.apart for item in found) else []
    notes += [say("ablation_confounded")] if any(item.confounded for item in found) else []
    table = ablation_table(comparison, found, say)
    yield Section("ablation", say("heading_ablation"), tuple(notes), table=table, figure=picture)


def _bars(found: Sequence[Ablation], say: Say) -> list[Bar]:
    """Return the steps as bars. A comparison that is not a step of the path is named by its two arms."""
    return [
        Bar(
            " ".join(
                [
                    f"{step.start} → {step.end}" if item.apart else say(f"step_{step.name}"),
                    *(value for _, value in item.cell),
                ]
            ),
            step.difference.mean,
            step.difference.interval,
            first=number == 0,
        )
        for item in found
        for number, step in enumerate(item.steps)
        if step.difference
    ]


def convergence_section(comparison: Comparison, curves: dict[tuple[str, Cell], SeedCurves], lang: Language) -> Section:
    """Draw the validation curves, and measure how fast the arms learn."""
    say, order = wording(lang), arm_places(comparison)
    panels = []
    for cell in comparison.cells:
        rows = [row for row in comparison.rows if row.cell == cell]
        lines = [gather_curve(row.arm, order.index(row.arm), list(curves[row.arm, cell].values())) for row in rows]
        present = tuple(line for line in lines if line)
        if present:
            panels.append(Panel(format_place(cell), present, _validation_floor(rows)))
    if not panels:
        return Section("plot", say("heading_plot"), (say("plot_missing"),))
    picture = draw_figure("convergence", lambda voice: draw_convergence(panels, voice), say("plot_caption"), lang)
    table = convergence_table(comparison, convergence_of(comparison, curves), say)
    return Section("plot", say("heading_plot"), figure=picture, table=table)


def _validation_floor(rows: list[Row]) -> float | None:
    data = [item.record.data for row in rows for item in row.evidence if item.record.data]
    return next((found.floor["val"] for found in data if "val" in found.floor), None)


def tuning_section(comparison: Comparison, out: Path, lang: Language) -> Iterator[Section]:
    """Show the grid, and the cost of missing the best value for each arm."""
    found, say = sensitivities(comparison), wording(lang)
    if not found:
        return
    order = arm_places(comparison)
    picture = None
    numeric = all(isinstance(point.value, int | float) for item in found for point in item.points)
    if all(len(item.points) == 1 for item in found) and all(len(grid) == 1 for grid in comparison.study.tuned.values()):
        picture = _draw_ranks(comparison, found, lang)
    elif numeric and any(point.scores for item in found for point in item.points):
        picture = draw_figure("tuning", lambda voice: draw_tuning(found, order, voice), say("tuning_caption"), lang)
    table = tuning_table(comparison, found, out, say)
    yield Section("tuning", say("heading_tuning"), table=table, figure=picture)


def _draw_ranks(comparison: Comparison, found: Sequence[Sensitivity], lang: Language) -> Figure | None:
    """Rank the arms if each has a single setting, so that there is no curve to draw."""
    say, measure, reference = wording(lang), comparison.measure, comparison.study.reference
    bests = {item.cell: item.best for item in found if item.arm == reference}
    ranks = [
        Rank(
            name_arm(item.arm, item.cell),
            measure.scaled(measure.of_scores(item.best - best)),
            format_share(item.qk, say),
        )
        for item in found
        if item.arm != reference and item.best is not None and (best := bests.get(item.cell)) is not None
    ]
    if not ranks:
        return None
    margin, axis = measure.scaled(comparison.margin), f"forest_axis_{measure.name}"
    caption = say("ranking_caption", reference=reference)
    return draw_figure("ranking", lambda voice: draw_ranking(ranks, margin, voice(axis), voice), caption, lang)


def cost_section(comparison: Comparison, say: Say) -> Iterator[Section]:
    """Show the costs of the arms and the savings that are possible."""
    if any(row.evidence for row in comparison.rows):
        yield Section(
            "cost", say("heading_cost"), table=cost_table(comparison, savings(comparison, published_flop_share), say)
        )


def heads_sections(comparison: Comparison, complaints: list[str], lang: Language) -> list[Section]:
    """Draw the attention of the heads in the first seed of each arm: at the end, and during training for each cell."""
    order, say = arm_places(comparison), wording(lang)
    found = [
        (row, seen)
        for row in comparison.rows
        if (seen := next(filter(None, (_attention(item, complaints) for item in row.evidence)), []))
    ]
    if not found:
        return []
    ends = [
        (
            format_place(cell),
            [(row.arm, order.index(row.arm), seen[-1].entropy) for row, seen in found if row.cell == cell],
        )
        for cell in dict.fromkeys(row.cell for row, _ in found)
    ]
    picture = draw_figure("heads", lambda voice: draw_heads(ends, voice), say("heads_caption"), lang)
    sections = [Section("heads", say("heading_heads"), figure=picture)]
    for number, cell in enumerate(comparison.cells, 1):
        ways = [(row.arm, seen) for row, seen in found if row.cell == cell and len(seen) > 1]
        if ways:
            name = "heads-training" if len(comparison.cells) == 1 else f"heads-training-{number}"
            title = ": ".join([say("heading_heads_training"), *(value for _, value in cell)])
            picture = draw_figure(name, partial(draw_heads_over_training, ways), say("heads_training_caption"), lang)
            sections.append(Section(name, title, figure=picture))
    return sections


def _attention(item: Evidence, complaints: list[str]) -> list[AttentionRecord]:
    try:
        return read_attention(item.directory, complaints)
    except BadRecord as error:
        complaints.append(str(error))
        return []


def samples_section(comparison: Comparison, say: Say) -> Iterator[Section]:
    """Show the text that the models generated."""
    folds = [
        Folded(say("samples_of", arm=name_arm(row.arm, row.cell), seed=item.spec.seed), text)
        for row in comparison.rows
        for item in row.evidence
        if (text := sample_of(item))
    ]
    if folds:
        yield Section("samples", say("heading_samples"), folds=tuple(folds), first_open=True)


def sample_of(item: Evidence) -> str | None:
    """Return the beginning of the text that a run generated at its end, or None."""
    path = item.directory / SAMPLES
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(SAMPLE_BYTES).decode(errors="replace").strip()


def published_section(evidence: list[tuple[Row, Evidence]], out: Path, say: Say, lang: Language) -> Iterator[Section]:
    """Compare runs with the published runs whose ids are in their labels, and list known problems of those."""
    lines, ids = [], set()
    for row, item in evidence:
        there = published_run(item.spec)
        cost = row.measure.cost(item.record.result)
        if there is None or cost is None:
            continue
        ids.add(there.id)
        here = row.measure.figure(cost)
        claimed = there.perplexity if row.measure.name == "perplexity" else 100 * (there.accuracy or 0)
        ratio = say("none")
        if claimed and is_at_published_size(item.spec, there):
            ratio = (
                say("percent", value=f"{without_minus_zero(round(100 * (here / claimed - 1), 1)):+.1f}")
                if row.measure.name == "perplexity"
                else say("points", value=f"{without_minus_zero(here - claimed):+.2f}")
            )
        lines.append(Line(
            (there.id, item.spec.arm, format_setting(item.spec.train.learning_rate),
             format_figure(here, row.measure, say) + ONE_SEED * (len(row.evidence) == 1),
             format_figure(claimed, row.measure, say), ratio),
            links={3: link_record(item.directory, out)},
        ))  # fmt: skip
    if not lines:
        return
    headings = {"name": "published_id", "arm": "arm", "rate": "learning_rate", "here": "published_here",
                "there": "published_there", "ratio": "published_ratio"}  # fmt: skip
    columns = tuple(Column(name, say(key)) for name, key in headings.items())
    yield Section("published", say("heading_published"), (say("published_note"),),
                  table=Table("published", columns, tuple(lines)))  # fmt: skip
    known = contradictions_about(ids)
    if known:
        remarks = tuple(Remark(", ".join(item.runs), item.en if lang == "en" else item.zh) for item in known)
        yield Section("contradictions", say("heading_contradictions"), remarks=remarks)


# Registration, looks at the test split, and the sealed split.


def registration_lines(comparison: Comparison, say: Say) -> Iterator[str]:
    """Say whether a study is as registered, and how many runs are older than that. A screen is not registered."""
    found = comparison.registration
    if found is None or comparison.study.is_screen:
        return
    if found.record is None:
        yield say("not_registered")
        return
    place = {"day": found.record.day, "commit": _format_commit(found.record, say)}
    if found.changed:
        changes = (
            say("registered_field", field=field, before=format_value(before), now=format_value(now))
            for field, before, now in found.changed
        )
        yield say("registered_changed", changes=say("semicolon").join(changes), **place)
    else:
        yield say("as_registered", **place)
    if found.older:
        yield say("older_runs", count=len(found.older), whole=len(comparison.confirming))


def _format_commit(record: RegistrationRecord, say: Say) -> str:
    commit = record.commit[:12] if record.commit else say("commit_unknown")
    return f"{commit} ({say('uncommitted')})" if record.dirty else commit


def registration_sections(
    comparison: Comparison, root: Path, out: Path, complaints: list[str], say: Say
) -> Iterator[Section]:
    """Show the registered digest and every older run, and count the looks at the test split."""
    found = comparison.registration
    if found and found.record and not comparison.study.is_screen:
        digest = say("registration_digest", digest=found.record.digest[:16], file=REGISTERED)
        older = tuple(
            Remark(
                say("samples_of", arm=run.spec.arm, seed=run.spec.seed),
                say("older_started", started=run.started),
                link_record(directory, out),
            )
            for directory, run in found.older
        )
        yield Section("registration", say("heading_registration"), (digest,), remarks=older)
    records = [*(run for _, run in comparison.confirming), *(item.record for item in comparison.tuning)]
    checksums = dict.fromkeys(run.data.checksum for run in records if run.data and run.data.tokens.get("test"))
    if looks := looks_at(root, comparison.study.name, checksums, complaints):
        own = comparison.study.name
        yield Section("looks", say("heading_looks"), tuple(_looks(split, own, say) for split in looks))


def _looks(split: SplitLooks, own: str, say: Say) -> str:
    by = say("comma").join(_by(item, own, say) for item in split.by)
    name = {"corpus": split.corpus, "checksum": split.checksum[:8]}
    return say("looks_once", by=by, **name) if split.total == 1 else say("looks", total=split.total, by=by, **name)


def _by(item: StudyLooks, own: str, say: Say) -> str:
    study = say("looks_this_study") if item.study == own else item.study or say("looks_no_study")
    runs = len(item.looks) - item.evaluations
    parts = []
    if item.seeds is not None:
        parts.append(say("looks_matrix" if item.seeds > 1 else "looks_one_seed", arms=item.arms, seeds=item.seeds))
    elif runs:
        parts.append(say("looks_runs", arms=item.arms, runs=runs))
    if item.evaluations:
        parts.append(say("looks_evaluations", count=item.evaluations))
    return say("looks_by", count=len(item.looks), study=study, what=say("comma").join(parts))


def sealed_section(comparison: Comparison, root: Path, say: Say) -> Iterator[Section]:
    """Show the results on the sealed split next to those on the test split, once it has been opened."""
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
        *axis_columns(comparison),
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
    yield format_figure(row.figure, measure, say)
    yield format_figure(measure.figure(statistics.fmean(own.values())) if own else None, measure, say)
    yield from (_difference(item, measure, say) for item in (row.difference, sealed))
    yield from (format_interval(item, measure, say) for item in (row.difference, sealed))


def _difference(difference: Difference | None, measure: Measure, say: Say) -> str:
    return say("none") if difference is None else format_difference(difference.mean, measure, say)


def sealed_costs(row: Row, scores: Mapping[str, SealedScore], measure: Measure) -> dict[int, float]:
    """Return seed -> cost of a row on the sealed split."""
    found = [(item.spec.seed, scores.get(item.record.fingerprint)) for item in row.evidence]
    return {
        seed: score.loss if measure.name == "perplexity" else -100 * (score.accuracy or 0.0)
        for seed, score in found
        if score is not None
    }


def study_document(comparison: Comparison, root: Path, out: Path, lang: Language) -> tuple[Document, Comparison]:
    """Return the report of a comparison, with links relative to `out`.

    The comparison is returned as well, with the files that turned out to be unreadable.
    """
    say = wording(lang)
    noise, complaints = noise_of(comparison)
    curves = {(row.arm, row.cell): validation_curves(row, complaints) for row in comparison.rows}
    heads = heads_sections(comparison, complaints, lang)
    declared = list(registration_sections(comparison, root, out, complaints, say))
    regimes, why = find_regimes(comparison, root, complaints), explain_differences(comparison, complaints)
    comparison = replace(comparison, unreadable=tuple(dict.fromkeys([*comparison.unreadable, *complaints])))
    sections = [
        verdict_section(comparison, say),
        *(
            []
            if comparison.study.is_screen
            else [Section("table", say("heading_table"), table=results(comparison, say, noise))]
        ),
        *content_section(comparison, regimes, say),
        *scaling_sections(comparison, root, lang),
        *_optional(comparison, curves, out, lang),
        *why_section(comparison, why, lang),
        *heads,
        *samples_section(comparison, say),
        *published_section([(row, item) for row in comparison.rows for item in row.evidence], out, say, lang),
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
    comparison: Comparison, curves: dict[tuple[str, Cell], SeedCurves], out: Path, lang: Language
) -> Iterator[Section]:
    say = wording(lang)
    yield from forest_section(comparison, lang)
    yield from statistics_section(comparison, say)
    # On a probe the lowest possible loss is mostly chance; the accuracy of guessing is the useful reference there.
    if guessed := format_guesses(comparison, say):
        yield Section("guess", say("heading_guess"), (say("guess_note", guessed=", ".join(guessed)),))
    elif floor := format_floors(comparison, say):
        yield Section("floor", say("heading_floor"), (say("floor_note", floor=", ".join(floor)),))
    yield from price_sections(comparison, say)
    yield from ablation_section(comparison, lang)
    if not comparison.study.is_screen:
        yield convergence_section(comparison, curves, lang)
        yield from equal_section(comparison, curves, lang)
    yield from tuning_section(comparison, out, lang)
    yield from cost_section(comparison, say)


def verdict_section(comparison: Comparison, say: Say) -> Section:
    """Answer the question of the study."""
    judged = () if comparison.study.is_screen else comparison.rows
    answers = tuple(answer_of(comparison, row, say) for row in judged if row.verdict)
    lead = (*_lead(comparison, say), *registration_lines(comparison, say))
    return Section("verdict", say("heading_verdict"), lead, answers=answers)


def _lead(comparison: Comparison, say: Say) -> Iterator[str]:
    study, measure = comparison.study, comparison.measure
    margin = format_margin(comparison.margin, measure, say)
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
        known = {*study.tuned_at, *study.checked_at}
        if study.tuned_at and (others := [size for size in study.sizes if size not in known]):
            yield say("stage_transferred", sizes=", ".join(others), tuned=", ".join(study.tuned_at))
        for size, found in groupby(misfits(comparison), key=lambda item: item.size):
            arms = ", ".join(say("misfit", arm=item.arm, used=item.used, best=item.best) for item in found)
            yield say("stage_misfit", size=size, arms=arms)
    else:
        yield say("stage_untuned")
    complete = sum(len(row.evidence) for row in comparison.rows)
    missing = [gap for gap in comparison.gaps if len(gap.cell) == len(study.axis_names)]
    yield say("progress", complete=complete, expected=complete + len(missing))
    if comparison.judged == "val":
        yield say("judged_on_validation")


def answer_of(comparison: Comparison, row: Row, say: Say) -> Answer:
    """Return the verdict on one arm in one word, and in a few sentences."""
    verdict = row.verdict or "undecided"
    return Answer(
        name_arm(row.arm, row.cell),
        verdict,
        format_verdict(row, say),
        say("join").join(_sentences(comparison, row, say)),
    )


def _sentences(comparison: Comparison, row: Row, say: Say) -> Iterator[str]:
    difference, measure, reference = row.difference, comparison.measure, comparison.study.reference
    if row.awaits and row.verdict == "undecided":
        yield say("verdict_awaits", pairs=row.awaits[0], seeds=row.awaits[1])
    if difference is None or row.judgement is None:
        yield say("verdict_no_pairs", reference=reference)
        return
    suffix = "" if measure.name == "perplexity" else "_accuracy"
    distance = {"difference": format_difference(difference.mean, measure, say), "reference": reference}
    if difference.interval is None or difference.bounds is None:
        alone = difference.pairs == 1
        yield say(f"distance{suffix}_one_seed" if alone else f"distance{suffix}_no_spread", **distance)
        yield say("verdict_one_seed" if alone else "verdict_no_spread", pairs=difference.pairs)
        return
    interval = format_interval(difference, measure, say)
    yield say(f"distance{suffix}", interval=interval, pairs=difference.pairs, **distance)
    margin = format_margin(comparison.margin, measure, say)
    if row.verdict == "met":
        yield say("verdict_met", margin=margin, bound=format_difference(difference.bounds.high, measure, say))
    elif row.verdict == "not met":
        crossed = format_crossed(row.judgement, comparison.margin, measure, say)
        yield say("verdict_not_met", margin=crossed, bound=format_difference(difference.bounds.low, measure, say))
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
