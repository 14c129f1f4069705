"""A page as plain data: what to show, in order. Cards and terminals each draw it in their way."""

from dataclasses import dataclass, field
from typing import Any, Literal

Tone = Literal["plain", "good", "warning", "bad"]


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the page's own."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text; `quiet` is for what explains rather than tells."""

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
