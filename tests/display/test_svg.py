"""Charts as pictures."""

import re
from xml.etree import ElementTree

import pytest

from convoy.benchmark.page import benchmark_page
from convoy.display.html import draw_svg
from convoy.display.page import Chart
from tests.report.bench_cases import whole

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
