"""The same page as Markdown, for issues, notes and reviews."""

import re
from collections.abc import Sequence

from convoy.display import page as p
from convoy.display.formatting import count, significant, sparkline
from convoy.display.page import MARKS

_WIDEST_SPARKLINE = 40
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$#!])")


def to_markdown(page: p.Page) -> str:
    """Text of any origin is escaped; a chart is a table of its series."""
    return "\n\n".join(map(_block, page.blocks)) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    # What would begin a list or an underline is escaped too.
    return re.sub(r"^(?:[-+=]|\d+[.)])(?=[\s=-]|$)", lambda begin: f"{begin[0][:-1]}\\{begin[0][-1]}", line)


def fenced(text: str) -> str:
    """A block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _block(block: p.Block) -> str:
    match block:
        case p.Heading(text, level):
            return f"{'#' * level} {escaped(text)}"
        case p.Text(text, quiet):
            return f"*{escaped(text)}*" if quiet else escaped(text)
        case p.Callout(title, text, tone):
            return f"> **{MARKS[tone]} {escaped(title)}** {escaped(text)}"
        case p.Values(items):
            return _table(("", "", ""), [(v.title, v.value, v.subtitle) for v in items])
        case p.Progress(label, done, total, detail):
            return escaped(f"{label}: {done:,} of {total:,} {detail}".strip())
        case p.Table(headers, rows):
            return _table(headers, rows)
        case p.Chart(title, _, series):
            curves = [(name, _curve(values)) for name, values in series.items() if values]
            return f"**{escaped(title)}**\n\n{_table(('', ''), curves)}"
        case p.Timeline(entries):
            return "\n".join(f"- {escaped(e.when)} {MARKS[e.tone]} {escaped(e.text)}" for e in entries)
        case p.Code(text):
            return fenced(text)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(map(escaped, headers)), " | ".join("---" for _ in headers)]
    lines += [" | ".join(map(escaped, row)) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _curve(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _number(values[0])
    return f"{_number(values[0])} {sparkline(values, _WIDEST_SPARKLINE)} {_number(values[-1])}"


def _number(value: float) -> str:
    return significant(value) if abs(value) < 1000 else count(value)
