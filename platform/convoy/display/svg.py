"""Charts as SVG, drawn by vl-convert, which has Vega in it: no browser, no network, and the same bytes each time."""

from typing import Any

from convoy.display.page import Chart

VEGA_LITE = "6.1"
"""Of those that vl-convert has; specs are of version 6."""

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""Words are measured where the chart is made, and drawn where it is read: vl-convert has the first of these in it, and
the others are as wide."""

_PADDING = {"left": 12, "right": 12, "top": 5, "bottom": 5}
"""For words that are wider where the chart is read."""


def draw(chart: Chart, width: int) -> str:
    """Of so many pixels."""
    import vl_convert  # takes a while, and most commands draw nothing

    config = {**chart.spec.get("config", {}), "font": FONT, "aria": False}  # the tables have it in words
    spec: dict[str, Any] = {**chart.spec, "width": width, "config": config, "padding": _PADDING}
    return vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
