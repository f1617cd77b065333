"""The tables of a study: formatted once, set in every medium."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from oelm.analysis.ablation import Ablation, Step
from oelm.analysis.bootstrap import Noise
from oelm.analysis.compare import Comparison
from oelm.analysis.convergence import Convergence
from oelm.analysis.moderation import is_marked
from oelm.analysis.rows import Row
from oelm.analysis.savings import Saving
from oelm.analysis.tuning import Sensitivity
from oelm.report.certificates import link
from oelm.report.document import Column, Line, Table
from oelm.report.numbers import (
    ONE_SEED,
    mark_notes,
    marks,
    shown_bounds,
    shown_bytes,
    shown_difference,
    shown_figure,
    shown_freedom,
    shown_interval,
    shown_margin,
    shown_perplexity,
    shown_probability,
    shown_seconds,
    shown_setting,
    shown_share,
    shown_verdict,
)
from oelm.report.wording import Say
from oelm.study import at


def results(comparison: Comparison, say: Say, noise: Noise | None = None) -> Table:
    """Format a comparison: one line per arm and place on the axes."""
    study, measure = comparison.study, comparison.measure
    margin = shown_margin(comparison.margin, measure, say)
    columns = [
        *(Column("axis", axis) for axis in study.axis_names),
        Column("arm", say("arm")),
        *(Column("tuned", field) for field in study.tuned),
        Column("seeds", say("seeds")),
        Column("figure", say(f"{measure.name}_{comparison.judged}")),
        Column("difference", say("difference", reference=study.reference)),
        Column("interval", say("interval")),
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
        yield shown_setting(at(row.evidence[0].spec, field)) if row.evidence else none
    yield str(len(row.evidence))
    yield shown_figure(row.figure, measure, say) + marks(row)
    yield shown_difference(row.difference.mean, measure, say) if row.difference else none
    yield shown_interval(row.difference, measure, say)
    if noise:
        found = noise.get((row.arm, row.cell))
        yield shown_bounds(found.interval if found else None, measure, say)
    yield shown_verdict(row, say)


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
    """Format what the verdict rests on: corrected probabilities, degrees of freedom, the plain interval, more seeds."""
    skewed = any(row.difference and is_marked(row.difference.skewness) for row in comparison.rows)
    columns = (
        *(Column("axis", axis) for axis in comparison.study.axis_names),
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
                    shown_probability(row.difference.p_none, say),
                    shown_probability(row.adjusted, say),
                    shown_freedom(row.difference.freedom, say),
                    shown_bounds(row.difference.plain, comparison.measure, say),
                    *([shown_bounds(robust, comparison.measure, say)] if skewed else []),
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
        *(Column("axis", axis) for axis in comparison.study.axis_names),
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


def _step(comparison: Comparison, item: Ablation, step: Step, say: Say) -> Line:
    difference, measure = step.difference, comparison.measure
    single = ONE_SEED if difference and difference.pairs == 1 else ""
    return Line((
        *(value for _, value in item.cell),
        say(f"step_{step.name}"),
        step.start,
        step.end,
        shown_difference(difference.mean, measure, say) + single if difference else say("none"),
        shown_interval(difference, measure, say),
    ))  # fmt: skip


def convergence_table(comparison: Comparison, found: Sequence[Convergence], say: Say) -> Table:
    """Format how fast the arms learn."""
    columns = (
        *(Column("axis", axis) for axis in comparison.study.axis_names),
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
                shown_seconds(item.seconds, say),
            ))
        )  # fmt: skip
    return Table("convergence", columns, tuple(lines), (say("convergence_note"),))


def tuning_table(comparison: Comparison, found: Sequence[Sensitivity], out: Path, say: Say) -> Table:
    """Format what tuning saw: a line per arm, a column per value of the grid, each score leading to its record."""
    values = list(dict.fromkeys(point.value for item in found for point in item.points))
    values = sorted(values) if all(isinstance(value, int | float) for value in values) else values
    columns = (
        *(Column("axis", axis) for axis in comparison.study.axis_names),
        Column("arm", say("arm")),
        *(Column("score", shown_setting(value)) for value in values),
        Column("chosen", say("chosen")),
        Column("penalty", say("penalty")),
        Column("difference", say("difference", reference=comparison.study.reference)),
        Column("qk", say("qk_trained")),
    )
    references = {item.cell: item.best for item in found if item.arm == comparison.study.reference}
    lines = []
    for item in found:
        means = {point.value: "∞" if point.diverged else f"{point.mean:.4f}" for point in item.points}
        born = {point.value: link(point.directories[0], out) for point in item.points if point.directories}
        scores = len(item.cell) + 1
        chosen = say("none") if item.chosen is None else shown_setting(item.chosen)
        penalty = item.penalty
        lines.append(
            Line((
                *(value for _, value in item.cell),
                item.arm,
                *(means.get(value, say("none")) for value in values),
                chosen + ("*" if item.at_edge else ""),
                say("none") if penalty is None else ("∞" if penalty == float("inf") else f"{penalty:+.4f}"),
                _at_best(item, references.get(item.cell), comparison, say),
                shown_share(item.qk, say),
            ), links={scores + place: born[value] for place, value in enumerate(values) if value in born})
        )  # fmt: skip
    notes = [say("tuning_note", field=found[0].field if found else "")]
    notes += [say("edge_note")] if any(item.at_edge for item in found) else []
    return Table("tuning", columns, tuple(lines), tuple(notes), say("left_out", columns="{}"))


def _at_best(item: Sensitivity, reference: float | None, comparison: Comparison, say: Say) -> str:
    """Format how far an arm's best setting is from the reference's, both as validation saw them."""
    if item.best is None or reference is None or item.arm == comparison.study.reference:
        return say("none")
    measure = comparison.measure
    return shown_difference(measure.of_scores(item.best - reference), measure, say)


def cost_table(comparison: Comparison, found: Sequence[Saving], say: Say) -> Table:
    """Format what the arms need, beside what they can save."""
    by_place = {(item.arm, item.cell): item for item in found}
    columns = (
        *(Column("axis", axis) for axis in comparison.study.axis_names),
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
    # What a schedule begins with says little of the whole run.
    counts = None if record.spec.method.schedule.moves else row.parameters
    yield f"{counts.trainable:,}" if counts else none
    yield f"{counts.frozen:,}" if counts else none
    yield shown_share(saving.qk, say) if saving else none
    yield shown_bytes(record.cost.optimizer_bytes if record.cost and counts else None, say)
    yield shown_bytes(record.result.peak_memory_bytes if record.result else None, say)
    yield f"{row.tokens_per_second:,.0f}" if row.tokens_per_second else none
    yield shown_share(saving.flops, say) if saving else none
    if saving is None or saving.time is None:
        yield none
        return
    interval = saving.time_interval
    bounds = f" ({100 * interval.low:.1f} … {100 * interval.high:.1f})" if interval else ONE_SEED
    yield shown_share(saving.time, say) + bounds + (" !" if saving.unexplained else "")


def floors(comparison: Comparison, say: Say) -> list[str]:
    """Return the perplexities that no model can beat, as written."""
    return list(dict.fromkeys(shown_perplexity(row.floor, say) for row in comparison.rows if row.floor))


def guesses(comparison: Comparison, say: Say) -> list[str]:
    """Return, as written, the shares of right answers that need no finding, where records tell them."""
    data = (item.record.data for row in comparison.rows for item in row.evidence)
    return list(
        dict.fromkeys(f"{found.corpus} {shown_share(found.guess, say)}" for found in data if found and found.guess)
    )
