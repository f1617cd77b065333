"""How figures are drawn: so that they can be told apart in print, in the dark and by the colour-blind.

The reference arm is drawn in the colour of the text and the others in Okabe and Ito's colours, each with a
line style of its own. In the SVG the colour of the text is `currentColor`: a page may turn dark around it.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from oelm.record.schema import MetricRecord
from oelm.report.wording import Language, Say, wording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Painter = Callable[[Say], "Figure"]
"""Draws a figure, labelled in the voice that it is lent."""

INK = "#010203"  # no other colour of the drawing: `svg` finds it again by its digits
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES: tuple[Any, ...] = ("--", "-.", ":", (0, (7, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (5, 5)), (0, (1, 3)))
"""One more than colours, so that the pair repeats only after all combinations."""
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
    """Of the arm in its study, the reference being 0: an arm keeps its colour from figure to figure."""
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
    """Loss that no model can beat on the validation split."""


def curve(arm: str, place: int, runs: Sequence[Sequence[MetricRecord]]) -> Curve | None:
    """Gather the seeds of an arm at the steps that all of them have measured; None if there is none."""
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


def drawn(painter: Painter, language: Language) -> tuple[str, bytes]:
    """Draw as an SVG element, to stand in a page or a file, and as pixels."""
    return as_svg(painter, language), as_png(painter, language)


def as_svg(painter: Painter, language: Language) -> str:
    """Draw as an SVG element. Text stays text; identifiers are unlike those of any other drawing on the page."""
    with _drawing(language, always=True) as say:
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
    """Draw as pixels, on white. Without a Chinese font on the machine the labels are English."""
    with _drawing(language, always=False) as say:
        file = io.BytesIO()
        painter(say).savefig(file, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return file.getvalue()


@cache
def chinese_fonts() -> list[str]:
    """Return the fonts of this machine that Chinese labels can be drawn with, also those installed a moment ago."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    def present() -> list[str]:
        known = {font.name for font in fontManager.ttflist}
        return [font for font in CHINESE_FONTS if font in known]

    if not present():  # matplotlib remembers the fonts there were when it was first used
        for path in set(findSystemFonts()) - {font.fname for font in fontManager.ttflist}:
            with suppress(RuntimeError, OSError):  # a file that is no font after all
                fontManager.addfont(path)
    return present()


@contextmanager
def _drawing(language: Language, *, always: bool) -> Iterator[Say]:
    """Set matplotlib's manners for one drawing, and lend the voice to label it with."""
    import matplotlib as mpl

    chinese = chinese_fonts() if language == "zh" else []
    manners: Any = {  # matplotlib types its keys as one enormous literal
        "font.family": [*chinese, "DejaVu Sans"],
        "svg.fonttype": "none",
        "svg.hashsalt": "oelm",  # the same records give the same file
        "text.parse_math": False,  # a dollar sign in a name is a dollar sign
        "axes.unicode_minus": False,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    }
    with mpl.rc_context(manners), warnings.catch_warnings():
        # The browser has the glyphs that matplotlib misses while it measures an SVG's text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield wording(language if always or chinese else "en")


def convergence(panels: Sequence[Panel], say: Say) -> Figure:
    """Draw the curves, a panel per place on the axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.8, 3.7 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=True):
        _draw(axes, panel, say)
    name_the_lines(figure)
    return figure


def name_the_lines(figure: Figure) -> None:
    """Put one legend for all panels above them, in as many columns as fit, and make the figure higher by its rows.

    Names may be long and many: within the axes they would squeeze the curves, or be cut off at the edge.
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
    """Estimate how wide a legend is: 5 points a letter, 52 for the line and the gaps of each column."""
    rows = -(-len(names) // columns)
    longest = [max(map(len, names[first : first + rows])) for first in range(0, len(names), rows)]
    return sum(5 * length + 52 for length in longest)


def _draw(axes: Axes, panel: Panel, say: Say) -> None:
    for item in panel.curves:
        colour, style = look(item.place)
        # A label that starts with an underscore would be left out of the legend.
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


def look(place: int) -> tuple[str, Any]:
    """Return the colour and line style of an arm by its place in the study."""
    if place == 0:
        return INK, "-"
    return COLOURS[(place - 1) % len(COLOURS)], STYLES[(place - 1) % len(STYLES)]


def _after_the_fall(item: Curve) -> float:
    """Return the highest loss after the first fifth: before it, arms fall too steeply to be compared."""
    start = item.steps[-1] / 5
    return max(high for step, high in zip(item.steps, item.high, strict=True) if step >= start)
