"""Charts of a benchmark: cases as rows with their intervals, the parts of steps, and curves over ranks and runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convoy.benchmark.analysis.report import Verdict
from convoy.display.charts import BLUE, GREEN, GREY, INK, LABEL, VERMILION, chart_spec, colour_encoding
from convoy.display.page import Chart
from convoy.stats.interval import Interval

COLOURS: dict[Verdict, str] = {"more": GREEN, "less": VERMILION, "no difference": GREY}

Curve = Sequence[tuple[int, Interval]]
"""Numbers of ranks, each with the value there."""

_ROW = 26
"""Height of a row in pixels, with the gap to the next."""

_LETTER = 0.018
"""Width of a letter as a share of a chart in half a page."""

_AXIS = {"labelExpr": LABEL, "tickCount": 6, "grid": True, "domain": False}
_COLOUR = {"field": "colour", "type": "nominal", "scale": None}
_TOOLTIP = [{"field": "name", "title": " "}, {"field": "told", "title": " "}]
_DASHED = {"color": INK, "strokeDash": [4, 3]}


@dataclass(frozen=True)
class Row:
    """One bar or point. text: its value as people read it."""

    name: str
    figure: Interval
    text: str
    colour: str = BLUE


def bars(title: str, rows: Sequence[Row], unit: str) -> Chart:
    """A bar from zero for each row, with its interval."""
    bar = {
        "mark": {"type": "bar", "height": {"band": 0.6}},
        "encoding": {"x": _x_axis(rows, unit, 0.0), "color": _COLOUR, "tooltip": _TOOLTIP},
    }
    return _row_chart(title, rows, [bar, _whiskers({"value": INK}), _TEXTS])


def ratios(title: str, rows: Sequence[Row], unit: str) -> Chart:
    """A point with its interval for each row, and a line at 1."""
    line = {
        "data": {"values": [{"at": 1}]},
        "mark": {"type": "rule", **_DASHED},
        "encoding": {"x": {"field": "at", "type": "quantitative"}, "y": None},
    }
    least = 0.98 * min([1.0, *(row.figure.low for row in rows)])
    point = {
        "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
        "encoding": {"x": _x_axis(rows, unit, least), "color": _COLOUR, "tooltip": _TOOLTIP},
    }
    return _row_chart(title, rows, [line, _whiskers(_COLOUR), point, _TEXTS])


def stacked_bars(title: str, parts: Mapping[str, Mapping[str, float]], unit: str = "ms", factor: float = 1000) -> Chart:
    """A bar of parts for each case, drawn in `unit`: a part's value, in seconds by default, times `factor`."""
    names = list(dict.fromkeys(name for values in parts.values() for name in values))
    values = [
        {"name": case, "part": name, "order": names.index(name), "value": factor * value}
        for case, of_case in parts.items()
        for name, value in of_case.items()
    ]
    encoding = {
        "y": _name_axis(list(parts)),
        "x": {"field": "value", "type": "quantitative", "title": unit, "stack": "zero", "axis": _AXIS},
        "color": colour_encoding("part", names, columnPadding=16),
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": [
            {"field": "name", "title": " "},
            {"field": "part"},
            {"field": "value", "type": "quantitative", "format": ".3~s", "title": unit},
        ],
    }
    mark = {"type": "bar", "height": {"band": 0.7}}
    body = {"data": {"values": values}, "mark": mark, "encoding": encoding, "height": {"step": _ROW}}
    return Chart(title, chart_spec(title, body), {case: (sum(of_case.values()),) for case, of_case in parts.items()})


def over_ranks(title: str, curves: Mapping[str, Curve], y_title: str, ideal: Sequence[tuple[int, float]]) -> Chart:
    """Values with their intervals, and the dashed line on which nothing is lost."""
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
    y, colour = _y_axis(y_title, from_zero=True), colour_encoding("curve", list(curves))
    layers = [
        {
            "data": {"values": [{"ranks": ranks, "value": value} for ranks, value in ideal]},
            "mark": {"type": "line", **_DASHED, "strokeWidth": 1},
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
    spec = chart_spec(title, {"data": {"values": values}, "layer": layers})
    return Chart(title, spec, {name: tuple(each.estimate for _, each in curve) for name, curve in curves.items()})


def over_sizes(
    title: str,
    curves: Mapping[str, Sequence[tuple[int, Interval]]],
    y_title: str,
    factor: float,
    limit: tuple[str, float] | None = None,
) -> Chart:
    """Values by size in bytes, both on logarithmic axes, with their intervals. factor: from a value to the unit of
    `y_title`. limit: a name and a value, drawn as a dashed line."""
    values = [
        {"size": size, "value": factor * v.estimate, "low": factor * v.low, "high": factor * v.high, "curve": name}
        for name, curve in curves.items()
        for size, v in curve
    ]
    sizes = sorted({size for curve in curves.values() for size, _ in curve})
    label = (
        "datum.value >= 1048576 ? format(datum.value / 1048576, '~g') + ' MiB' : "
        "datum.value >= 1024 ? format(datum.value / 1024, '~g') + ' KiB' : format(datum.value, '~g') + ' B'"
    )
    x = {
        "field": "size",
        "type": "quantitative",
        "title": "size of the buffer",
        "axis": {"values": sizes, "labelExpr": label, "labelOverlap": True},
        "scale": {"type": "log", "base": 2, "nice": False, "padding": 16},
    }
    drawn = [factor * end for curve in curves.values() for _, v in curve for end in (v.low, v.high)]
    drawn += [factor * limit[1]] if limit else []
    y = {
        "field": "value",
        "type": "quantitative",
        "title": y_title,
        "axis": {"labelExpr": LABEL, "values": _log_ticks(min(drawn), max(drawn))},
        "scale": {"type": "log", "nice": False},
    }
    colour = colour_encoding("curve", list(curves), columnPadding=20)
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
        },
        {
            "mark": {"type": "line", "strokeWidth": 1.5, "point": {"size": 40, "filled": True}},
            "encoding": {"x": x, "y": y, "color": colour},
        },
    ]
    if limit is not None:
        name, value = limit
        line = {"data": {"values": [{"value": factor * value, "size": sizes[0], "name": name}]}}
        layers.append({**line, "mark": {"type": "rule", **_DASHED}, "encoding": {"y": y}})
        words = {"type": "text", "align": "left", "dy": 10, "color": INK, "fontSize": 11}
        layers.append({**line, "mark": words, "encoding": {"x": x, "y": y, "text": {"field": "name"}}})
    spec = chart_spec(title, {"data": {"values": values}, "layer": layers})
    series = {name: tuple(factor * each.estimate for _, each in curve) for name, curve in curves.items()}
    return Chart(title, spec, series)


def over_runs(title: str, rates: Sequence[float], changes: Mapping[int, bool], unit: str) -> Chart:
    """Rates of runs, oldest first. changes: the first run after each change, and whether the change is for the
    better."""
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
        "encoding": {"x": x, "y": _y_axis(unit, from_zero=False)},
    }
    marks: list[dict[str, Any]] = [
        {
            "data": {"values": [{"run": at + 0.5}]},
            "mark": {"type": "rule", "strokeWidth": 2, "color": GREEN if better else VERMILION},
            "encoding": {"x": x},
        }
        for at, better in changes.items()
    ]
    return Chart(title, chart_spec(title, {"layer": [*marks, line]}), {title: tuple(rates)})


def _row_chart(title: str, rows: Sequence[Row], layers: Sequence[dict[str, Any]]) -> Chart:
    values = [
        {
            "name": row.name,
            "value": row.figure.estimate,
            "low": row.figure.low,
            "high": row.figure.high,
            "told": row.text,
            "colour": row.colour,
        }
        for row in rows
    ]
    body = {
        "data": {"values": values},
        "encoding": {"y": _name_axis([row.name for row in rows])},
        "layer": list(layers),
        "height": {"step": _ROW},
    }
    return Chart(title, chart_spec(title, body), {row.name: (row.figure.estimate,) for row in rows})


_TEXTS = {
    "mark": {"type": "text", "align": "left", "dx": 6, "fontSize": 11, "color": INK},
    "encoding": {"x": {"field": "high", "type": "quantitative"}, "text": {"field": "told"}},
}
"""The text of a row, to the right of its interval."""


def _log_ticks(least: float, most: float) -> list[float]:
    """Powers of ten; also their doubles and fivefolds where there are few."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    steps = (1, 2, 5) if len(powers) < 4 else (1,)
    return [step * 10.0**power for power in powers for step in steps]


def _name_axis(names: Sequence[str]) -> dict[str, Any]:
    return {"field": "name", "type": "nominal", "title": None, "sort": list(names), "axis": {"labelLimit": 180}}


def _x_axis(rows: Sequence[Row], unit: str, least: float) -> dict[str, Any]:
    most = 1.02 * max([1.0 if least else 0.0, *(row.figure.high for row in rows)])
    words = min(0.6, _LETTER * max((len(row.text) + 1 for row in rows), default=0))
    scale = {"domain": [least, least + (most - least) / (1 - words)], "nice": False, "zero": False}
    return {"field": "value", "type": "quantitative", "title": unit, "axis": _AXIS, "scale": scale}


def _y_axis(title: str, from_zero: bool) -> dict[str, Any]:
    axis, scale = {"labelExpr": LABEL, "tickCount": 6}, {"zero": from_zero, "nice": True}
    return {"field": "value", "type": "quantitative", "title": title, "axis": axis, "scale": scale}


def _whiskers(colour: dict[str, Any]) -> dict[str, Any]:
    encoding = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}, "color": colour}
    return {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": encoding}
