"""The same page in a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text as RichText

from convoy.config.errors import printable
from convoy.display.formatting import significant, sparkline
from convoy.display.page import (
    Block,
    Callout,
    Chart,
    Code,
    Heading,
    Page,
    Progress,
    Table,
    Text,
    Timeline,
    Tone,
    Values,
)

_STYLES: dict[Tone, str] = {"plain": "", "good": "green", "warning": "yellow", "bad": "red"}
_WIDEST_SPARKLINE = 60


def show(page: Page, console: Console) -> None:
    """Print the page: numbers as a table, curves as sparklines."""
    for block in page.blocks:
        for part in _draw(_printable(block), console.width):
            console.print(part)


def _printable(value: Any) -> Any:
    """A part of a page with each of its texts as a terminal can show it: some come from workers, scripts and stores."""
    if isinstance(value, str):
        return printable(value, keep="\n\t")
    if isinstance(value, Mapping):
        return {_printable(key): _printable(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map(_printable, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _printable(getattr(value, each.name)) for each in fields(value)})
    return value


def _draw(block: Block, room: int) -> tuple[RenderableType, ...]:
    match block:
        case Heading(text, level):
            return ("", RichText(text, style="bold underline" if level == 1 else "bold"))
        case Text(text, quiet):
            return (RichText(text, style="dim" if quiet else ""),)
        case Callout(title, text, tone):
            return (Panel(RichText(text), title=RichText(title), title_align="left", border_style=_STYLES[tone]),)
        case Values():
            return ("", _values(block))
        case Progress():
            return (_progress(block),)
        case Table():
            return (_grid(block, room),)
        case Chart():
            return _chart(block)
        case Timeline():
            return (_timeline(block),)
        case Code(text):
            return (_code(text),)


def _code(text: str) -> RenderableType:
    from rich.syntax import Syntax  # Pygments takes its time, and few pages have code

    return Padding(Syntax(text, "text", theme="ansi_dark", background_color="default", word_wrap=True), (0, 2))


def _values(block: Values) -> RichTable:
    table = RichTable.grid(padding=(0, 2))
    for item in block.items:
        table.add_row(
            item.title, RichText(item.value, style=f"bold {_STYLES[item.tone]}"), RichText(item.subtitle, "dim")
        )
    return table


def _progress(block: Progress) -> RichTable:
    table = RichTable.grid(padding=(0, 2))
    bar = ProgressBar(total=max(block.total, 1), completed=block.done, width=40)
    table.add_row(block.label, bar, f"{block.done:,} of {block.total:,}", RichText(block.detail, "dim"))
    return table


def _grid(block: Table, room: int) -> RichTable:
    cells = [[header, *(row[i] for row in block.rows)] for i, header in enumerate(block.headers)]
    columns = [
        Column(header, width=width, overflow="fold", justify="right" if i in block.right else "left")
        for i, (header, width) in enumerate(zip(block.headers, _widths(cells, room), strict=True))
    ]
    table = RichTable(*columns, box=None, header_style="dim", pad_edge=False)
    for row in block.rows:
        table.add_row(*(RichText(cell, overflow="fold") for cell in row))  # a path is to be copied, so none is cut
    return table


def _widths(cells: Sequence[Sequence[str]], room: int) -> list[int | None]:
    """Widths of columns that are too wide together: the widest is narrowed, again and again, but none below its longest
    word. None: there is room, or words have to be folded. cells: by column, its heading first."""
    widths = [max(map(len, column)) for column in cells]
    least = [max(len(word) for cell in column for word in cell.split() or [""]) for column in cells]
    room -= 2 * (len(cells) - 1)
    if sum(widths) <= room or sum(least) > room:
        return [None] * len(cells)
    while sum(widths) > room:
        widths[max((i for i, w in enumerate(widths) if w > least[i]), key=widths.__getitem__)] -= 1
    return list(widths)


def _chart(block: Chart) -> tuple[RenderableType, ...]:
    lines = RichTable.grid(padding=(0, 2))
    for name, values in block.series.items():
        if len(values) == 1:
            lines.add_row(name, significant(values[0]))
        elif values:
            first, last = significant(values[0]), significant(values[-1])
            lines.add_row(name, f"{first} {sparkline(values, _WIDEST_SPARKLINE)} {last}")
    return (RichText(block.title, "bold"), lines)


def _timeline(block: Timeline) -> RichTable:
    table = RichTable.grid(padding=(0, 2))
    for entry in block.entries:
        table.add_row(RichText(entry.when, "dim"), RichText(entry.text, _STYLES[entry.tone]))
    return table
