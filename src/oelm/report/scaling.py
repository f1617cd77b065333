"""The sections about model sizes: trends, predictions for held-back sizes and their outcomes, and the draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from oelm.analysis.compare import Comparison
from oelm.analysis.scaling import (
    Observation,
    PredictedRecord,
    PredictionRecord,
    ScalingQuantity,
    Series,
    find_outcome,
    read_prediction,
    series_of,
    spreads,
)
from oelm.analysis.statistics import percent
from oelm.report.figures import arm_places, draw_figure, figure_of_one, style_of
from oelm.report.render import Column, Line, Section, Table
from oelm.report.wording import Language, Say, format_percent, format_probability, format_share, wording

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def scaling_sections(comparison: Comparison, root: Path, lang: Language) -> Iterator[Section]:
    """Show the trends with size, the predictions, and the share of the spread that comes from the draw."""
    say = wording(lang)
    if found := series_of(comparison):
        prediction = read_prediction(root)
        drawn = [series for series in found if series.quantity in ("freezing", "content")]
        order = arm_places(comparison)
        picture = None
        if drawn:
            picture = draw_figure(
                "scaling", lambda voice: _draw(drawn, prediction, order, voice), say("scaling_caption"), lang
            )
        yield Section(
            "scaling", say("heading_scaling"), tuple(_paragraphs(comparison, found, prediction, say)),
            table=_table(found, prediction, say), figure=picture,
        )  # fmt: skip
    if split := spreads(comparison):
        headings = ("arm", "draws_share", "draws_deviation", "p_none", "draws_count")
        columns = tuple(Column("arm" if key == "arm" else key, say(key)) for key in headings)
        lines = tuple(
            Line((
                item.arm, format_share(item.share, say), f"{item.draw**0.5:.4f}", format_probability(item.p, say),
                f"{item.draws} x {item.seeds}",
            ))
            for item in split
        )  # fmt: skip
        yield Section("draws", say("heading_draws"), (say("draws_note"),), table=Table("draws", columns, lines))


def _paragraphs(
    comparison: Comparison, found: Sequence[Series], prediction: PredictionRecord | None, say: Say
) -> Iterator[str]:
    held = comparison.study.held_back
    yield say("scaling_note")
    if held and prediction is None:
        yield say("scaling_waits", sizes=", ".join(held))
    if prediction is None:
        return
    forms = dict.fromkeys(form.form for item in prediction.predicted for form in item.forms)
    yield say(
        "scaling_predicted", sizes=", ".join(prediction.held_back), written=prediction.written,
        runs=len(prediction.rests_on), forms=", ".join(forms),
    )  # fmt: skip
    early = _started_before(comparison, prediction)
    yield say("scaling_early" if early else "scaling_first", runs=early)
    outcomes = [(item, came) for item in prediction.predicted if (came := find_outcome(found, item))]
    if outcomes:
        inside = sum(item.low <= value <= item.high for item, (value, _) in outcomes)
        yield say("scaling_held", inside=inside, count=len(outcomes))


def _started_before(comparison: Comparison, prediction: PredictionRecord) -> int:
    written = datetime.fromisoformat(prediction.written)
    return sum(
        datetime.fromisoformat(item.record.started) < written
        for row in comparison.rows
        for item in row.evidence
        if comparison.study.size_of(item.spec) in prediction.held_back
    )


def _table(found: Sequence[Series], prediction: PredictionRecord | None, say: Say) -> Table:
    sizes: dict[str, Observation] = {point.size: point for series in found for point in series.points}
    ordered = sorted(sizes.values(), key=lambda point: (point.parameters, point.ratio))
    held = prediction.held_back if prediction else ()
    columns = (
        Column("words", say("scaling_quantity")),
        Column("arm", say("arm")),
        *(
            Column(
                "size",
                say("scaling_size", size=point.size, parameters=f"{point.parameters:,}", ratio=f"{point.ratio:.3g}"),
            )
            for point in ordered
            if point.size not in held
        ),
        *(column for size in held for column in _held_columns(size, say)),
    )
    predicted = {(item.quantity, item.arm, item.size): item for item in prediction.predicted} if prediction else {}
    lines = []
    for series in found:
        means = {point.size: point.mean for point in series.points}
        cells = [_format(series.quantity, means.get(point.size), say) for point in ordered if point.size not in held]
        for size in held:
            cells += _held_cells(found, predicted.get((series.quantity, series.arm, size)), say)
        lines.append(Line((say(f"scaling_{series.quantity}"), series.arm, *cells)))
    return Table("scaling", columns, tuple(lines))


def _held_columns(size: str, say: Say) -> tuple[Column, Column]:
    return Column("prediction", say("scaling_prediction", size=size)), Column("outcome", say("scaling_outcome"))


def _held_cells(found: Sequence[Series], item: PredictedRecord | None, say: Say) -> list[str]:
    if item is None:
        return [say("none"), say("none")]
    low, high = (_format(item.quantity, bound, say) for bound in (item.low, item.high))
    came = find_outcome(found, item)
    if came is None:
        return [say("scaling_between", low=low, high=high), say("none")]
    where = "inside" if item.low <= came[0] <= item.high else "outside"
    value = _format(item.quantity, came[0], say)
    return [say("scaling_between", low=low, high=high), say(f"scaling_{where}", value=value)]


def _format(quantity: ScalingQuantity, value: float | None, say: Say) -> str:
    if value is None:
        return say("none")
    if quantity == "loss":
        return f"{value:.4f}"
    return format_share(value, say) if quantity == "lost" else format_percent(value, say)


def _draw(found: Sequence[Series], prediction: PredictionRecord | None, order: Sequence[str], say: Say) -> Figure:
    picture, axes = figure_of_one(3.6)
    places_of = {point.size: point.parameters for series in found for point in series.points}
    for series in found:
        colour, style = style_of(order.index(series.arm))
        label = f"{series.arm}, {'C' if series.quantity == 'content' else 'd'}"
        numbers = [point.parameters for point in series.points]
        axes.plot(numbers, [percent(point.mean) for point in series.points], color=colour, linestyle=style, label=label)
        for point in series.points:
            values = [percent(value) for value in point.values]
            axes.plot([point.parameters] * len(values), values, ".", color=colour, markersize=4, alpha=0.6)
        for item in prediction.predicted if prediction else ():
            if (item.quantity, item.arm) == (series.quantity, series.arm) and item.size in places_of:
                bounds = [percent(item.low), percent(item.high)]
                axes.plot([places_of[item.size]] * 2, bounds, color=colour, linewidth=4, alpha=0.35)
    axes.set_xscale("log")
    axes.set_xlabel(say("scaling_axis"))
    axes.set_ylabel(say("scaling_difference"))
    axes.axhline(0, color="#808080", linewidth=0.8)
    axes.legend(frameon=False, fontsize=8)
    return picture
