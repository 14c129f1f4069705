"""The same page as one HTML file that needs nothing else: no script, no network. The same page gives the same bytes."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from importlib import resources
from itertools import groupby

from convoy.display import page as p

Draw = Callable[[p.Chart, int], str]
"""A chart as SVG of so many pixels' width."""

WIDE, HALF = 1080, 528
"""Pixels of a chart by itself, and of one of two."""

_SHORT = 16
"""Characters of a cell that is not broken."""


def to_html(page: p.Page, draw: Draw) -> str:
    """draw: of charts, such as `svg.draw`."""
    style = (resources.files(__package__) / "page.css").read_text()
    sections = list(_sections(page.blocks))
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
            *_contents([blocks[0] for _, blocks in sections]),
            *(_section(place, blocks, draw) for place, blocks in sections),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _sections(blocks: Sequence[p.Block]) -> Iterator[tuple[int, list[p.Block]]]:
    """Runs of blocks, each from a heading to before the next, by their number."""
    found: list[list[p.Block]] = [[]]
    for block in blocks:
        if isinstance(block, p.Heading) and found[-1]:
            found.append([])
        found[-1].append(block)
    return ((i, each) for i, each in enumerate(found) if each)


def _contents(firsts: Iterable[p.Block]) -> list[str]:
    """Links to the sections, where there are several."""
    links = [
        f'<a href="#{_anchor(i, first)}">{escape(first.text)}</a>'
        for i, first in enumerate(firsts)
        if isinstance(first, p.Heading) and first.level > 1
    ]
    return [f"<nav>{''.join(links)}</nav>"] if len(links) > 1 else []


def _anchor(place: int, heading: p.Heading) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.text.lower()).strip("-") + f"-{place}"


def _section(place: int, blocks: Sequence[p.Block], draw: Draw) -> str:
    first = blocks[0]
    name = f' id="{_anchor(place, first)}"' if isinstance(first, p.Heading) else ""
    parts = []
    for kind, blocks_of_kind in groupby(blocks, key=type):
        run = list(blocks_of_kind)
        parts += _charts(run, draw) if kind is p.Chart else [_DRAWERS[kind](block) for block in run]
    return "\n".join([f"<section{name}>", *parts, "</section>"])


def _charts(charts: Sequence[p.Block], draw: Draw) -> list[str]:
    """Side by side in pairs; one that is left over has the whole width."""
    found = []
    for i in range(0, len(charts), 2):
        pair = [chart for chart in charts[i : i + 2] if isinstance(chart, p.Chart)]
        width = WIDE if len(pair) == 1 else HALF
        figures = "".join(
            f'<figure role="img" aria-label="{escape(chart.title)}">{draw(chart, width)}</figure>' for chart in pair
        )
        found.append(f'<div class="charts{"" if len(pair) == 1 else " pair"}">{figures}</div>')
    return found


def _heading(block: p.Heading) -> str:
    return f"<h{block.level}>{escape(block.text)}</h{block.level}>"


def _text(block: p.Text) -> str:
    quiet = ' class="quiet"' if block.quiet else ""
    return f"<p{quiet}>{escape(block.text)}</p>"


def _callout(block: p.Callout) -> str:
    words = f"<strong>{escape(block.title)}</strong> {escape(block.text)}"
    return f'<aside class="{block.tone}">{words}</aside>'


def _values(block: p.Values) -> str:
    items = (
        f'<div class="{v.tone}"><dt>{escape(v.title)}</dt><dd>{escape(v.value)}</dd><dd>{escape(v.subtitle)}</dd></div>'
        for v in block.items
    )
    return f'<dl class="values">{"".join(items)}</dl>'


def _progress(block: p.Progress) -> str:
    bar = f'<progress max="{max(block.total, 1)}" value="{block.done}"></progress>'
    return f"<p>{escape(block.label)} {bar} {block.done:,} of {block.total:,} {escape(block.detail)}</p>"


def _table(block: p.Table) -> str:
    head = "".join(f"<th>{escape(header)}</th>" for header in block.headers)
    rows = ("".join(map(_cell, row)) for row in block.rows)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _cell(text: str) -> str:
    """Short text, and what stands in brackets, stays on one line."""
    kept = re.sub(r"\([^()]{,30}\)", r"<span>\g<0></span>", escape(text))
    return f'<td class="short">{kept}</td>' if len(text) <= _SHORT else f"<td>{kept}</td>"


def _timeline(block: p.Timeline) -> str:
    items = (f'<li class="{e.tone}"><time>{escape(e.when)}</time> {escape(e.text)}</li>' for e in block.entries)
    return f"<ul>{''.join(items)}</ul>"


def _code(block: p.Code) -> str:
    return f"<pre>{escape(block.text)}</pre>"


_DRAWERS: dict[type, Callable[..., str]] = {
    p.Heading: _heading,
    p.Text: _text,
    p.Callout: _callout,
    p.Values: _values,
    p.Progress: _progress,
    p.Table: _table,
    p.Timeline: _timeline,
    p.Code: _code,
}
