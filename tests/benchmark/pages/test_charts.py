"""Charts of a benchmark show what was measured, and nothing is cut or turned round."""

from typing import Any

import pytest

from convoy.benchmark.pages.charts import Row, bars, over_ranks, ratios, stacked_bars
from convoy.stats.interval import Interval


def _row(name: str, value: float, told: str = "words") -> Row:
    """With an interval of ten percent on either side."""
    return Row(name, Interval(estimate=value, low=0.9 * value, high=1.1 * value, n=20), told)


def _x(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [layer["encoding"]["x"] for layer in spec["layer"] if "scale" in layer["encoding"]["x"]]


def test_bars_begin_at_zero_and_keep_their_order() -> None:
    chart = bars("Rates", [_row("b", 2.0), _row("a", 3.0)], "tokens per second")
    (x,) = _x(chart.spec)
    assert x["scale"]["domain"][0] == 0
    assert chart.spec["encoding"]["y"]["sort"] == ["b", "a"]
    assert chart.series == {"b": (2.0,), "a": (3.0,)}
    assert [(v["low"], v["high"]) for v in chart.spec["data"]["values"]] == [
        pytest.approx((1.8, 2.2)),
        pytest.approx((2.7, 3.3)),
    ]


def test_words_beside_the_longest_row_have_room() -> None:
    short, long = (
        _x(bars("Rates", [_row("a", 3.0, told)], "s").spec)[0]["scale"]["domain"] for told in ("x", 20 * "x")
    )
    assert 3.3 < short[1] < long[1]


@pytest.mark.parametrize("values", [(2.0, 3.0), (0.2, 0.3), (1.0, 1.0)])
def test_the_line_at_one_is_in_the_chart_on_whichever_side_the_ratios_lie(values: tuple[float, float]) -> None:
    chart = ratios("Speedup", [_row(str(value), value) for value in values], "×")
    (x,) = _x(chart.spec)
    low, high = x["scale"]["domain"]
    assert low < min(1.0, 0.9 * values[0])
    assert high > max(1.0, 1.1 * values[1])


def test_parts_are_stacked_in_their_order_in_milliseconds() -> None:
    chart = stacked_bars("Step", {"ours": {"data": 0.01, "forward": 0.2}, "other": {"forward": 0.3}})
    values = chart.spec["data"]["values"]
    assert [(v["name"], v["part"], v["order"]) for v in values] == [
        ("ours", "data", 0), ("ours", "forward", 1), ("other", "forward", 1),
    ]  # fmt: skip
    assert [v["value"] for v in values] == pytest.approx([10, 200, 300])
    assert chart.series["ours"] == (pytest.approx(0.21),)


def test_a_curve_has_its_intervals_and_its_ideal() -> None:
    curve = [(1, Interval(estimate=1.0, low=1.0, high=1.0, n=1)), (2, Interval(estimate=0.9, low=0.8, high=1.0, n=20))]
    chart = over_ranks("Efficiency", {"weak": curve}, "of the ideal", [(1, 1.0), (2, 1.0)])
    assert chart.spec["data"]["values"][1] == {"ranks": 2, "value": 0.9, "low": 0.8, "high": 1.0, "curve": "weak"}
    assert chart.spec["layer"][0]["data"]["values"][1] == {"ranks": 2, "value": 1.0}
    assert chart.series == {"weak": (1.0, 0.9)}
