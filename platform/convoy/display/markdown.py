"""The same page as Markdown, for issues, notes and reviews."""

import re
from collections.abc import Callable

from convoy.display import formatting
from convoy.display import page as p
from convoy.display.terminal import sparkline

_WIDEST_SPARKLINE = 40
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$#!])")
_MARKS: dict[p.Tone, str] = {"plain": "○", "good": "●", "warning": "▲", "bad": "✕"}


def to_markdown(page: p.Page) -> str:
    """Text of any origin is escaped; a chart is a table of its series."""
    return "\n\n".join(_DRAWERS[type(block)](block) for block in page.blocks) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return re.sub(r"^([-+=]|\d+[.)])(?=[\s=-]|$)", _kept, line)


def fenced(text: str) -> str:
    """A block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _kept(match: re.Match[str]) -> str:
    """What would begin a list or an underline."""
    word = match.group(1)
    return f"{word[:-1]}\\{word[-1]}"


def _heading(block: p.Heading) -> str:
    return f"{'#' * block.level} {escaped(block.text)}"


def _text(block: p.Text) -> str:
    return f"*{escaped(block.text)}*" if block.quiet else escaped(block.text)


def _callout(block: p.Callout) -> str:
    return f"> **{_MARKS[block.tone]} {escaped(block.title)}** {escaped(block.text)}"


def _values(block: p.Values) -> str:
    rows = tuple((v.title, v.value, v.subtitle) for v in block.items)
    return _table(p.Table(("", "", ""), rows))


def _progress(block: p.Progress) -> str:
    return escaped(f"{block.label}: {block.done:,} of {block.total:,} {block.detail}".strip())


def _table(block: p.Table) -> str:
    lines = [" | ".join(map(escaped, block.headers)), " | ".join("---" for _ in block.headers)]
    lines += [" | ".join(map(escaped, row)) for row in block.rows]
    return "\n".join(f"| {line} |" for line in lines)


def _chart(block: p.Chart) -> str:
    rows = []
    for name, values in block.series.items():
        if values:
            many = f"{_number(values[0])} {sparkline(values, _WIDEST_SPARKLINE)} {_number(values[-1])}"
            rows.append((name, many if len(values) > 1 else _number(values[0])))
    return f"**{escaped(block.title)}**\n\n{_table(p.Table(('', ''), tuple(rows)))}"


def _number(value: float) -> str:
    return formatting.significant(value) if abs(value) < 1000 else formatting.count(value)


def _timeline(block: p.Timeline) -> str:
    return "\n".join(f"- {escaped(e.when)} {_MARKS[e.tone]} {escaped(e.text)}" for e in block.entries)


def _code(block: p.Code) -> str:
    return fenced(block.text)


_DRAWERS: dict[type, Callable[..., str]] = {
    p.Heading: _heading,
    p.Text: _text,
    p.Callout: _callout,
    p.Values: _values,
    p.Progress: _progress,
    p.Table: _table,
    p.Chart: _chart,
    p.Timeline: _timeline,
    p.Code: _code,
}
