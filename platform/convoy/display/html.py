"""The same page as one HTML file that needs nothing else: no script, no network. The same page gives the same bytes."""

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any

from convoy.display import page as p

Draw = Callable[[p.Chart, int], str]
"""Draws a chart as SVG of so many pixels' width."""

WIDE, HALF = 1080, 528
"""Pixels of a chart by itself, and of one of two."""

_SHORT = 16
"""Characters of a cell that is not broken."""


def to_html(page: p.Page, draw: Draw) -> str:
    """The page as HTML. draw: of charts, such as `draw_svg`."""
    style = (resources.files(__package__) / "page.css").read_text()
    sections = p.split_sections(page.blocks)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(page.title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            *_contents(blocks[0] for blocks in sections),
            *(_section(place, blocks, draw) for place, blocks in enumerate(sections)),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _contents(first_blocks: Iterable[p.Block]) -> list[str]:
    """Links to the sections, where there are several."""
    links = [
        f'<a href="#{_anchor(i, first)}">{escape(first.text)}</a>'
        for i, first in enumerate(first_blocks)
        if isinstance(first, p.Heading) and first.level > 1
    ]
    return [f"<nav>{''.join(links)}</nav>"] if len(links) > 1 else []


def _anchor(index: int, heading: p.Heading) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.text.lower()).strip("-") + f"-{index}"


def _section(index: int, blocks: Sequence[p.Block], draw: Draw) -> str:
    first, *rest = blocks
    parts: list[str] = []
    for kind, blocks_of_kind in groupby(rest, key=type):
        run = list(blocks_of_kind)
        parts += _charts(run, draw) if kind is p.Chart else map(_block, run)
    if not isinstance(first, p.Heading):
        return "\n".join(["<section>", _block(first), *parts, "</section>"])
    anchor = _anchor(index, first)
    if first.folded:  # a link to what is inside opens it
        begin = ["<section>", "<details>", f"<summary>{_block(first)}</summary>", f'<div id="{anchor}">']
        return "\n".join([*begin, *parts, "</div>", "</details>", "</section>"])
    return "\n".join([f'<section id="{anchor}">', _block(first), *parts, "</section>"])


def _charts(charts: Sequence[p.Block], draw: Draw) -> list[str]:
    """Side by side in pairs; one that is left over has the whole width."""
    rows = []
    for i in range(0, len(charts), 2):
        pair = [chart for chart in charts[i : i + 2] if isinstance(chart, p.Chart)]
        width = WIDE if len(pair) == 1 else HALF
        figures = "".join(
            f'<figure role="img" aria-label="{escape(chart.title)}">{draw(chart, width)}</figure>' for chart in pair
        )
        rows.append(f'<div class="charts{"" if len(pair) == 1 else " pair"}">{figures}</div>')
    return rows


def _block(block: p.Block) -> str:
    match block:
        case p.Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case p.Text(text, quiet):
            return f'<p class="quiet">{escape(text)}</p>' if quiet else f"<p>{escape(text)}</p>"
        case p.Callout(title, text, tone):
            return f'<aside class="{tone}"><strong>{escape(title)}</strong> {escape(text)}</aside>'
        case p.Values(items):
            return f'<dl class="values">{"".join(map(_value, items))}</dl>'
        case p.Progress(label, done, total, detail):
            bar = f'<progress max="{max(total, 1)}" value="{done}"></progress>'
            return f"<p>{escape(label)} {bar} {done:,} of {total:,} {escape(detail)}</p>"
        case p.Table(headers, rows):
            head = "".join(f"<th>{escape(header)}</th>" for header in headers)
            body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
            table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
            return f'<div class="table">{table}</div>'
        case p.Timeline(entries):
            lines = (f'<li class="{e.tone}"><time>{escape(e.when)}</time> {escape(e.text)}</li>' for e in entries)
            return f"<ul>{''.join(lines)}</ul>"
        case p.Code(text):
            return f"<pre>{escape(text)}</pre>"
    raise TypeError(f"{type(block).__name__}: charts are drawn in rows")


def _value(value: p.Value) -> str:
    title, figure, subtitle = map(escape, (value.title, value.value, value.subtitle))
    return f'<div class="{value.tone}"><dt>{title}</dt><dd>{figure}</dd><dd>{subtitle}</dd></div>'


def _cell(text: str) -> str:
    """Short text, and text in brackets, is not broken over lines."""
    unbroken = re.sub(r"\([^()]{,30}\)", r"<span>\g<0></span>", escape(text))
    return f'<td class="short">{unbroken}</td>' if len(text) <= _SHORT else f"<td>{unbroken}</td>"


VEGA_LITE = "6.1"
"""A version that vl-convert has; the charts' specs are of version 6."""

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""Words are measured where the chart is made, and drawn where it is read: vl-convert has the first of these in it, and
the others are as wide."""

_PADDING = {"left": 12, "right": 12, "top": 5, "bottom": 5}
"""Room for words that are wider where the chart is read."""


def draw_svg(chart: p.Chart, width: int) -> str:
    """The chart as SVG of `width` pixels, by vl-convert: without browser or network, and the same bytes each time."""
    import vl_convert  # takes a while, and most commands draw nothing

    config = {**chart.spec.get("config", {}), "font": FONT, "aria": False}  # the tables have it in words
    spec: dict[str, Any] = {**chart.spec, "width": width, "config": config, "padding": _PADDING}
    return vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
