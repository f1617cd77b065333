"""Draw figures whose lines can be distinguished in print, in dark mode and by colour-blind readers.

The reference arm has the colour of the text, and the others have the colours of Okabe and Ito, each with its own line
style. In the SVG the colour of the text is `currentColor`, so that a page can be dark.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import re
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from oelm.analysis.compare import Comparison
from oelm.analysis.statistics import Interval, percent
from oelm.analysis.tuning import Sensitivity
from oelm.record.folder import AttentionRecord
from oelm.record.record import MetricRecord
from oelm.report.render import Figure as DrawnFigure
from oelm.report.wording import Language, Say, format_place, wording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Painter = Callable[[Say], "Figure"]
"""Draws a figure with labels from the given texts."""

INK = "#010203"  # not used by any other element, so that `as_svg` can replace it
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES: tuple[Any, ...] = ("--", "-.", ":", (0, (7, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (5, 5)), (0, (1, 3)))
"""One more than the colours, so that a pair repeats only after all combinations."""
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "SimHei",
)


@dataclass(frozen=True)
class Curve:
    """One arm's validation loss: mean, lowest and highest over seeds at each step."""

    arm: str
    place: int
    """Index of the arm in its study; the reference is 0. It keeps the colour of an arm the same in all figures."""
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """The curves of one place on the study's axes."""

    title: str
    curves: tuple[Curve, ...]
    floor: float | None
    """Lowest possible loss on the validation split."""


def gather_curve(arm: str, place: int, runs: Sequence[Sequence[MetricRecord]]) -> Curve | None:
    """Combine the seeds of an arm at the steps that all of them have; None if there is no such step."""
    by_step = [
        {point.step: point.loss for point in run if point.kind == "val" and math.isfinite(point.loss)} for run in runs
    ]
    steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
    if not steps:
        return None
    losses = [[run[step] for run in by_step] for step in steps]
    return Curve(
        arm=arm,
        place=place,
        steps=tuple(steps),
        mean=tuple(map(statistics.fmean, losses)),
        low=tuple(map(min, losses)),
        high=tuple(map(max, losses)),
    )


def as_svg(painter: Painter, language: Language) -> str:
    """Return a figure as an SVG element. Text stays text; identifiers are unique on the page."""
    with _prepare_drawing(language, always=True) as say:
        figure = painter(say)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    text = file.getvalue()
    label = 'role="img" xmlns="http://www.w3.org/2000/svg"'
    element = text[text.index("<svg") :].replace('xmlns="http://www.w3.org/2000/svg"', label, 1)
    element = element.replace(INK, "currentColor")
    prefix = hashlib.sha256(element.encode()).hexdigest()[:8]
    return re.sub(r'(\bid="|"#|url\(#)', rf"\g<1>{prefix}-", element)


def as_png(painter: Painter, language: Language) -> bytes:
    """Return a figure as PNG on white. Without a Chinese font on the machine the labels are English."""
    with _prepare_drawing(language, always=False) as say:
        file = io.BytesIO()
        painter(say).savefig(file, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return file.getvalue()


@cache
def chinese_fonts() -> list[str]:
    """Return the Chinese fonts of this machine, also those that were just installed."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    def present() -> list[str]:
        known = {font.name for font in fontManager.ttflist}
        return [font for font in CHINESE_FONTS if font in known]

    if not present():  # matplotlib caches the fonts that it found when it was first used
        for path in set(findSystemFonts()) - {font.fname for font in fontManager.ttflist}:
            with suppress(RuntimeError, OSError):  # the file is not a font
                fontManager.addfont(path)
    return present()


@contextmanager
def _prepare_drawing(language: Language, *, always: bool) -> Iterator[Say]:
    """Configure matplotlib for one figure, and yield the texts for its labels."""
    import matplotlib as mpl

    chinese = chinese_fonts() if language == "zh" else []
    settings: Any = {  # matplotlib types its keys as one enormous literal
        "font.family": [*chinese, "DejaVu Sans"],
        "svg.fonttype": "none",
        "svg.hashsalt": "oelm",  # the same records give the same file
        "text.parse_math": False,  # a dollar sign in a name is a dollar sign
        "axes.unicode_minus": False,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        # matplotlib lacks some glyphs when it measures the text of an SVG; the browser has them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield wording(language if always or chinese else "en")


def draw_convergence(panels: Sequence[Panel], say: Say) -> Figure:
    """Draw the curves, with a panel per place on the axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.8, 3.7 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=True):
        _draw(axes, panel, say)
    name_the_lines(figure)
    return figure


def name_the_lines(figure: Figure) -> None:
    """Put one legend for all panels above them, in as many columns as fit, and make the figure taller for it.

    Names can be long and many: inside the axes they would squeeze the curves or be cut off.
    """
    named = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    points = 72 * figure.get_figwidth() - 10
    columns = next((count for count in (3, 2) if _legend_points(list(named), count) <= points), 1)
    rows = -(-len(named) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * max(rows - 2, 0))
    figure.legend(named.values(), named.keys(), ncols=columns, frameon=False, handlelength=2.8, fontsize=9,
                  loc="outside upper left")  # fmt: skip


def _legend_points(names: Sequence[str], columns: int) -> float:
    """Estimate the width of a legend: 5 points per letter, 52 for the line and the gaps of each column."""
    rows = -(-len(names) // columns)
    longest = [max(map(len, names[first : first + rows])) for first in range(0, len(names), rows)]
    return sum(5 * length + 52 for length in longest)


def _draw(axes: Axes, panel: Panel, say: Say) -> None:
    for item in panel.curves:
        colour, style = style_of(item.place)
        # matplotlib omits labels that start with an underscore from the legend.
        label = f" {item.arm}" if item.arm.startswith("_") else item.arm
        axes.plot(item.steps, item.mean, color=colour, linestyle=style, linewidth=1.8, label=label)
        axes.fill_between(item.steps, item.low, item.high, color=colour, alpha=0.18, linewidth=0)
    if panel.floor is not None:
        axes.axhline(panel.floor, color=INK, linewidth=1.1, alpha=0.8, dashes=(1, 3), label=say("plot_floor"))
    bottom = min([*(min(item.low) for item in panel.curves), *([panel.floor] if panel.floor else [])])
    top = max(map(_after_the_fall, panel.curves))
    axes.set_ylim(bottom - 0.05 * (top - bottom or 1), top + 0.05 * (top - bottom or 1))
    axes.set_xlabel(say("plot_step"))
    axes.set_ylabel(say("plot_loss"))
    axes.grid(alpha=0.25, linewidth=0.6, color="#808080")
    axes.spines[["top", "right"]].set_visible(False)
    if panel.title:
        axes.set_title(panel.title, fontsize=10, loc="left")


def style_of(place: int) -> tuple[str, Any]:
    """Return the colour and line style of an arm by its place in the study."""
    if place == 0:
        return INK, "-"
    return COLOURS[(place - 1) % len(COLOURS)], STYLES[(place - 1) % len(STYLES)]


def _after_the_fall(item: Curve) -> float:
    """Return the highest loss after the first fifth of training, which is too steep to compare arms."""
    start = item.steps[-1] / 5
    return max(high for step, high in zip(item.steps, item.high, strict=True) if step >= start)


# Differences, ablation, tuning, attention.

WIDTH = 5.8
CLAIM_WIDTH = 4.4
"""Narrow enough to be legible on a phone."""
FAR = 6.0
"""From this many margins on, a ranking shows only the number."""
MARKERS = {"met": "o", "not met": "s", "undecided": "D"}
TONES = {"met": "#009E73", "not met": "#D55E00", "undecided": "#8a7000"}
"""A verdict has a colour and a shape, so that it is visible in print."""


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
    """Common heading of adjacent dots, written once above them."""


@dataclass(frozen=True)
class Rank:
    """An arm of a screen: its cost on the scale of the axis, and the formatted share of Q and K that it trains."""

    label: str
    cost: float
    trained: str


@dataclass(frozen=True)
class Profile:
    """An arm, its place in the study, and pairs of preceding tokens and loss against the reference."""

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


def draw_forest(dots: Sequence[Dot], margin: float | None, axis: str, say: Say) -> Figure:
    """Draw differences as dots with their intervals, a line each.

    A dot far beyond the margin is drawn at the edge with its number if there are others, because they
    could not be distinguished on its scale.
    """
    lines = list(_group(dots))
    figure, axes = figure_of_one(1.1 + 0.34 * len(lines))
    reach = math.inf if margin is None else FAR * abs(margin)
    near = [dot for dot in dots if abs(dot.mean) <= reach] or dots
    edge = max(abs(bound) for dot in near for bound in (dot.low, dot.high))
    for place, (_, dot) in enumerate(lines):
        if dot and dot not in near:
            _mark_far(axes, dot.mean, place, math.copysign(edge, dot.mean), TONES.get(dot.tone, INK))
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


def _group(dots: Sequence[Dot]) -> Iterator[tuple[str, Dot | None]]:
    """Yield the lines of a forest: a heading before each group that has a name, and the dots."""
    for group, members in itertools.groupby(dots, key=lambda dot: dot.group):
        if group:
            yield group, None
        yield from ((dot.label, dot) for dot in members)


def draw_ranking(ranks: Sequence[Rank], margin: float, axis: str, say: Say) -> Figure:
    """Draw the cost of the arms of a screen, one line each, with the share that they train.

    Arms far beyond the margin are at the edge with their number, because their scale would hide other differences.
    """
    figure, axes = figure_of_one(1.1 + 0.24 * len(ranks))
    edge = FAR * margin
    for place, rank in enumerate(ranks):
        if rank.cost > edge:
            _mark_far(axes, rank.cost, place, edge, COLOURS[0])
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


def _mark_far(axes: Axes, value: float, place: int, edge: float, colour: str) -> None:
    """Mark a value beyond the edge with an arrow and its number."""
    right = value > 0
    axes.plot([edge], [place], ">" if right else "<", color=colour, markersize=6)
    axes.annotate(f"{value:+.0f}", (edge, place), (-6 if right else 6, 0), textcoords="offset points",
                  ha="right" if right else "left", va="center", fontsize=9)  # fmt: skip


def draw_waterfall(bars: Sequence[Bar], axis: str, *, relative: bool) -> Figure:
    """Draw the steps of an ablation, each starting at the end of the previous one."""
    figure, axes = figure_of_one(1.0 + 0.42 * len(bars))

    def scaled(value: float) -> float:
        return percent(value) if relative else value

    start = 0.0
    for place, bar in enumerate(bars):
        start = 0.0 if bar.first else start
        end = start + bar.mean
        left, right = sorted((scaled(start), scaled(end)))
        colour = COLOURS[1] if bar.mean > 0 else COLOURS[2]
        # Gains are hatched as well as green, so that they differ from losses in print.
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


def draw_tuning(found: Sequence[Sensitivity], order: Sequence[str], say: Say) -> Figure:
    """Draw the score of every arm over the grid, with a panel per place on the axes."""
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
        axes.set_xscale("log" if min(values) > 0 else "linear")  # a grid of weight decays may start at zero
        axes.set_xlabel(own[0].field)
        axes.set_ylabel(say("tuning_axis"))
        axes.set_xticks(values, [f"{value:g}" for value in values], fontsize=9)
        axes.minorticks_off()
        _style_axes(axes)
        if cell:
            axes.set_title(format_place(cell), fontsize=10, loc="left")
    name_the_lines(figure)
    return figure


def _tuning_curve(axes: Axes, item: Sensitivity, place: int, top: float) -> None:
    colour, style = style_of(place)
    finite = [point for point in item.points if math.isfinite(point.mean)]
    label = f" {item.arm}" if item.arm.startswith("_") else item.arm
    axes.plot([p.value for p in finite], [p.mean for p in finite], color=colour, linestyle=style, linewidth=1.8,
              marker="o", markersize=3.5, label=label)  # fmt: skip
    for point in item.points:
        if point.diverged:
            axes.plot([point.value], [top], "x", color=colour, markersize=7)
        if point.value == item.chosen and math.isfinite(point.mean):
            axes.plot([point.value], [point.mean], "o", markersize=11, markerfacecolor="none", markeredgecolor=colour)


def draw_heads(panels: Sequence[tuple[str, Sequence[Heads]]], say: Say) -> Figure:
    """Draw the entropy of every head by layer, a panel with its title per place on the axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3.3 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True, sharey=True)
    for axes, (title, found) in zip(grid.flat, panels, strict=True):
        for number, (name, place, layers) in enumerate(found):
            shift = (number - (len(found) - 1) / 2) * 0.6 / max(len(found), 1)
            _heads_of_an_arm(axes, name, style_of(place), layers, shift)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylabel(say("heads_axis"))
        _style_axes(axes)
    depth = max(len(layers) for _, found in panels for _, _, layers in found)
    last: Axes = grid[-1, 0]
    last.set_xticks(range(depth))
    last.set_ylim(bottom=0)
    last.set_xlabel(say("heads_layer"))
    name_the_lines(figure)
    return figure


def _heads_of_an_arm(
    axes: Axes, name: str, style_of_arm: tuple[str, Any], layers: Sequence[Sequence[float]], shift: float
) -> None:
    colour, style = style_of_arm
    points = [(layer + shift, value) for layer, values in enumerate(layers) for value in values]
    axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=3, alpha=0.65, linestyle="none")
    means = [(layer + shift, statistics.fmean(values)) for layer, values in enumerate(layers) if values]
    label = f" {name}" if name.startswith("_") else name
    axes.plot(*zip(*means, strict=True), color=colour, linestyle=style, linewidth=1.6, label=label)


def draw_heads_over_training(ways: Sequence[tuple[str, Sequence[AttentionRecord]]], say: Say) -> Figure:
    """Draw entropy and distance against the step, a row of two panels per arm: thin lines are heads, thick ones layers.

    All arms share a scale, so that a head that hardly moves does not look like one that does.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.9 + 1.35 * len(ways)), layout="constrained")
    grid = figure.subplots(len(ways), 2, squeeze=False, sharex=True, sharey="col")
    for axes, key in zip(grid[0], ("heads_axis", "heads_distance"), strict=True):
        axes.set_title(say(key), fontsize=10, loc="right")  # the names are on the left
    for (name, seen), (left, right) in zip(ways, grid, strict=True):
        for axes, field in ((left, "entropy"), (right, "distance")):
            _layers(axes, [record.step for record in seen], [getattr(record, field) for record in seen], say)
        left.set_ylabel(name, rotation="horizontal", ha="right", va="center")
    for axes in grid[-1]:
        axes.set_xlabel(say("plot_step"))
        axes.set_ylim(bottom=0)  # last, because it also fixes the shared scale
    handles, labels = max((row[0].get_legend_handles_labels() for row in grid), key=lambda pair: len(pair[1]))
    figure.legend(handles, labels, ncols=6, frameon=False, loc="outside upper left")
    return figure


def _layers(axes: Axes, steps: Sequence[int], values: Sequence[Sequence[Sequence[float]]], say: Say) -> None:
    for layer in range(len(values[0])):
        colour, style = style_of(layer)
        axes.plot(steps, [heads[layer] for heads in values], color=colour, linewidth=0.7, alpha=0.45)
        means = [statistics.fmean(heads[layer]) for heads in values]
        label = say("heads_layer_number", number=layer)
        axes.plot(steps, means, color=colour, linestyle=style, linewidth=1.8, label=label)
    _style_axes(axes)


def draw_position_profiles(panels: Sequence[tuple[str, Sequence[Profile]]], reference: str, say: Say) -> Figure:
    """Draw the loss against the reference by position in the window, a panel with its title per place on the axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.8 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True)
    for axes, (title, profiles) in zip(grid.flat, panels, strict=True):
        for item in profiles:
            colour, style = style_of(item.place)
            label = f" {item.arm}" if item.arm.startswith("_") else item.arm
            points = zip(*item.differences, strict=True)
            axes.plot(*points, color=colour, linestyle=style, linewidth=1.6, marker="o", markersize=3, label=label)
        axes.axhline(0, color=INK, linewidth=0.9)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel(say("why_axis", reference=reference))
        axes.set_title(title, fontsize=10, loc="left")
        _style_axes(axes)
    grid[-1, 0].set_xlabel(say("why_position"))
    name_the_lines(figure)
    return figure


def figure_of_one(height: float) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    _style_axes(axes)
    return figure, axes


def _name_rows(axes: Axes, labels: Sequence[str], fontsize: float = 10) -> None:
    """Label the rows, the first on top."""
    axes.set_yticks(range(len(labels)), labels, fontsize=fontsize)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _name_costs(axes: Axes, label: str) -> None:
    """Label the axis on the right, because a centred label is cut off if the row names are long."""
    axes.set_xlabel(label, loc="right")


def _style_axes(axes: Axes) -> None:
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
    """A published effect, the range that would support it, the range of no effect, and the measurements."""

    title: str
    axis: str
    published: tuple[float, ...]
    claimed: Band
    nothing: Band | None
    zero: float
    dots: tuple[ClaimDot, ...]


def draw_claim_forest(panels: Sequence[ClaimPanel], say: Say) -> Figure:
    """Draw published sizes over measured effects with their intervals, a small panel for each rule of a claim."""
    from matplotlib.figure import Figure

    rows = [len(panel.dots) + 1 for panel in panels]
    heights = [0.24 * count + (0.75 if panel.title else 0.55) for count, panel in zip(rows, panels, strict=True)]
    figure = Figure(figsize=(CLAIM_WIDTH, sum(heights) + 0.35), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid.flat, panels, strict=True):
        _claim_panel(axes, panel, say)
    # A panel may lack the range of no effect, so the legend collects the labels of all panels.
    named = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named.keys(), ncols=3, frameon=False, fontsize=8, loc="outside upper right")
    return figure


def _claim_panel(axes: Axes, panel: ClaimPanel, say: Say) -> None:
    _style_axes(axes)
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


def draw_figure(name: str, painter: Painter, caption: str, lang: Language) -> DrawnFigure:
    """Return a figure, to be drawn with labels of the given language."""
    return DrawnFigure(name, caption, lambda: as_svg(painter, lang), lambda: as_png(painter, lang))


def arm_places(comparison: Comparison) -> list[str]:
    """Return the arms in the order that gives each its colour: the reference first."""
    study = comparison.study
    return [study.reference, *(arm.name for arm in study.arms if arm.name != study.reference)]
