"""The sections of a report that follow the table of arms: the value of content, equal budgets, and model sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from oelm.analysis.budgets import (
    AsManyParameters,
    AtEqualBudget,
    Budget,
    Cheapest,
    Polyline,
    SameRepair,
    SeedCurves,
    Side,
    at_equal_budgets,
    cheapest,
    mean_line,
    same_repairs,
    with_as_many_parameters,
)
from oelm.analysis.compare import Comparison
from oelm.analysis.content import Kept, RatioSet
from oelm.analysis.evidence import Cell
from oelm.analysis.regime import Criterion, Regime, Why
from oelm.analysis.scaling import (
    FAR_SIZE,
    FormRecord,
    Observation,
    PredictedRecord,
    PredictionRecord,
    ScalingQuantity,
    Series,
    extrapolate,
    find_outcome,
    read_prediction,
    series_of,
    spreads,
)
from oelm.analysis.statistics import Difference, percent
from oelm.report.figures import (
    Profile,
    arm_places,
    draw_figure,
    draw_position_profiles,
    figure_of_one,
    name_the_lines,
    style_of,
)
from oelm.report.render import Column, Figure, Line, Section, Table
from oelm.report.tables import axis_columns, name_arm
from oelm.report.wording import (
    ONE_SEED,
    Language,
    Say,
    format_difference,
    format_interval,
    format_margin,
    format_percent,
    format_place,
    format_probability,
    format_share,
    mark_notes,
    wording,
)
from oelm.spec.run import block_parameters, named_size
from oelm.spec.study import missing_arms

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


# The value of content: the first lines, the table of content kept, and the tokens on which arms differ.

Regimes = Mapping[Cell, Regime]


def regime_lines(comparison: Comparison, regimes: Regimes, say: Say) -> list[str]:
    """Say whether the regime of a language study is representative, and why."""
    if comparison.measure.name != "perplexity" or not comparison.study.is_language:
        return []
    by_sentence: dict[str, list[Cell]] = {}
    for cell in dict.fromkeys([*comparison.cells, *regimes]):
        sentence = _explain_regime(comparison, regimes.get(cell), say)
        by_sentence.setdefault(sentence, []).append(cell)
    if len(by_sentence) == 1:
        return list(by_sentence)
    return [
        say("regime_at", place=" / ".join(map(format_place, cells)), sentence=sentence)
        for sentence, cells in by_sentence.items()
    ]


def _explain_regime(comparison: Comparison, regime: Regime | None, say: Say) -> str:
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
    if worth.is_met is False and lower is not None and regime.same_text:
        behind = regime.worth.value.mean if regime.against_reference is None else regime.against_reference
        if behind <= regime.margin:
            yield say("regime_without_content", position=regime.worth.arms.position)
        yield say("regime_margin", half=_percent(max(0.0, lower / 2), say))
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
        *axis_columns(comparison),
        Column("arm", say("arm")),
        Column("words", say("content_role")),
        Column("difference", say("content_cost")),
        Column("interval", say("interval")),
        Column("kept", say("content_kept")),
        Column("interval", say("interval")),
    )
    lines = [line for regime in regimes for line in _content_lines(regime, say)]
    borrowed = {regime.study for regime in regimes} - {comparison.study.name}
    nearly = {regime.worth.arms.position for regime in regimes if not regime.worth.arms.is_exact}
    notes = [
        say("content_note"),
        *(say("content_borrowed", study=study) for study in sorted(borrowed)),
        *(say("content_nearly", position=position) for position in sorted(nearly)),
        *mark_notes("".join(cell for line in lines for cell in line.cells), say),
    ]
    return Table("content", columns, tuple(lines), tuple(notes))


def _content_lines(regime: Regime, say: Say) -> Iterator[Line]:
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
        *axis_columns(comparison),
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


# Budgets: the cheapest arm within each margin, repairs on both sides, equal time and FLOPs.


def price_sections(comparison: Comparison, say: Say) -> Iterator[Section]:
    """Show the cheapest arm within each margin, and the effect of freezing if both sides have the repair."""
    if found := cheapest(comparison):
        yield Section("price", say("heading_price"), (say("price_note"),), table=_price_table(comparison, found, say))
    if pairs := same_repairs(comparison):
        table = _repair_table(comparison, pairs, say)
        yield Section("same-repair", say("heading_same_repair"), (say("same_repair_note"),), table=table)


def price_of_all(comparisons: Sequence[Comparison], say: Say) -> Iterator[Section]:
    """Show the cheapest arm within each margin for every study."""
    found = [(comparison, item) for comparison in comparisons for item in cheapest(comparison)]
    if found:
        columns = (Column("name", say("study")), *_price_columns(say))
        lines = tuple(
            Line((name_arm(comparison.study.name, item.cell), *_price_fields(comparison, item, say)))
            for comparison, item in found
        )
        yield Section("price", say("heading_price"), (say("price_note"),), table=Table("price", columns, lines))


def _price_table(comparison: Comparison, found: Sequence[Cheapest], say: Say) -> Table:
    lines = tuple(Line((*_values(item.cell), *_price_fields(comparison, item, say))) for item in found)
    return Table("price", (*axis_columns(comparison), *_price_columns(say)), lines)


def _price_columns(say: Say) -> tuple[Column, ...]:
    return (
        Column("margin", say("forest_margin")),
        Column("words", say("price_kind")),
        Column("arm", say("price_arm")),
        Column("qk", say("qk_trained")),
        Column("difference", say("step_difference")),
        Column("interval", say("interval")),
    )


def _price_fields(comparison: Comparison, item: Cheapest, say: Say) -> tuple[str, ...]:
    return (
        format_margin(item.margin, comparison.measure, say),
        say(f"price_{item.kind}"),
        item.row.arm if item.row else say("price_none"),
        format_share(item.share, say),
        *format_estimate(comparison, item.row.difference if item.row else None, say),
    )


def _repair_table(comparison: Comparison, pairs: Sequence[SameRepair], say: Say) -> Table:
    columns = (
        *axis_columns(comparison),
        Column("arm", say("arm")),
        Column("words", say("same_repair_control")),
        Column("difference", say("same_repair_repair", reference=comparison.study.reference)),
        Column("interval", say("interval")),
        Column("freezing", say("same_repair_freezing")),
        Column("bounds", say("interval")),
    )
    lines = tuple(
        Line((
            *_values(item.cell),
            item.frozen,
            item.control,
            *format_estimate(comparison, item.repair, say),
            *format_estimate(comparison, item.freezing, say),
        ))
        for item in pairs
    )  # fmt: skip
    return Table("same-repair", columns, lines)


def _values(cell: Cell) -> tuple[str, ...]:
    return tuple(value for _, value in cell)


def format_estimate(comparison: Comparison, difference: Difference | None, say: Say) -> tuple[str, str]:
    """Format a difference and its interval."""
    mean = format_difference(difference.mean, comparison.measure, say) if difference else say("none")
    return mean, format_interval(difference, comparison.measure, say)


BUDGET_WIDTH = 5.8
BUDGET_WORDS: dict[Budget, str] = {
    "tokens": "equal_tokens", "processor": "equal_processor", "seconds": "equal_seconds", "flops": "equal_flops",
}  # fmt: skip
AXES: dict[Budget, str] = {
    "processor": "equal_axis_processor", "seconds": "equal_axis_seconds", "flops": "equal_axis_flops",
}  # fmt: skip
CUT: dict[Side, str] = {"arm": "equal_cut_arm", "reference": "equal_cut_reference"}
BudgetPanel = tuple[str, Budget, list[tuple[str, int, Polyline]]]
"""Title, budget, and the curves of the arms with their places."""


def equal_section(
    comparison: Comparison, curves: Mapping[tuple[str, Cell], SeedCurves], lang: Language
) -> Iterator[Section]:
    """Compare at equal tokens, time and FLOPs, and show where the curves cross."""
    found, alike = at_equal_budgets(comparison, curves), with_as_many_parameters(comparison)
    if not any(item.cut for item in found) and not alike:
        return  # every step costs the same, so equal tokens are an equal budget
    say = wording(lang)
    yield Section(
        "equal",
        say("heading_equal"),
        (say("equal_note"),),
        table=_equal_table(comparison, found, alike, say),
        figure=_equal_figure(comparison, curves, found, lang),
    )


def _equal_table(
    comparison: Comparison, found: Sequence[AtEqualBudget], alike: Sequence[AsManyParameters], say: Say
) -> Table:
    keys = ("arm", "equal_what", "equal_share", "equal_difference", "interval", "equal_cut", "equal_crossing")
    lines = [
        Line((
            name_arm(item.arm, item.cell),
            say(BUDGET_WORDS[item.budget]),
            say("percent", value=f"{100 * item.share:.0f}"),
            *format_estimate(comparison, item.difference, say),
            say("none") if item.cut is None else say(CUT[item.cut]),
            say("none") if item.crossing is None else say("percent", value=f"{100 * item.crossing:.0f}"),
        ))
        for item in found
    ]  # fmt: skip
    lines += [
        Line((
            name_arm(item.arm, item.cell), say("equal_parameters", control=item.control), say("none"),
            *format_estimate(comparison, item.difference, say), say("none"), say("none"),
        ))
        for item in alike
    ]  # fmt: skip
    columns = tuple(Column("words" if key == "equal_what" else key, say(key)) for key in keys)
    return Table("equal", columns, tuple(lines))


def _equal_figure(
    comparison: Comparison,
    curves: Mapping[tuple[str, Cell], SeedCurves],
    found: Sequence[AtEqualBudget],
    lang: Language,
) -> Figure | None:
    names = [comparison.study.reference, *(arm.name for arm in comparison.study.arms)]
    order = list(dict.fromkeys(names))
    budgets = list(dict.fromkeys(item.budget for item in found if item.budget != "tokens"))
    panels: list[BudgetPanel] = []
    for cell in comparison.cells:
        for budget in budgets:
            rows = [row for row in comparison.rows if row.cell == cell]
            lines = [(row.arm, order.index(row.arm), mean_line(row, curves.get((row.arm, cell), {}), budget))
                     for row in rows]  # fmt: skip
            if present := [line for line in lines if len(line[2]) > 1]:
                panels.append((format_place(cell), budget, present))
    if not panels:
        return None
    caption = wording(lang)("equal_caption")
    return draw_figure("equal", lambda voice: _draw_budgets(panels, len(budgets), voice), caption, lang)


def _draw_budgets(panels: Sequence[BudgetPanel], columns: int, say: Say) -> Drawing:
    from matplotlib.figure import Figure as Drawing

    rows = -(-len(panels) // columns)
    figure = Drawing(figsize=(BUDGET_WIDTH, 3.3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row")
    for axes, (title, budget, lines) in zip(grid.flat, panels, strict=False):
        for arm, place, line in lines:
            colour, style = style_of(place)
            label = f" {arm}" if arm.startswith("_") else arm  # matplotlib hides labels that start with an underscore
            axes.plot(*zip(*line, strict=True), color=colour, linestyle=style, linewidth=1.6, label=label)
        ends = sorted(loss for _, _, line in lines for x, loss in line if x >= line[-1][0] / 5)
        axes.set_ylim(ends[0] - 0.05 * (ends[-1] - ends[0]), ends[-1])
        axes.set_xlabel(say(AXES[budget]))
        axes.grid(alpha=0.25, linewidth=0.6, color="#808080")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(title, fontsize=10, loc="left")
    grid[0, 0].set_ylabel(say("plot_loss"))
    name_the_lines(figure)
    return figure


# Model sizes: trends, predictions for held-back sizes and their outcomes, and the draw.


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
                "scaling", lambda voice: _draw_scaling(drawn, prediction, order, voice), say("scaling_caption"), lang
            )
        yield Section(
            "scaling", say("heading_scaling"), tuple(_scaling_paragraphs(comparison, found, prediction, say)),
            table=_scaling_table(found, prediction, say), figure=picture,
        )  # fmt: skip
        if far := extrapolate(found):
            yield _extrapolation_section(found, far, say)
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


def _scaling_paragraphs(
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
    outcomes = [(item, came) for item in prediction.predicted if (came := find_outcome(found, item)) is not None]
    if outcomes:
        inside = sum(item.low <= value <= item.high for item, value in outcomes)
        yield say("scaling_held", inside=inside, count=len(outcomes))


def _started_before(comparison: Comparison, prediction: PredictionRecord) -> int:
    written = datetime.fromisoformat(prediction.written)
    return sum(
        datetime.fromisoformat(item.record.started) < written
        for row in comparison.rows
        for item in row.evidence
        if comparison.study.size_of(item.spec) in prediction.held_back
    )


def _scaling_table(found: Sequence[Series], prediction: PredictionRecord | None, say: Say) -> Table:
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
        cells = [
            _format_trend(series.quantity, means.get(point.size), say) for point in ordered if point.size not in held
        ]
        for size in held:
            cells += _held_cells(found, predicted.get((series.quantity, series.arm, size)), say)
        lines.append(Line((say(f"scaling_{series.quantity}"), series.arm, *cells)))
    return Table("scaling", columns, tuple(lines))


def _held_columns(size: str, say: Say) -> tuple[Column, Column]:
    return Column("prediction", say("scaling_prediction", size=size)), Column("outcome", say("scaling_outcome"))


def _held_cells(found: Sequence[Series], item: PredictedRecord | None, say: Say) -> list[str]:
    if item is None:
        return [say("none"), say("none")]
    between = say("scaling_between", **_ends(item.quantity, item, say))
    came = find_outcome(found, item)
    if came is None:
        return [between, say("none")]
    where = "inside" if item.low <= came <= item.high else "outside"
    return [between, say(f"scaling_{where}", value=_format_trend(item.quantity, came, say))]


def _format_trend(quantity: ScalingQuantity, value: float | None, say: Say) -> str:
    if value is None:
        return say("none")
    if quantity == "loss":
        return f"{value:.4f}"
    return format_share(value, say) if quantity == "lost" else format_percent(value, say)


def _extrapolation_section(found: Sequence[Series], far: Sequence[PredictedRecord], say: Say) -> Section:
    points = [point for series in found for point in series.points]
    largest, goal = max(point.parameters for point in points), block_parameters(named_size(FAR_SIZE))
    forms = list(dict.fromkeys(form.form for item in far for form in item.forms))
    columns = (
        Column("words", say("scaling_quantity")),
        Column("arm", say("arm")),
        *(Column("form", say(f"scaling_form_{form}")) for form in forms),
        Column("interval", say("scaling_envelope")),
    )
    lines = []
    for item in far:
        by_form = {each.form: _format_far(item.quantity, each, say) for each in item.forms}
        cells = (by_form.get(form, say("none")) for form in forms)
        whole = say("scaling_between", **_ends(item.quantity, item, say))
        lines.append(Line((say(f"scaling_{item.quantity}"), item.arm, *cells, whole)))
    note = say(
        "extrapolation_note", size=FAR_SIZE, parameters=f"{goal:,}", times=f"{goal / largest:.0f}",
        sizes=len({point.parameters for point in points}),
    )  # fmt: skip
    heading = say("heading_extrapolation", size=FAR_SIZE)
    return Section("extrapolation", heading, (note,), table=Table("extrapolation", columns, tuple(lines)))


def _format_far(quantity: ScalingQuantity, found: FormRecord, say: Say) -> str:
    return say("scaling_at", value=_format_trend(quantity, found.value, say), **_ends(quantity, found, say))


def _ends(quantity: ScalingQuantity, found: FormRecord | PredictedRecord, say: Say) -> dict[str, str]:
    return {"low": _format_trend(quantity, found.low, say), "high": _format_trend(quantity, found.high, say)}


def _draw_scaling(
    found: Sequence[Series], prediction: PredictionRecord | None, order: Sequence[str], say: Say
) -> Drawing:
    picture, axes = figure_of_one(3.6)
    places_of = {point.size: point.parameters for series in found for point in series.points}
    for number, series in enumerate(found):
        # Predictions for one size would hide each other at the same place.
        shift = 1.03 ** (number - (len(found) - 1) / 2)
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
                axes.plot([places_of[item.size] * shift] * 2, bounds, color=colour, linewidth=4, alpha=0.35)
    axes.set_xscale("log")
    names: dict[int, list[str]] = {}
    for size, number in places_of.items():
        names.setdefault(number, []).append(size)
    axes.set_xticks([*names], [f"{', '.join(sizes)}\n{number:,}" for number, sizes in names.items()])
    axes.minorticks_off()
    axes.set_xlabel(say("scaling_axis"))
    axes.set_ylabel(say("scaling_difference"))
    axes.axhline(0, color="#808080", linewidth=0.8)
    axes.legend(frameon=False, fontsize=8)
    return picture
