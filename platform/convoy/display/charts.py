"""Vega-Lite charts that read on white and on dark.

Colours are of the palette of Okabe and Ito (2008), which people with any colour vision can distinguish.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convoy.display.page import Chart

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, GREY = (
    "#2E8BC9", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8A8F98",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
PARTS = {
    "data": BLUE,
    "forward": ORANGE,
    "backward": GREEN,
    "optimizer": PURPLE,
    "exchange": SKY,
    "communication": SKY,
    "other": GREY,
    "idle": GREY,
}
"""Parts of a step have these colours on all pages."""

Point = tuple[float, float]

MAX_POINTS = 300
"""The most points of a curve: more cannot be seen."""

INK = "#8A8F98"
_GRID = "#8A8F9833"
_HEIGHT = 220

# Vega's own SI format writes 0 as "0k" and 0.001 as "1m".
LABEL = (
    "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + 'M' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + 'k' : format(datum.value, '~g')"
)
_STEP_AXIS = {"labelExpr": LABEL, "tickMinStep": 1, "tickCount": 8}

_CONFIG: dict[str, Any] = {
    "font": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif",
    "view": {"stroke": None},
    "title": {"color": INK, "fontSize": 13, "fontWeight": 600, "anchor": "start", "offset": 12},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": 400,
        "domain": False,
        "ticks": False,
        "gridColor": _GRID,
        "labelPadding": 6,
        "titlePadding": 8,
    },
    "axisX": {"grid": False, "domain": True, "domainColor": _GRID},
    "legend": {
        "labelColor": INK,
        "labelFontSize": 11,
        "orient": "top-right",
        "direction": "horizontal",
        "title": None,
        "symbolType": "circle",
        "symbolStrokeWidth": 0,
        "symbolSize": 70,
        "offset": 0,
    },
}


@dataclass(frozen=True)
class Series:
    """Points (step, value) of one name; `dots` marks each point, for few of them."""

    name: str
    points: Sequence[Point]
    dots: bool = False


def curves(title: str, series: Sequence[Series], y_title: str, from_zero: bool = False, x_title: str = "step") -> Chart:
    """Curves over the steps, or over what `x_title` says. Points that are not finite are left out and marked by crosses
    at the top edge."""
    names = [s.name for s in series]
    colour = {
        "field": "series",
        "type": "nominal",
        "sort": names,
        "scale": {"domain": names, "range": list(PALETTE[: len(names)])},
        **({"legend": None} if len(names) == 1 else {}),
    }
    y = {
        "field": "value",
        "type": "quantitative",
        "title": y_title,
        "axis": {"labelExpr": LABEL, "tickCount": 6},
        "scale": {"zero": from_zero, "nice": True},
    }
    steps = [x for s in series for x, _ in s.points]
    x = {
        "field": "step",
        "type": "quantitative",
        "title": x_title,
        "axis": _STEP_AXIS if x_title == "step" else {"labelExpr": LABEL, "tickCount": 8},
        "scale": {"domain": [min(steps), max(max(steps), min(steps) + 1)]} if steps else {},
    }
    layers = [_curve_layer(s, x, y, colour) for s in series]
    lost = [p[0] for s in series for p in s.points if not math.isfinite(p[1])]
    if lost:
        layers.append(_crosses_layer(lost))
    spec = chart_spec(title, {"layer": layers})
    return Chart(title, spec, {s.name: tuple(v for _, v in downsample(s.points)) for s in series})


def stacked_bar(title: str, parts: Mapping[str, float], unit: str = "ms") -> Chart:
    """One bar of parts given in seconds, drawn in milliseconds or in seconds."""
    factor = 1000 if unit == "ms" else 1
    names = list(parts)
    values = [{"part": name, "order": i, "value": factor * parts[name]} for i, name in enumerate(names)]
    encoding = {
        "x": {
            "field": "value",
            "type": "quantitative",
            "title": unit,
            "stack": "zero",
            "axis": {"tickCount": 8},
            "scale": {"nice": False},
        },
        "color": colour_encoding("part", names),
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": [{"field": "part"}, {"field": "value", "type": "quantitative", "format": ".3~s", "title": unit}],
    }
    body = {"data": {"values": values}, "mark": {"type": "bar", "height": 34}, "encoding": encoding}
    return Chart(title, chart_spec(title, {**body, "height": 48}), {name: (parts[name],) for name in names})


def colour_encoding(field: str, names: Sequence[str], **options: Any) -> dict[str, Any]:
    """Encoding of a colour for each name, explained above the chart."""
    fixed = {PARTS[name] for name in names if name in PARTS}
    others = itertools.cycle([colour for colour in PALETTE if colour not in fixed] or PALETTE)
    return {
        "field": field,
        "type": "nominal",
        "sort": list(names),
        "legend": {"orient": "top", "offset": 4, **options},
        "scale": {"domain": list(names), "range": [PARTS.get(name) or next(others) for name in names]},
    }


def chart_spec(title: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with what all charts share; `body` has the rest, and may overrule it."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": title,
        "width": "container",
        "height": _HEIGHT,
        "background": "transparent",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": _CONFIG,
        **body,
    }


def _curve_layer(series: Series, x: dict[str, Any], y: dict[str, Any], colour: dict[str, Any]) -> dict[str, Any]:
    points = downsample(series.points)
    mark: dict[str, Any] = {"type": "line", "strokeWidth": 1.5}
    if series.dots or len(points) == 1:
        mark |= {"strokeWidth": 1, "strokeDash": [2, 3], "point": {"size": 50, "filled": True}}
    return {
        "data": {"values": [{"step": step, "value": value, "series": series.name} for step, value in points]},
        "mark": mark,
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "tooltip": [
                {"field": "series", "type": "nominal", "title": " "},
                {"field": "step", "type": "quantitative", **({} if x["title"] == "step" else {"title": x["title"]})},
                {"field": "value", "type": "quantitative", "format": ".4~g"},
            ],
        },
    }


def _crosses_layer(steps: Sequence[float]) -> dict[str, Any]:
    xs = [x for x, _ in downsample([(x, 0.0) for x in steps])]
    return {
        "data": {"values": [{"step": x, "what": "not finite"} for x in xs]},
        "mark": {"type": "point", "shape": "cross", "angle": 45, "filled": True, "size": 60, "color": VERMILION},
        "encoding": {
            "x": {"field": "step", "type": "quantitative"},
            "y": {"value": 4},
            "tooltip": [{"field": "what", "title": " "}, {"field": "step", "type": "quantitative"}],
        },
    }


def downsample(points: Sequence[Point]) -> list[Point]:
    """At most MAX_POINTS of the finite points, in order: first, last, and each bucket's lowest and highest.

    Buckets hold equal numbers of points, so every extreme of the curve survives at its own place.
    """
    points = [p for p in points if math.isfinite(p[1])]
    if len(points) <= MAX_POINTS:
        return points
    inner = points[1:-1]
    buckets = (MAX_POINTS - 2) // 2
    chosen = [points[0]]
    for b in range(buckets):
        bucket = inner[b * len(inner) // buckets : (b + 1) * len(inner) // buckets]
        low, high = min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])
        chosen.extend([low] if low is high else sorted((low, high), key=lambda p: p[0]))
    return [*chosen, points[-1]]
