"""A page as plain data: what to show, in order. Cards and terminals each draw it in their way."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

Tone = Literal["plain", "good", "warning", "bad"]

MARKS: dict[Tone, str] = {"plain": "○", "good": "●", "warning": "▲", "bad": "✕"}
"""A tone where text has no colour."""


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the page's own. What follows, up to the next heading, is its section."""

    text: str
    level: int = 2
    folded: bool = False
    """The section is closed until the reader opens it, where a reader can: in a card and in HTML."""


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text; `quiet` is for explanations."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Callout:
    """What must be read first."""

    title: str
    text: str
    tone: Tone = "bad"


@dataclass(frozen=True)
class Value:
    """One headline number."""

    title: str
    value: str
    subtitle: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class Values:
    """Headline numbers side by side."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class Progress:
    """How much of a whole is done."""

    label: str
    done: int
    total: int
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """Cells are text as people read it."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    """Indices of the columns that a terminal aligns right."""


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite spec, and its series by name for where there are no pictures."""

    title: str
    spec: dict[str, Any]
    series: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A line of a timeline: when, as text, and what."""

    when: str
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Timeline:
    """Entries, newest first."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Code:
    """Text in a fixed-width font, shown as it is."""

    text: str


Block = Heading | Text | Callout | Values | Progress | Table | Chart | Timeline | Code


@dataclass(frozen=True)
class Page:
    """Blocks from top to bottom."""

    title: str
    blocks: tuple[Block, ...]


def fold_sections(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """The blocks with all their sections closed."""
    return tuple(replace(block, folded=True) if isinstance(block, Heading) else block for block in blocks)


def split_sections(blocks: Iterable[Block]) -> list[list[Block]]:
    """The blocks by section, each from its heading on; first what comes before any heading."""
    runs: list[list[Block]] = [[]]
    for block in blocks:
        if isinstance(block, Heading) and runs[-1]:
            runs.append([])
        runs[-1].append(block)
    return [run for run in runs if run]


Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table: what it shows of each row, and how."""

    title: str
    value: Callable[[Row], Any]
    """Returns None where the row has no such value."""
    format: Callable[[Any], str] = str
    missing: str = ""
    """The cell of a value that is None."""
    right: bool = False

    def cell(self, row: Row) -> str:
        value = self.value(row)
        return self.missing if value is None else self.format(value)


def columns(rows: Iterable[Row], *of: Column[Row], drop_empty: bool = False) -> Table:
    """A table with a line for each row. drop_empty: leaves out the columns whose cells are all empty."""
    rows = tuple(rows)
    cells = [(column, [column.cell(row) for row in rows]) for column in of]
    used = [(column, texts) for column, texts in cells if any(texts) or not drop_empty]
    right = tuple(i for i, (column, _) in enumerate(used) if column.right)
    lines = tuple(zip(*(texts for _, texts in used), strict=True))
    return Table(tuple(column.title for column, _ in used), lines, right)


def transposed(table: Table) -> Table:
    """The table turned on its side: each column becomes a row, and the first column the headers."""
    corner, *titles = table.headers
    first, *others = zip(*table.rows, strict=True)
    return Table((corner, *first), tuple((title, *cells) for title, cells in zip(titles, others, strict=True)))
