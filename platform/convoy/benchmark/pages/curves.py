"""Curves of a benchmark: over the ranks, and over runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from convoy.display.charts import BLUE, GREEN, INK, LABEL, PALETTE, VERMILION, framed
from convoy.display.page import Chart
from convoy.stats.interval import Interval

Curve = Sequence[tuple[int, Interval]]
"""Ranks, and the value there."""


def over_ranks(title: str, curves: Mapping[str, Curve], y_title: str, ideal: Sequence[tuple[int, float]]) -> Chart:
    """Values with their intervals, and the dashed line on which nothing is lost."""
    names = list(curves)
    values = [
        {"ranks": ranks, "value": each.estimate, "low": each.low, "high": each.high, "curve": name}
        for name, curve in curves.items()
        for ranks, each in curve
    ]
    x = {
        "field": "ranks",
        "type": "quantitative",
        "title": "ranks",
        "axis": {"values": sorted({ranks for curve in curves.values() for ranks, _ in curve}), "format": "d"},
        "scale": {"zero": False, "nice": False, "padding": 16},
    }
    y = _y(y_title, from_zero=True)
    colour = {
        "field": "curve",
        "type": "nominal",
        "sort": names,
        "legend": {"orient": "top", "offset": 4},
        "scale": {"domain": names, "range": [PALETTE[i % len(PALETTE)] for i in range(len(names))]},
    }
    layers = [
        {
            "data": {"values": [{"ranks": ranks, "value": value} for ranks, value in ideal]},
            "mark": {"type": "line", "color": INK, "strokeDash": [4, 3], "strokeWidth": 1},
            "encoding": {"x": x, "y": y},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
        },
        {
            "mark": {"type": "line", "strokeWidth": 1.5, "point": {"size": 60, "filled": True}},
            "encoding": {"x": x, "y": y, "color": colour},
        },
    ]
    spec = framed(title, {"data": {"values": values}, "layer": layers})
    return Chart(title, spec, {name: tuple(each.estimate for _, each in curve) for name, curve in curves.items()})


def over_runs(title: str, rates: Sequence[float], changes: Mapping[int, bool]) -> Chart:
    """Rates of runs, oldest first. changes: the first run after each, and whether it is for the better."""
    x = {
        "field": "run",
        "type": "quantitative",
        "title": "run",
        "axis": {"tickMinStep": 1, "format": "d"},
        "scale": {"domain": [1, max(2, len(rates))], "nice": False, "padding": 12},
    }
    line = {
        "data": {"values": [{"run": i + 1, "value": rate} for i, rate in enumerate(rates)]},
        "mark": {"type": "line", "strokeWidth": 1, "color": BLUE, "point": {"size": 40, "filled": True, "color": BLUE}},
        "encoding": {"x": x, "y": _y("tokens per second", from_zero=False)},
    }
    marks: list[dict[str, Any]] = [
        {
            "data": {"values": [{"run": at + 0.5}]},
            "mark": {"type": "rule", "strokeWidth": 2, "color": GREEN if better else VERMILION},
            "encoding": {"x": x},
        }
        for at, better in changes.items()
    ]
    return Chart(title, framed(title, {"layer": [*marks, line]}), {title: tuple(rates)})


def _y(title: str, from_zero: bool) -> dict[str, Any]:
    return {
        "field": "value",
        "type": "quantitative",
        "title": title,
        "axis": {"labelExpr": LABEL, "tickCount": 6},
        "scale": {"zero": from_zero, "nice": True},
    }
