from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from oelm.analysis.statistics import Interval
from oelm.analysis.tuning import Point, Sensitivity
from oelm.record.folder import AttentionRecord
from oelm.report.figures import (
    MARKERS,
    TONES,
    Band,
    Bar,
    ClaimDot,
    ClaimPanel,
    Dot,
    Painter,
    Rank,
    as_png,
    as_svg,
    draw_claim_forest,
    draw_forest,
    draw_heads,
    draw_heads_over_training,
    draw_ranking,
    draw_tuning,
    draw_waterfall,
)
from oelm.report.wording import wording

DOTS = [Dot("oelm-freeze", 13.0, 11.0, 15.0, "not met"), Dot("a<b>$x$", 2.0, -1.0, 4.0, "met")]
BARS = [Bar("freezing", 0.3, Interval(0.28, 0.32), first=True), Bar("scale", -0.15, None, first=False)]
CURVES = [
    Sensitivity("baseline", (), "train.learning_rate",
                (Point(1e-3, (1.4,), 0), Point(2e-3, (1.3, 1.32), 0), Point(4e-3, (), 1)), 2e-3,
                at_edge=False, qk=None),
    Sensitivity("_odd", (), "train.learning_rate", (Point(1e-3, (1.5,), 0),), None, at_edge=False, qk=None),
]  # fmt: skip
RANKS = [Rank("oelm-bias", 2.1, "2.8 %"), Rank("thin-12", 97.2, "8.3 %")]
HEADS = [("baseline", 0, [[1.0, 2.0], [3.0, 0.5]]), ("oelm-freeze", 1, [[2.0, 2.0], [2.5, 3.0]])]
SEEN = [
    AttentionRecord(step=step, entropy=((1.0, 2.0), (3.0, 0.5)), distance=((9.0, 1.0), (2.0, 4.0))) for step in (1, 2)
]
CLAIM = ClaimPanel(
    "", "percent", (-5.8,), Band(-math.inf, -1.0), Band(-1.0, 1.0), 0.0,
    (ClaimDot("fair<1>", 0.4, -2.0, 3.0, pooled=False), ClaimDot("pooled", 0.5, -9.0, 9.0, pooled=True)),
)  # fmt: skip
PAINTERS: dict[str, Painter] = {
    "forest": lambda say: draw_forest(DOTS, 5.0, "percent", say),
    "claims": lambda say: draw_claim_forest(
        [CLAIM, replace(CLAIM, title="only published", dots=(), nothing=None)], say
    ),
    "waterfall": lambda _say: draw_waterfall(BARS, "percent", relative=True),
    "ranking": lambda say: draw_ranking(RANKS, 5.0, "percent", say),
    "tuning": lambda say: draw_tuning(CURVES, ["baseline", "_odd"], say),
    "heads": lambda say: draw_heads([("recall:4", HEADS), ("recall:32", HEADS[:1])], say),
    "heads over training": lambda say: draw_heads_over_training([("baseline", SEEN), ("oelm-freeze", SEEN)], say),
}


def texts(svg: str) -> list[str]:
    return ["".join(item.itertext()) for item in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314  (ours)


@pytest.mark.parametrize("name", PAINTERS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_figure_is_drawn_in_both_languages_and_both_media(name: str, language: Any) -> None:
    svg, png = as_svg(PAINTERS[name], language), as_png(PAINTERS[name], language)
    ET.fromstring(svg)  # noqa: S314  (ours)
    assert png.startswith(b"\x89PNG")
    assert "currentColor" in svg


def test_names_are_written_as_they_are() -> None:
    assert {"oelm-freeze", "a<b>$x$"} <= set(texts(as_svg(PAINTERS["forest"], "en")))
    assert " _odd" in texts(as_svg(PAINTERS["tuning"], "en"))


def test_what_is_far_beyond_the_margin_leaves_the_others_their_scale() -> None:
    far = [Dot("thin-12", 77.6, 50.0, 110.0, "not met"), Dot("guesses", -97.0, -98.0, -96.0, "met")]
    axes = draw_forest([*DOTS, *far], 5.0, "percent", wording("en")).axes[0]
    low, high = axes.get_xlim()
    assert -20 < low < -15 < 15 < high < 20
    assert {text.get_text() for text in axes.texts} == {"+78", "-97"}
    alone = draw_forest(far[:1], 5.0, "percent", wording("en")).axes[0]
    assert alone.get_xlim()[1] > 110
    assert not alone.texts


def test_what_arms_share_is_written_once_above_them() -> None:
    dots = [replace(dot, group=group) for group in ("recall:4", "recall:32") for dot in DOTS]
    written = texts(as_svg(lambda say: draw_forest(dots, 5.0, "percent", say), "en"))
    assert [written.count(name) for name in ("recall:4", "recall:32", "oelm-freeze")] == [1, 1, 2]
    assert [name for name in written if name in ("recall:4", "oelm-freeze", "recall:32")] == [
        "recall:4", "oelm-freeze", "recall:32", "oelm-freeze",
    ]  # fmt: skip


def test_a_screen_names_what_arms_train_and_keeps_the_far_ones_from_its_scale() -> None:
    figure = draw_ranking(RANKS, 5.0, "percent", wording("en"))
    assert figure.axes[0].get_xlim()[1] < 35
    assert {"2.8 %", "8.3 %", "+97"} <= set(texts(as_svg(PAINTERS["ranking"], "en")))


def test_two_figures_on_one_page_share_no_identifier() -> None:
    ids = []
    for painter in PAINTERS.values():
        elements = ET.fromstring(as_svg(painter, "en")).iter()  # noqa: S314  (ours)
        ids += [element.attrib["id"] for element in elements if "id" in element.attrib]
    assert len(ids) == len(set(ids))


def test_a_verdict_has_a_shape_as_well_as_a_colour() -> None:
    assert len(set(MARKERS.values())) == len(set(TONES.values())) == 3


def test_no_head_is_drawn_outside_the_scale_that_the_arms_share() -> None:
    wide = [record.model_copy(update={"distance": ((90.0, 1.0), (2.0, 4.0))}) for record in SEEN]
    figure = draw_heads_over_training([("baseline", SEEN), ("oelm-freeze", wide)], wording("en"))
    for _, axes in zip(range(2), figure.axes[1::2], strict=True):
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] > 90


def test_steps_of_an_ablation_start_where_the_one_before_ended() -> None:
    first, second = draw_waterfall(BARS, "", relative=False).axes[0].patches
    assert first.get_x() + first.get_width() == pytest.approx(0.3)
    assert second.get_x() + second.get_width() == pytest.approx(0.3)
    assert math.isclose(second.get_x(), 0.15)


def test_the_forest_of_a_claim_names_every_study_and_what_was_published() -> None:
    svg = as_svg(lambda say: draw_claim_forest([CLAIM], say), "en")
    labels = texts(svg)
    for label in ("published", "fair<1>", "pooled", "supports the claim", "no effect", "percent"):
        assert label in labels
