"""The tables of a study, formatted for every medium, and the lists of its runs: evidence, gaps, unreadable files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from oelm.analysis.ablation import Ablation, AblationStep
from oelm.analysis.budgets import Convergence, Saving
from oelm.analysis.compare import Comparison, Gap, Ignored
from oelm.analysis.evidence import Cell, Evidence, Row, format_value
from oelm.analysis.power import Noise
from oelm.analysis.statistics import is_marked, non_inferiority
from oelm.analysis.tuning import Sensitivity
from oelm.record.folder import RECORD
from oelm.report.render import Column, Folded, Line, Remark, Section, Table
from oelm.report.wording import (
    DIRTY,
    ONE_SEED,
    OUTSIDE_HISTORY,
    UNKNOWN_TREE,
    Say,
    format_bounds,
    format_bytes,
    format_difference,
    format_figure,
    format_freedom,
    format_interval,
    format_margin,
    format_perplexity,
    format_place,
    format_probability,
    format_seconds,
    format_setting,
    format_share,
    format_verdict,
    mark_notes,
    marks,
    marks_of,
)
from oelm.spec.study import field_at

MOST_REMARKS = 60
"""Most remarks that a section lists. It gives the number of the others."""


def name_arm(arm: str, cell: Cell) -> str:
    """Return the name of an arm with its place on the axes."""
    return ", ".join(filter(None, [arm, format_place(cell)]))


def axis_columns(comparison: Comparison) -> tuple[Column, ...]:
    """Return the first columns of a table: the axes of the study."""
    return tuple(Column("axis", axis) for axis in comparison.study.axis_names)


def link_record(directory: Path, out: Path) -> str:
    """Return the link from the report to the record of a run."""
    return quote(Path(os.path.relpath(directory / RECORD, out)).as_posix())


def evidence_section(comparison: Comparison, out: Path, say: Say) -> Iterator[Section]:
    """List the source of every number in the table: record, spec, commit and command."""
    older = {run.fingerprint for _, run in comparison.registration.older} if comparison.registration else set()
    folds = [
        fold for number, row in enumerate(comparison.rows, 1) for fold in _provenances(row, number, older, out, say)
    ]  # fmt: skip
    if folds:
        yield Section("evidence", say("heading_evidence"), (say("evidence_note"),), folds=tuple(folds))


def _provenances(row: Row, number: int, older: set[str], out: Path, say: Say) -> Iterator[Folded]:
    for place, (item, cost) in enumerate(zip(row.evidence, row.costs, strict=True)):
        figure = format_figure(row.measure.figure(cost), row.measure, say) + marks_of(item.record)
        heading = {"title": name_arm(row.arm, row.cell), "title_anchor": f"evidence-{number}"} if place == 0 else {}
        summary = f"{say('seed')} {item.spec.seed}: {say(row.measure.name)} {figure}"
        summary += f" ({say('older_run')})" if item.record.fingerprint in older else ""
        yield certificate(item, summary, out, say, **heading)


def certificate(item: Evidence, summary: str, out: Path, say: Say, **heading: str) -> Folded:
    """Return the provenance of a run's number."""
    environment, href = item.record.environment, link_record(item.directory, out)
    return Folded(
        summary=summary,
        text=item.spec.model_dump_json(indent=1),
        facts=(
            (say("record"), item.record.fingerprint, href),
            (say("commit"), _commit(item, say), None),
            (say("command"), environment.command, None),
            (say("machine"), f"{environment.device}, torch {environment.torch}", None),
        ),
        anchor=f"run-{item.record.fingerprint}",
        href=href,
        **heading,
    )


def _commit(item: Evidence, say: Say) -> str:
    environment = item.record.environment
    if environment.commit is None:
        return say("no_commit")
    words = {DIRTY: "uncommitted", UNKNOWN_TREE: "tree_unknown", OUTSIDE_HISTORY: "not_in_history"}
    remarks = [f"{mark} {say(words[mark])}" for mark in marks_of(item.record) if mark in words]
    return " ".join([environment.commit[:12], *remarks])


def remark_sections(comparison: Comparison, root: Path, out: Path, say: Say) -> Iterator[Section]:
    """List the runs without a figure, the records of other studies, and the unreadable files."""
    gaps = tuple(gap_remark(gap, out, say) for gap in comparison.gaps)
    ignored = tuple(_ignored_remark(item, root, out, say) for item in comparison.ignored)
    for anchor, remarks in {"gaps": gaps, "ignored": ignored}.items():
        if remarks:
            more = len(remarks) - MOST_REMARKS
            words = (say("and_more", count=more),) if more > 0 else ()
            yield Section(anchor, say(f"heading_{anchor}"), words, remarks=remarks[:MOST_REMARKS])
    if comparison.unreadable:
        yield unreadable_section(comparison.unreadable, say)


def unreadable_section(complaints: tuple[str, ...], say: Say) -> Section:
    """List the files that could not be read."""
    remarks = tuple(Remark(say("file"), line) for line in dict.fromkeys(complaints))
    return Section("unreadable", say("heading_unreadable"), remarks=remarks)


def gap_remark(gap: Gap, out: Path, say: Say) -> Remark:
    """Say why a run has no figure."""
    record = gap.evidence.record if gap.evidence else None
    unsaid = "not_finite" if gap.state == "diverged" else "no_reason"
    return Remark(
        subject=say("samples_of", arm=name_arm(gap.arm, gap.cell), seed=gap.seed),
        text=say(
            f"gap_{gap.state}",
            step=record.step if record else 0,
            error=(record.last_words if record else "") or say(unsaid),
        ),
        href=link_record(gap.evidence.directory, out) if gap.evidence else None,
    )


def _ignored_remark(item: Ignored, root: Path, out: Path, say: Say) -> Remark:
    differs = "; ".join(
        say("ignored_differs", field=field, found=format_value(found), meant=format_value(meant))
        for field, (found, meant) in item.differs.items()
    )
    return Remark(
        subject=os.path.relpath(item.directory, root),
        text=say("ignored_twin", other=os.path.relpath(item.twin, root)) if item.twin else differs,
        href=link_record(item.directory, out),
    )


def results(comparison: Comparison, say: Say, noise: Noise | None = None) -> Table:
    """Format a comparison: one line per arm and place on the axes."""
    study, measure = comparison.study, comparison.measure
    margin = format_margin(comparison.margin, measure, say)
    columns = [
        *axis_columns(comparison),
        Column("arm", say("arm")),
        *(Column("tuned", field) for field in study.tuned),
        Column("seeds", say("seeds")),
        Column("figure", say(f"{measure.name}_{comparison.judged}")),
        Column("difference", say("difference", reference=study.reference)),
        Column("interval", say("interval")),
        *([Column("bound", say("one_sided"))] if _is_decided_by_bound(comparison) else []),
        *([Column("noise", say("noise"))] if noise else []),
        Column("verdict", say("verdict", margin=margin)),
    ]
    lines = tuple(
        Line(
            tuple(_cells(comparison, row, noise or {}, say)),
            tone=row.verdict,
            href=f"#evidence-{number}" if row.evidence else None,
        )
        for number, row in enumerate(comparison.rows, 1)
    )
    notes = tuple(_notes(comparison, say, noise or {}))
    return Table("results", tuple(columns), lines, notes, say("left_out", columns="{}"))


def _cells(comparison: Comparison, row: Row, noise: Noise, say: Say) -> Iterable[str]:
    measure, none = comparison.measure, say("none")
    yield from (value for _, value in row.cell)
    yield row.arm
    for field in comparison.study.tuned:
        yield format_setting(field_at(row.evidence[0].spec, field)) if row.evidence else none
    yield str(len(row.evidence))
    yield format_figure(row.figure, measure, say) + marks(row)
    yield format_difference(row.difference.mean, measure, say) if row.difference else none
    yield format_interval(row.difference, measure, say)
    if _is_decided_by_bound(comparison):
        bound = _deciding_bound(row)
        yield none if bound is None else format_difference(bound, measure, say)
    if noise:
        found = noise.get((row.arm, row.cell))
        yield format_bounds(found.interval if found else None, measure, say)
    yield format_verdict(row, say)


def _is_decided_by_bound(comparison: Comparison) -> bool:
    return any(_deciding_bound(row) is not None for row in comparison.rows)


def _deciding_bound(row: Row) -> float | None:
    """Return the one-sided bound behind a verdict that the two-sided interval, on both sides of the margin, hides."""
    found = row.difference
    if found is None or found.bounds is None or row.verdict != found.verdict or row.verdict == "undecided":
        return None
    if non_inferiority(found.interval, found.margin) == found.verdict:
        return None
    return found.bounds.high if found.verdict == "met" else found.bounds.low


def _notes(comparison: Comparison, say: Say, noise: Noise) -> Iterable[str]:
    yield say(f"table_note_{comparison.measure.name}")
    for over_seeds, key in {False: "noise_note", True: "noise_nested"}.items():
        texts = {found.texts for found in noise.values() if found.over_seeds == over_seeds}
        if texts:
            yield say(key, texts=f"{min(texts):,}")
    yield from mark_notes("".join(marks(row) for row in comparison.rows), say)
    for field, values in comparison.mixed.items():
        yield say("mixed", field=field, values=", ".join(values))


def statistics_table(comparison: Comparison, say: Say) -> Table:
    """Format the basis of the verdicts: corrected p-values, degrees of freedom, the plain interval, missing seeds."""
    skewed = any(row.difference and is_marked(row.difference.skewness) for row in comparison.rows)
    columns = (
        *axis_columns(comparison),
        Column("arm", say("arm")),
        Column("pairs", say("pairs")),
        Column("none", say("p_none")),
        Column("margin", say("p_margin")),
        Column("freedom", say("freedom")),
        Column("plain", say("plain_interval")),
        *([Column("robust", say("robust_interval"))] if skewed else []),
        Column("more", say("more_seeds")),
    )
    lines = []
    for number, row in enumerate(comparison.rows, 1):
        if row.difference is None:
            continue
        more, marked = row.more_seeds, is_marked(row.difference.skewness)
        robust = row.difference.robust if marked else None
        lines.append(
            Line(
                (
                    *(value for _, value in row.cell),
                    row.arm,
                    str(row.difference.pairs),
                    format_probability(row.difference.p_none, say),
                    format_probability(row.adjusted, say),
                    format_freedom(row.difference.freedom, say),
                    format_bounds(row.difference.plain, comparison.measure, say),
                    *([format_bounds(robust, comparison.measure, say)] if skewed else []),
                    say("none") if more is None else str(more),
                ),
                href=f"#evidence-{number}",
            )
        )
    family = comparison.study.family
    of_family = [] if family is None else [say("statistics_family", family=", ".join(family))]
    of_skew = [say("statistics_skewed")] if skewed else []
    return Table("statistics", columns, tuple(lines), (say("statistics_note"), *of_skew, *of_family))


def ablation_table(comparison: Comparison, found: Sequence[Ablation], say: Say) -> Table:
    """Format the steps of the ablation, each with its interval."""
    columns = (
        *axis_columns(comparison),
        Column("name", say("step")),
        Column("words", say("step_from")),
        Column("words", say("step_to")),
        Column("difference", say("step_difference")),
        Column("interval", say("interval")),
    )
    lines = [
        _step(comparison, item, step, say)
        for item in found
        for step in (*item.steps, *([item.whole] if len(item.steps) > 1 else []))
    ]
    return Table("ablation", columns, tuple(lines))


def _step(comparison: Comparison, item: Ablation, step: AblationStep, say: Say) -> Line:
    difference, measure = step.difference, comparison.measure
    single = ONE_SEED if difference and difference.pairs == 1 else ""
    return Line((
        *(value for _, value in item.cell),
        say(f"step_{step.name}"),
        step.start,
        step.end,
        format_difference(difference.mean, measure, say) + single if difference else say("none"),
        format_interval(difference, measure, say),
    ))  # fmt: skip


def convergence_table(comparison: Comparison, found: Sequence[Convergence], say: Say) -> Table:
    """Format how fast the arms learn."""
    columns = (
        *axis_columns(comparison),
        Column("arm", say("arm")),
        Column("area", say("area")),
        Column("interval", say("area_interval")),
        Column("reached", say("reached")),
        Column("steps", say("steps_to_reach")),
        Column("seconds", say("seconds_to_reach")),
    )
    lines = []
    for item in found:
        interval = item.area_interval if item.arm != comparison.study.reference else None
        bounds = (
            say("range_plain", low=f"{interval.low:+.4f}", high=f"{interval.high:+.4f}") if interval else say("none")
        )
        lines.append(
            Line((
                *(value for _, value in item.cell),
                item.arm,
                say("none") if item.area is None else f"{item.area:.4f}",
                bounds,
                say("of", part=len(item.reached), whole=len(item.reached) + item.missed),
                say("none") if item.steps is None else f"{item.steps:,.0f}",
                format_seconds(item.seconds, say),
            ))
        )  # fmt: skip
    return Table("convergence", columns, tuple(lines), (say("convergence_note"),))


def tuning_table(comparison: Comparison, found: Sequence[Sensitivity], out: Path, say: Say) -> Table:
    """Format the scores of tuning: a line per arm, a column per value of the grid, each score with a link."""
    values = list(dict.fromkeys(point.value for item in found for point in item.points))
    values = sorted(values) if all(isinstance(value, int | float) for value in values) else values
    columns = (
        *axis_columns(comparison),
        Column("arm", say("arm")),
        *(Column("score", format_setting(value)) for value in values),
        Column("chosen", say("chosen")),
        Column("penalty", say("penalty")),
        Column("difference", say("difference", reference=comparison.study.reference)),
        Column("qk", say("qk_trained")),
    )
    references = {item.cell: item.best for item in found if item.arm == comparison.study.reference}
    lines = []
    for item in found:
        means = {point.value: "∞" if point.diverged else f"{point.mean:.4f}" for point in item.points}
        born = {point.value: link_record(point.directories[0], out) for point in item.points if point.directories}
        scores = len(item.cell) + 1
        chosen = say("none") if item.chosen is None else format_setting(item.chosen)
        penalty = item.penalty
        lines.append(
            Line((
                *(value for _, value in item.cell),
                item.arm,
                *(means.get(value, say("none")) for value in values),
                chosen + ("*" if item.at_edge else ""),
                say("none") if penalty is None else ("∞" if penalty == float("inf") else f"{penalty:+.4f}"),
                _at_best(item, references.get(item.cell), comparison, say),
                format_share(item.qk, say),
            ), links={scores + place: born[value] for place, value in enumerate(values) if value in born})
        )  # fmt: skip
    notes = [say("tuning_note", field=found[0].field if found else "")]
    notes += [say("edge_note")] if any(item.at_edge for item in found) else []
    return Table("tuning", columns, tuple(lines), tuple(notes), say("left_out", columns="{}"))


def _at_best(item: Sensitivity, reference: float | None, comparison: Comparison, say: Say) -> str:
    """Format the difference on validation between the best settings of an arm and of the reference."""
    if item.best is None or reference is None or item.arm == comparison.study.reference:
        return say("none")
    measure = comparison.measure
    return format_difference(measure.of_scores(item.best - reference), measure, say)


def cost_table(comparison: Comparison, found: Sequence[Saving], say: Say) -> Table:
    """Format the costs of the arms and the savings that are possible."""
    by_place = {(item.arm, item.cell): item for item in found}
    columns = (
        *axis_columns(comparison),
        Column("arm", say("arm")),
        Column("trained", say("trained")),
        Column("frozen", say("frozen")),
        Column("qk", say("qk_trained")),
        Column("optimizer", say("optimizer_bytes")),
        Column("memory", say("peak_memory")),
        Column("speed", say("speed")),
        Column("bound", say("flop_bound")),
        Column("time", say("time_saved")),
    )
    lines = tuple(
        Line(tuple(_cost_cells(row, by_place.get((row.arm, row.cell)), say)), href=f"#evidence-{number}")
        for number, row in enumerate(comparison.rows, 1)
        if row.evidence
    )
    notes = [say("cost_note"), *(say("unexplained", arm=item.arm) for item in found if item.unexplained)]
    return Table("cost", columns, lines, tuple(notes))


def _cost_cells(row: Row, saving: Saving | None, say: Say) -> Iterable[str]:
    none, record = say("none"), row.evidence[0].record
    yield from (value for _, value in row.cell)
    yield row.arm
    # With a schedule, the counts at the start do not describe the whole run.
    counts = None if record.spec.method.schedule.moves else row.parameters
    yield f"{counts.trainable:,}" if counts else none
    yield f"{counts.frozen:,}" if counts else none
    yield format_share(saving.qk, say) if saving else none
    yield format_bytes(record.cost.optimizer_bytes if record.cost and counts else None, say)
    yield format_bytes(record.result.peak_memory_bytes if record.result else None, say)
    yield f"{row.tokens_per_second:,.0f}" if row.tokens_per_second else none
    yield format_share(saving.flops, say) if saving else none
    if saving is None or saving.time is None:
        yield none
        return
    interval = saving.time_interval
    bounds = f" ({100 * interval.low:.1f} … {100 * interval.high:.1f})" if interval else ONE_SEED
    yield format_share(saving.time, say) + bounds + (" !" if saving.unexplained else "")


def format_floors(comparison: Comparison, say: Say) -> list[str]:
    """Return the lowest possible perplexities, formatted."""
    return list(dict.fromkeys(format_perplexity(row.floor, say) for row in comparison.rows if row.floor))


def format_guesses(comparison: Comparison, say: Say) -> list[str]:
    """Return the accuracies of guessing, formatted, from the records that have them."""
    data = (item.record.data for row in comparison.rows for item in row.evidence)
    return list(
        dict.fromkeys(f"{found.corpus} {format_share(found.guess, say)}" for found in data if found and found.guess)
    )
