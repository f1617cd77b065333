"""The figures of a report beside its curves: differences, ablation, tuning, what heads look at."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oelm.analysis.statistics import Interval, percent
from oelm.analysis.tuning import Sensitivity
from oelm.record.attention import AttentionRecord
from oelm.report.figures import COLOURS, INK, look, name_the_lines
from oelm.report.numbers import shown_place
from oelm.report.wording import Say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.8
CLAIM_WIDTH = 4.4
"""Narrow enough to be legible on a phone."""
FAR = 6.0
"""Margins beyond which a screen only tells the number."""
MARKERS = {"met": "o", "not met": "s", "undecided": "D"}
TONES = {"met": "#009E73", "not met": "#D55E00", "undecided": "#8a7000"}
"""A verdict has a colour and a shape, so that print keeps it."""


Heads = tuple[str, int, Sequence[Sequence[float]]]
"""An arm, its place in the study, and a number for each of its heads: [layer][head]."""


@dataclass(frozen=True)
class Dot:
    """A difference with its interval, on the scale of the axis."""

    label: str
    mean: float
    low: float
    high: float
    tone: str
    group: str = ""
    """What it shares with its neighbours, written once above them."""


@dataclass(frozen=True)
class Rank:
    """An arm of a screen: its cost on the scale of the axis, and the share of Q and K that it trains, as written."""

    label: str
    cost: float
    trained: str


@dataclass(frozen=True)
class Profile:
    """An arm, its place in the study, and tokens of past with its loss against the reference there."""

    arm: str
    place: int
    differences: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Bar:
    """A step of an ablation, in nats or points; `first`: it starts at zero."""

    label: str
    mean: float
    interval: Interval | None
    first: bool


def forest(dots: Sequence[Dot], margin: float | None, axis: str, say: Say) -> Figure:
    """Draw differences as dots with their intervals, a line each.

    Those far beyond the margin stand at the edge with their number, where there are others: on their scale these could
    not be told apart.
    """
    lines = list(_grouped(dots))
    figure, axes = figure_of_one(1.1 + 0.34 * len(lines))
    reach = math.inf if margin is None else FAR * abs(margin)
    near = [dot for dot in dots if abs(dot.mean) <= reach] or dots
    edge = max(abs(bound) for dot in near for bound in (dot.low, dot.high))
    for place, (_, dot) in enumerate(lines):
        if dot and dot not in near:
            _far(axes, dot.mean, place, math.copysign(edge, dot.mean), TONES.get(dot.tone, INK))
        elif dot:
            colour = TONES.get(dot.tone, INK)
            axes.plot([dot.low, dot.high], [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
            axes.plot([dot.mean], [place], MARKERS.get(dot.tone, "o"), color=colour, markersize=6.5)
    axes.axvline(0, color=INK, linewidth=0.9)
    if margin is not None:
        axes.axvline(margin, color=INK, linewidth=1.1, dashes=(4, 3), label=say("forest_margin"))
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1)
    _name_rows(axes, [label for label, _ in lines])
    for text, (_, dot) in zip(axes.get_yticklabels(), lines, strict=True):
        text.set_fontweight("normal" if dot else "bold")
    _name_costs(axes, axis)
    return figure


def _grouped(dots: Sequence[Dot]) -> Iterator[tuple[str, Dot | None]]:
    """Yield the lines of a forest: a heading before each group that has a name, and the dots."""
    for group, members in itertools.groupby(dots, key=lambda dot: dot.group):
        if group:
            yield group, None
        yield from ((dot.label, dot) for dot in members)


def ranking(ranks: Sequence[Rank], margin: float, axis: str, say: Say) -> Figure:
    """Draw the arms of a screen by what they cost, a line each, and write beside it what they train.

    Those far beyond the margin stand at the edge with their number: on their scale the others could not be told apart.
    """
    figure, axes = figure_of_one(1.1 + 0.24 * len(ranks))
    edge = FAR * margin
    for place, rank in enumerate(ranks):
        if rank.cost > edge:
            _far(axes, rank.cost, place, edge, COLOURS[0])
        else:
            axes.plot([rank.cost], [place], "o", color=COLOURS[0], markersize=6)
        axes.annotate(rank.trained, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=9)
    axes.annotate(say("qk_trained"), (1.02, -1), xycoords=("axes fraction", "data"), va="center", fontsize=9)
    axes.axvline(0, color=INK, linewidth=0.9)
    axes.axvline(margin, color=INK, linewidth=1.1, dashes=(4, 3), label=say("forest_margin"))
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.1)
    _name_rows(axes, [rank.label for rank in ranks], fontsize=9)
    axes.set_xlim(right=1.03 * edge)
    _name_costs(axes, axis)
    return figure


def _far(axes: Axes, value: float, place: int, edge: float, colour: str) -> None:
    """Point to a value beyond the edge, and write it there."""
    right = value > 0
    axes.plot([edge], [place], ">" if right else "<", color=colour, markersize=6)
    axes.annotate(f"{value:+.0f}", (edge, place), (-6 if right else 6, 0), textcoords="offset points",
                  ha="right" if right else "left", va="center", fontsize=9)  # fmt: skip


def waterfall(bars: Sequence[Bar], axis: str, *, relative: bool) -> Figure:
    """Draw the steps of an ablation, each from where the one before it ended."""
    figure, axes = figure_of_one(1.0 + 0.42 * len(bars))

    def scaled(value: float) -> float:
        return percent(value) if relative else value

    start = 0.0
    for place, bar in enumerate(bars):
        start = 0.0 if bar.first else start
        end = start + bar.mean
        left, right = sorted((scaled(start), scaled(end)))
        colour = COLOURS[1] if bar.mean > 0 else COLOURS[2]
        # Gains are hatched as well as green, so that print keeps them apart from losses.
        (patch,) = axes.barh(place, right - left, left=left, height=0.55, edgecolor=colour, linewidth=1.2)
        patch.set_facecolor(colour if bar.mean > 0 else "none")
        patch.set_hatch("" if bar.mean > 0 else "///")
        if bar.interval:
            low, high = scaled(start + bar.interval.low), scaled(start + bar.interval.high)
            axes.plot([low, high], [place, place], color=INK, linewidth=1.3)
        if place + 1 < len(bars) and not bars[place + 1].first:
            axes.plot([scaled(end)] * 2, [place, place + 1], color=INK, linewidth=0.7, alpha=0.6)
        start = end
    axes.axvline(0, color=INK, linewidth=0.9)
    _name_rows(axes, [bar.label for bar in bars])
    _name_costs(axes, axis)
    return figure


def tuning_curves(found: Sequence[Sensitivity], order: Sequence[str], say: Say) -> Figure:
    """Draw every arm's score over the grid, a panel per place on the axes."""
    from matplotlib.figure import Figure

    cells = list(dict.fromkeys(item.cell for item in found))
    figure = Figure(figsize=(WIDTH, 3.3 * len(cells)), layout="constrained")
    grid = figure.subplots(len(cells), 1, squeeze=False)
    for axes, cell in zip(grid.flat, cells, strict=True):
        own = [item for item in found if item.cell == cell]
        scores = [score for item in own for point in item.points for score in point.scores]
        top = max(scores) + 0.08 * ((max(scores) - min(scores)) or 1) if scores else 1.0
        for item in own:
            _tuning_curve(axes, item, order.index(item.arm), top)
        values = sorted({point.value for item in own for point in item.points})
        axes.set_xscale("log" if min(values) > 0 else "linear")  # a grid of weight decays may begin at none
        axes.set_xlabel(own[0].field)
        axes.set_ylabel(say("tuning_axis"))
        axes.set_xticks(values, [f"{value:g}" for value in values], fontsize=9)
        axes.minorticks_off()
        _manners(axes)
        if cell:
            axes.set_title(shown_place(cell), fontsize=10, loc="left")
    name_the_lines(figure)
    return figure


def _tuning_curve(axes: Axes, item: Sensitivity, place: int, top: float) -> None:
    colour, style = look(place)
    finite = [point for point in item.points if math.isfinite(point.mean)]
    label = f" {item.arm}" if item.arm.startswith("_") else item.arm
    axes.plot([p.value for p in finite], [p.mean for p in finite], color=colour, linestyle=style, linewidth=1.8,
              marker="o", markersize=3.5, label=label)  # fmt: skip
    for point in item.points:
        if point.diverged:
            axes.plot([point.value], [top], "x", color=colour, markersize=7)
        if point.value == item.chosen and math.isfinite(point.mean):
            axes.plot([point.value], [point.mean], "o", markersize=11, markerfacecolor="none", markeredgecolor=colour)


def heads(panels: Sequence[tuple[str, Sequence[Heads]]], say: Say) -> Figure:
    """Draw the entropy of every head by layer, a panel with its title per place on the axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3.3 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True, sharey=True)
    for axes, (title, found) in zip(grid.flat, panels, strict=True):
        for number, (name, place, layers) in enumerate(found):
            shift = (number - (len(found) - 1) / 2) * 0.6 / max(len(found), 1)
            _heads_of_an_arm(axes, name, look(place), layers, shift)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylabel(say("heads_axis"))
        _manners(axes)
    depth = max(len(layers) for _, found in panels for _, _, layers in found)
    last: Axes = grid[-1, 0]
    last.set_xticks(range(depth))
    last.set_ylim(bottom=0)
    last.set_xlabel(say("heads_layer"))
    name_the_lines(figure)
    return figure


def _heads_of_an_arm(
    axes: Axes, name: str, look_of_it: tuple[str, Any], layers: Sequence[Sequence[float]], shift: float
) -> None:
    colour, style = look_of_it
    points = [(layer + shift, value) for layer, values in enumerate(layers) for value in values]
    axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=3, alpha=0.65, linestyle="none")
    means = [(layer + shift, statistics.fmean(values)) for layer, values in enumerate(layers) if values]
    label = f" {name}" if name.startswith("_") else name
    axes.plot(*zip(*means, strict=True), color=colour, linestyle=style, linewidth=1.6, label=label)


def heads_over_training(ways: Sequence[tuple[str, Sequence[AttentionRecord]]], say: Say) -> Figure:
    """Draw entropy and distance against the step, a row of two panels per arm: thin lines are heads, thick ones layers.

    All arms share a scale, or a head that never moves would look like one that does.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.9 + 1.35 * len(ways)), layout="constrained")
    grid = figure.subplots(len(ways), 2, squeeze=False, sharex=True, sharey="col")
    for axes, key in zip(grid[0], ("heads_axis", "heads_distance"), strict=True):
        axes.set_title(say(key), fontsize=10, loc="right")  # to the left there are names, to the right nothing
    for (name, seen), (left, right) in zip(ways, grid, strict=True):
        for axes, field in ((left, "entropy"), (right, "distance")):
            _layers(axes, [record.step for record in seen], [getattr(record, field) for record in seen], say)
        left.set_ylabel(name, rotation="horizontal", ha="right", va="center")
    for axes in grid[-1]:
        axes.set_xlabel(say("plot_step"))
        axes.set_ylim(bottom=0)  # last, for it also stops the shared scale from growing
    handles, labels = max((row[0].get_legend_handles_labels() for row in grid), key=lambda pair: len(pair[1]))
    figure.legend(handles, labels, ncols=6, frameon=False, loc="outside upper left")
    return figure


def _layers(axes: Axes, steps: Sequence[int], values: Sequence[Sequence[Sequence[float]]], say: Say) -> None:
    for layer in range(len(values[0])):
        colour, style = look(layer)
        axes.plot(steps, [look_at[layer] for look_at in values], color=colour, linewidth=0.7, alpha=0.45)
        means = [statistics.fmean(look_at[layer]) for look_at in values]
        label = say("heads_layer_number", number=layer)
        axes.plot(steps, means, color=colour, linestyle=style, linewidth=1.8, label=label)
    _manners(axes)


def position_profiles(panels: Sequence[tuple[str, Sequence[Profile]]], reference: str, say: Say) -> Figure:
    """Draw the loss against the reference by position in the window, a panel with its title per place on the axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.8 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True)
    for axes, (title, profiles) in zip(grid.flat, panels, strict=True):
        for item in profiles:
            colour, style = look(item.place)
            label = f" {item.arm}" if item.arm.startswith("_") else item.arm
            points = zip(*item.differences, strict=True)
            axes.plot(*points, color=colour, linestyle=style, linewidth=1.6, marker="o", markersize=3, label=label)
        axes.axhline(0, color=INK, linewidth=0.9)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel(say("why_axis", reference=reference))
        axes.set_title(title, fontsize=10, loc="left")
        _manners(axes)
    grid[-1, 0].set_xlabel(say("why_position"))
    name_the_lines(figure)
    return figure


def figure_of_one(height: float) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    _manners(axes)
    return figure, axes


def _name_rows(axes: Axes, labels: Sequence[str], fontsize: float = 10) -> None:
    """Name what stands in each line, the first on top."""
    axes.set_yticks(range(len(labels)), labels, fontsize=fontsize)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _name_costs(axes: Axes, label: str) -> None:
    """Name the scale; it may reach below the names of the lines, for centred it is cut off where these are long."""
    axes.set_xlabel(label, loc="right")


def _manners(axes: Axes) -> None:
    axes.grid(alpha=0.25, linewidth=0.6, color="#808080")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True)
class Band:
    """A range on an axis; either end may be infinite."""

    low: float
    high: float


@dataclass(frozen=True)
class ClaimDot:
    """The effect of one study, or of several together (`pooled`), with its interval."""

    label: str
    mean: float
    low: float
    high: float
    pooled: bool


@dataclass(frozen=True)
class ClaimPanel:
    """A published effect, the range that would support it, the range of no effect, and what was measured."""

    title: str
    axis: str
    published: tuple[float, ...]
    claimed: Band
    nothing: Band | None
    zero: float
    dots: tuple[ClaimDot, ...]


def claim_forest(panels: Sequence[ClaimPanel], say: Say) -> Figure:
    """Draw published sizes over measured effects with their intervals, a small panel for each rule of a claim."""
    from matplotlib.figure import Figure

    rows = [len(panel.dots) + 1 for panel in panels]
    heights = [0.24 * count + (0.75 if panel.title else 0.55) for count, panel in zip(rows, panels, strict=True)]
    figure = Figure(figsize=(CLAIM_WIDTH, sum(heights) + 0.35), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid.flat, panels, strict=True):
        _claim_panel(axes, panel, say)
    # A panel may lack the range of no effect, so that the legend is gathered from all of them.
    named = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named.keys(), ncols=3, frameon=False, fontsize=8, loc="outside upper right")
    return figure


def _claim_panel(axes: Axes, panel: ClaimPanel, say: Say) -> None:
    _manners(axes)
    known = [*panel.published, panel.zero, *(bound for dot in panel.dots for bound in (dot.low, dot.high))]
    room = 0.08 * ((max(known) - min(known)) or 1)
    left, right = min(known) - room, max(known) + room
    axes.set_xlim(left, right)
    bands = [(panel.claimed, TONES["met"], "claim_band_claimed"), (panel.nothing, "#808080", "claim_band_nothing")]
    for band, colour, key in bands:
        if band:
            low, high = max(band.low, left), min(band.high, right)
            axes.axvspan(low, max(low, high), color=colour, alpha=0.16, linewidth=0, label=say(key))
    axes.axvline(panel.zero, color=INK, linewidth=0.9)
    axes.plot(panel.published, [0] * len(panel.published), "D", color=COLOURS[0], markersize=6, linestyle="none")
    for place, dot in enumerate(panel.dots, 1):
        colour = COLOURS[1] if dot.pooled else INK
        axes.plot([dot.low, dot.high], [place, place], color=colour, linewidth=2.4 if dot.pooled else 1.5)
        axes.plot([dot.mean], [place], "s" if dot.pooled else "o", color=colour, markersize=5.5)
    _name_rows(axes, [say("claim_row_published"), *(dot.label for dot in panel.dots)], fontsize=9)
    axes.tick_params(labelsize=9)
    axes.set_xlabel(panel.axis, loc="right", fontsize=9)
    axes.set_title(panel.title, fontsize=9, loc="left", fontweight="bold")
