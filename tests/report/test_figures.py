from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from oelm.record.record import MetricRecord
from oelm.report import figures
from oelm.report.figures import INK, Curve, Panel, as_png, as_svg, draw_convergence, gather_curve, style_of
from oelm.report.wording import wording


def points(losses: dict[int, float], kind: str = "val") -> list[MetricRecord]:
    return [MetricRecord(kind=kind, step=step, loss=loss, seconds=1.0) for step, loss in losses.items()]


def panel(*arms: str, title: str = "", floor: float | None = 1.0) -> Panel:
    return Panel(
        title,
        tuple(
            Curve(arm, place, (0, 50, 100), (6.0, 2.0 + place, 1.5 + place), (5.9, 1.9, 1.4), (6.1, 3.1, 2.6))
            for place, arm in enumerate(arms)
        ),
        floor,
    )


def test_a_curve_is_the_mean_of_its_seeds_in_a_band_from_lowest_to_highest() -> None:
    found = gather_curve("a", 1, [points({0: 5.0, 10: 2.0}), points({0: 6.0, 10: 4.0})])
    assert found == Curve("a", 1, (0, 10), (5.5, 3.0), (5.0, 2.0), (6.0, 4.0))


def test_a_curve_has_only_steps_that_every_seed_measured_finitely() -> None:
    found = gather_curve(
        "a",
        0,
        [points({0: 5.0, 10: 3.0, 20: math.nan, 30: 2.0}), points({0: 5.0, 10: 3.0, 20: 2.5})],
    )
    assert found is not None
    assert found.steps == (0, 10)


def test_training_losses_are_not_part_of_the_curve() -> None:
    assert gather_curve("a", 0, [points({0: 5.0}, kind="train")]) is None
    assert gather_curve("a", 0, []) is None
    assert gather_curve("a", 0, [points({0: 5.0}), points({1: 5.0})]) is None


def test_forty_arms_can_be_told_apart_and_the_reference_has_the_colour_of_the_text() -> None:
    looks = [style_of(place) for place in range(40)]
    assert len({str(item) for item in looks}) == 40
    assert looks[0] == (INK, "-")
    assert all(one[0] != other[0] and one[1] != other[1] for one, other in pairwise(looks))


def convergence_svg(panels: list[Panel], language: str) -> str:
    return as_svg(lambda say: draw_convergence(panels, say), language)


def convergence_png(panels: list[Panel], language: str) -> bytes:
    return as_png(lambda say: draw_convergence(panels, say), language)


def texts(svg: str) -> list[str]:
    return ["".join(item.itertext()) for item in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314  (ours)


@pytest.mark.parametrize(("language", "word"), [("en", "validation loss (nats)"), ("zh", "训练步数")])
def test_the_svg_is_one_element_whose_text_is_text(language: str, word: str) -> None:
    svg = convergence_svg([panel("baseline", "oelm-freeze")], language)
    assert svg.startswith("<svg")
    assert {word, "baseline", "oelm-freeze"} <= set(texts(svg))


def test_the_svg_takes_the_colour_of_the_page() -> None:
    svg = convergence_svg([panel("baseline")], "en")
    assert "currentColor" in svg
    assert INK not in svg


def test_the_same_curves_give_the_same_bytes() -> None:
    drawn = [panel("baseline", "oelm-freeze")]
    assert convergence_svg(drawn, "en") == convergence_svg(drawn, "en")
    assert convergence_png(drawn, "en") == convergence_png(drawn, "en")


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "$\\frac{$", "_hidden", "a&b"])
def test_any_name_is_drawn_as_it_is(name: str) -> None:
    for svg in (convergence_svg([panel("baseline", name)], "en"), convergence_svg([panel("a", title=name)], "en")):
        assert "<script" not in svg
        assert name in {text.strip() for text in texts(svg)}


def test_every_place_on_the_axes_has_its_panel() -> None:
    svg = convergence_svg([panel("baseline", title="first"), panel("baseline", title="second")], "en")
    assert {"first", "second"} <= set(texts(svg))


def test_the_axis_leaves_out_the_first_steep_fall() -> None:
    labels = texts(convergence_svg([panel("baseline")], "en"))
    losses = [float(label) for label in labels if "." in label]
    assert 2.5 < max(losses) < 4.0  # the first of three points, at 6, is above


def test_one_point_and_no_floor_can_be_drawn() -> None:
    alone = Panel("", (Curve("baseline", 0, (0,), (2.0,), (2.0,), (2.0,)),), None)
    assert "floor" not in texts(convergence_svg([alone], "en"))


def test_a_machine_without_a_chinese_font_labels_the_png_in_english_and_the_svg_in_chinese(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(figures, "chinese_fonts", list)
    drawn = [panel("baseline", "oelm-freeze")]
    assert convergence_png(drawn, "zh") == convergence_png(drawn, "en")
    assert "训练步数" in texts(convergence_svg(drawn, "zh"))
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_png_is_a_picture(language: str) -> None:
    png = convergence_png([panel("baseline", "oelm-freeze")], language)
    assert png.startswith(b"\x89PNG")
    assert len(png) > 10_000


def test_a_legend_of_long_names_is_whole_and_leaves_the_curves_their_width() -> None:
    names = ["baseline", *(f"orthogonal-from-current-trained-{number}" for number in range(9))]
    few, many = (draw_convergence([panel(*chosen, floor=None)], wording("en")) for chosen in (names[:1], names))
    for figure, count in ((few, 1), (many, 10)):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert len(legend.get_texts()) == count
        assert legend.get_window_extent().x1 <= figure.bbox.x1
    widths = [figure.axes[0].get_position().width for figure in (few, many)]
    assert widths[1] == pytest.approx(widths[0], rel=0.05)
