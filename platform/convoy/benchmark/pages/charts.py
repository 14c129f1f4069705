"""Charts of cases side by side: rates, ratios and memory as rows, with their intervals, and the parts of steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convoy.benchmark.analysis.model import Verdict
from convoy.display.charts import BLUE, GREEN, GREY, INK, LABEL, PALETTE, VERMILION, framed
from convoy.display.page import Chart
from convoy.stats.interval import Interval

COLOURS: dict[Verdict, str] = {"more": GREEN, "less": VERMILION, "no difference": GREY}

_ROW = 26
"""Pixels of a row with the gap to the next."""

_LETTER = 0.018
"""Of the width of a chart in half a page."""


@dataclass(frozen=True)
class Row:
    """A name, where its value lies, how it is told, and its colour."""

    name: str
    figure: Interval
    told: str
    colour: str = BLUE


def bars(title: str, rows: Sequence[Row], unit: str) -> Chart:
    """A bar from zero for each, with its interval."""
    bar = {
        "mark": {"type": "bar", "height": {"band": 0.6}},
        "encoding": {"x": _x(rows, unit, 0.0), "color": _COLOUR, "tooltip": _TOOLTIP},
    }
    return _chart(title, rows, [bar, _whiskers({"value": INK}), _words()])


def ratios(title: str, rows: Sequence[Row], unit: str) -> Chart:
    """A point with its interval for each, beside a line at 1."""
    line = {
        "data": {"values": [{"at": 1}]},
        "mark": {"type": "rule", "color": INK, "strokeDash": [4, 3]},
        "encoding": {"x": {"field": "at", "type": "quantitative"}, "y": None},
    }
    least = 0.98 * min([1.0, *(row.figure.low for row in rows)])
    point = {
        "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
        "encoding": {"x": _x(rows, unit, least), "color": _COLOUR, "tooltip": _TOOLTIP},
    }
    return _chart(title, rows, [line, _whiskers(_COLOUR), point, _words()])


def stacked_bars(title: str, parts: Mapping[str, Mapping[str, float]], unit: str = "ms", factor: float = 1000) -> Chart:
    """For each case a bar of parts, drawn in `unit`, which is a part's value times `factor`: of seconds by default."""
    names = list(dict.fromkeys(name for of_case in parts.values() for name in of_case))
    values = [
        {"name": case, "part": name, "order": names.index(name), "value": factor * value}
        for case, of_case in parts.items()
        for name, value in of_case.items()
    ]
    encoding = {
        "y": _names(list(parts)),
        "x": {"field": "value", "type": "quantitative", "title": unit, "stack": "zero", "axis": _AXIS},
        "color": {
            "field": "part",
            "type": "nominal",
            "sort": names,
            "legend": {"orient": "top", "offset": 4, "columnPadding": 16},
            "scale": {"domain": names, "range": [PALETTE[i % len(PALETTE)] for i in range(len(names))]},
        },
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": [
            {"field": "name", "title": " "},
            {"field": "part"},
            {"field": "value", "type": "quantitative", "format": ".3~s", "title": unit},
        ],
    }
    mark = {"type": "bar", "height": {"band": 0.7}}
    body = {"data": {"values": values}, "mark": mark, "encoding": encoding, "height": {"step": _ROW}}
    return Chart(title, framed(title, body), {case: (sum(of_case.values()),) for case, of_case in parts.items()})


_AXIS = {"labelExpr": LABEL, "tickCount": 6, "grid": True, "domain": False}
_COLOUR = {"field": "colour", "type": "nominal", "scale": None}
_TOOLTIP = [{"field": "name", "title": " "}, {"field": "told", "title": " "}]


def _chart(title: str, rows: Sequence[Row], layers: Sequence[dict[str, Any]]) -> Chart:
    values = [
        {
            "name": row.name,
            "value": row.figure.estimate,
            "low": row.figure.low,
            "high": row.figure.high,
            "told": row.told,
            "colour": row.colour,
        }
        for row in rows
    ]
    body = {
        "data": {"values": values},
        "encoding": {"y": _names([row.name for row in rows])},
        "layer": list(layers),
        "height": {"step": _ROW},
    }
    return Chart(title, framed(title, body), {row.name: (row.figure.estimate,) for row in rows})


def _names(names: Sequence[str]) -> dict[str, Any]:
    return {"field": "name", "type": "nominal", "title": None, "sort": list(names), "axis": {"labelLimit": 180}}


def _x(rows: Sequence[Row], unit: str, least: float) -> dict[str, Any]:
    most = 1.02 * max([1.0 if least else 0.0, *(row.figure.high for row in rows)])
    words = min(0.6, _LETTER * max((len(row.told) + 1 for row in rows), default=0))
    scale = {"domain": [least, least + (most - least) / (1 - words)], "nice": False, "zero": False}
    return {"field": "value", "type": "quantitative", "title": unit, "axis": _AXIS, "scale": scale}


def _whiskers(colour: dict[str, Any]) -> dict[str, Any]:
    encoding = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}, "color": colour}
    return {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": encoding}


def _words() -> dict[str, Any]:
    """What is told of a row, right of its interval."""
    return {
        "mark": {"type": "text", "align": "left", "dx": 6, "fontSize": 11, "color": INK},
        "encoding": {"x": {"field": "high", "type": "quantitative"}, "text": {"field": "told"}},
    }
