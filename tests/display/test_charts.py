"""Charts are valid data for any background, hold few points, and can be drawn as pictures."""

import json
import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.benchmark.page import benchmark_page
from convoy.display.charts import MAX_POINTS, PALETTE, Point, Series, curves, downsample, stacked_bar
from convoy.display.html import draw_svg
from convoy.display.page import Chart
from tests.benchmark.cases import whole


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: str, b: str) -> float:
    """Source: WCAG 2.2, contrast ratio."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _values(layer: dict[str, Any]) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = layer["data"]["values"]
    return values


def test_a_chart_fills_its_place_and_shows_what_is_behind_it() -> None:
    spec = curves("Loss", [Series("training", [(1, 2.0), (2, 1.0)])], "nats").spec
    assert (spec["width"], spec["background"]) == ("container", "transparent")
    json.dumps(spec, allow_nan=False)


@pytest.mark.parametrize("background", ["#ffffff", "#0f1318"])
def test_text_and_curves_read_on_light_and_on_dark(background: str) -> None:
    config = curves("Loss", [Series("training", [(1, 2.0)])], "nats").spec["config"]
    for ink in (config["axis"]["labelColor"], config["title"]["color"], config["legend"]["labelColor"]):
        assert _contrast(ink[:7], background) >= 3
    assert all(_contrast(colour, background) >= 1.9 for colour in PALETTE)


def test_a_long_series_keeps_at_most_three_hundred_points() -> None:
    points = [(i, math.sin(i / 50)) for i in range(20_000)]
    chart = curves("Loss", [Series("training", points)], "nats")
    assert len(_values(chart.spec["layer"][0])) <= 300
    assert len(chart.series["training"]) <= 300


def test_points_that_are_not_finite_are_crosses_at_the_top() -> None:
    points = [(1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)]
    chart = curves("Loss", [Series("training", points)], "nats")
    line, crosses = chart.spec["layer"]
    assert [v["step"] for v in _values(line)] == [1, 4]
    assert [v["step"] for v in _values(crosses)] == [2, 3]
    json.dumps(chart.spec, allow_nan=False)


def test_each_of_two_series_has_its_colour_and_the_legend_names_both() -> None:
    spec = curves("Loss", [Series("training", [(1, 2.0)]), Series("validation", [(1, 2.1)], dots=True)], "nats").spec
    colour = spec["layer"][0]["encoding"]["color"]
    assert colour["scale"] == {"domain": ["training", "validation"], "range": list(PALETTE[:2])}
    assert "legend" not in colour
    assert spec["layer"][1]["mark"]["point"]


def test_one_series_needs_no_legend_and_one_point_is_seen() -> None:
    layer = curves("Rate", [Series("rate", [(1, 2.0)])], "tokens per second", from_zero=True).spec["layer"][0]
    assert layer["encoding"]["color"]["legend"] is None
    assert layer["encoding"]["y"]["scale"]["zero"] is True
    assert layer["mark"]["point"]


def test_a_stacked_bar_keeps_the_order_of_its_parts() -> None:
    chart = stacked_bar("Step", {"forward": 0.1, "backward": 0.25, "other": 0.0})
    values = chart.spec["data"]["values"]
    assert [(v["part"], v["order"]) for v in values] == [("forward", 0), ("backward", 1), ("other", 2)]
    assert values[1]["value"] == pytest.approx(250)
    assert chart.series["backward"] == (0.25,)
    assert stacked_bar("Start", {"a": 1.5}, unit="s").spec["data"]["values"][0]["value"] == 1.5


def test_the_step_axis_ends_at_the_last_step_of_any_series() -> None:
    spec = curves("Loss", [Series("training", [(1, 2.0), (170, 1.0)]), Series("validation", [(0, 2.5)])], "nats").spec
    assert spec["layer"][0]["encoding"]["x"]["scale"] == {"domain": [0, 170]}
    assert curves("Loss", [], "nats").spec["layer"] == []


POINTS = st.lists(st.floats(-1e6, 1e6), max_size=3000).map(lambda ys: [(float(x), y) for x, y in enumerate(ys)])


@given(POINTS)
def test_the_limit_holds_and_ends_and_extremes_survive_in_order(points: list[Point]) -> None:
    kept = downsample(points)
    assert len(kept) <= MAX_POINTS
    assert set(kept) <= set(points)
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        assert min(y for _, y in kept) == min(y for _, y in points)
        assert max(y for _, y in kept) == max(y for _, y in points)


def test_a_short_curve_is_left_as_it_is() -> None:
    points = [(1.0, 2.0), (2.0, 1.0)]
    assert downsample(points) == points
    assert downsample([]) == []


def test_a_spike_of_one_step_among_a_hundred_thousand_survives() -> None:
    points = [(float(i), 9.0 if i == 54_321 else 1.0) for i in range(100_000)]
    kept = downsample(points)
    assert (54_321.0, 9.0) in kept
    assert len(kept) <= MAX_POINTS


def test_only_finite_values_can_be_drawn() -> None:
    assert downsample([(1, 2.0), (2, float("nan")), (3, float("-inf"))]) == [(1, 2.0)]


def test_a_part_has_one_colour_whatever_stands_before_it() -> None:
    train = stacked_bar("a", {"data": 1.0, "forward": 2.0, "exchange": 1.0, "measuring": 1.0})
    benchmark = stacked_bar("b", {"forward": 2.0, "measuring": 1.0, "data": 1.0})
    colours = [
        dict(zip(scale["domain"], scale["range"], strict=True))
        for scale in (chart.spec["encoding"]["color"]["scale"] for chart in (train, benchmark))
    ]
    assert colours[0]["forward"] == colours[1]["forward"]
    assert colours[0]["data"] == colours[1]["data"]
    assert len(set(colours[0].values())) == 4


CHARTS = [block for block in benchmark_page(whole()).blocks if isinstance(block, Chart)]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.title)
def test_every_chart_of_a_benchmark_is_a_picture_of_its_width(chart: Chart) -> None:
    svg = draw_svg(chart, 528)
    root = ElementTree.fromstring(svg)
    assert float(root.attrib["width"]) == pytest.approx(528, abs=1)
    assert chart.title in "".join(root.itertext())
    assert re.search(r"role-mark.*?<path[^>]* d=\"M[^\"]{4,}", svg, re.DOTALL)
    assert "NaN" not in svg


def test_a_chart_is_the_same_bytes_each_time() -> None:
    """Vega numbers what it clips anew in each picture, so nothing may be clipped."""
    for chart in CHARTS:
        assert draw_svg(chart, 528) == draw_svg(chart, 528), chart.title


def test_bars_are_as_long_as_their_values() -> None:
    """Ours at twice the baseline's rate."""
    rates = next(chart for chart in CHARTS if "ours" in chart.series)
    marks = re.search(r"mark-rect role-mark layer_0_marks.*?</g>", draw_svg(rates, 528), re.DOTALL)
    assert marks is not None
    widths = [float(width) for width in re.findall(r"d=\"M[\d.,]+h([\d.]+)v", marks.group())]
    assert len(widths) == 4
    assert max(widths) / min(widths) == pytest.approx(2.0, rel=0.02)
