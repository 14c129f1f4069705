"""The part of a step that each moment of it belongs to. Pure: plain intervals of any one clock; imports no torch.

Computation comes first: an operator on a CPU, a kernel on a GPU, each counts for the part of the step that started it.
Communication is the rest of the collectives, which no computation hides; next comes the wait for a batch. All else is
idle: Python between operators, launches that come too late, waiting for a core or another rank.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from convoy.benchmark.results.values import SHARES, SharedPart


class Span(NamedTuple):
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What one rank did between two moments; spans may overlap, and reach beyond."""

    begin: float
    end: float
    work: Mapping[SharedPart, Sequence[Span]] = field(default_factory=dict)
    """Computation, by the part that started it: forward, backward, optimizer or data."""
    collectives: Sequence[Span] = ()
    """From the start of each to its end, whether or not the host waits for it."""
    waits: Sequence[Span] = ()
    """Spans in which the host waited for its batch, or made it."""


@dataclass(frozen=True)
class Shares:
    """Shares of the time between a timeline's ends."""

    parts: dict[SharedPart, float]
    """They add up to 1."""
    hidden: float
    """Share in which a collective was under way during computation; it is in other parts too."""


def shares(timeline: Timeline) -> Shares:
    """Each moment counts once. Raises ValueError for a timeline of no length."""
    total = timeline.end - timeline.begin
    if total <= 0:
        raise ValueError(f"a timeline from {timeline.begin} to {timeline.end} has no shares")
    window = [Span(timeline.begin, timeline.end)]
    parts: dict[SharedPart, float] = dict.fromkeys(SHARES, 0.0)
    rest = window
    computed = ((part, timeline.work.get(part, ())) for part in SHARES)
    for part, spans in (*computed, ("communication", timeline.collectives), ("data", timeline.waits)):
        before, rest = rest, without(rest, merged(spans))
        parts[part] += max(0.0, length(before) - length(rest)) / total
    parts["idle"] = length(rest) / total
    under_way = length(window) - length(without(window, merged(timeline.collectives)))
    return Shares(parts, max(0.0, under_way / total - parts["communication"]))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same moments as spans that do not touch, in order."""
    apart: list[Span] = []
    for span in sorted(spans):
        if apart and span.begin <= apart[-1].end:
            apart[-1] = Span(apart[-1].begin, max(apart[-1].end, span.end))
        elif span.end > span.begin:
            apart.append(span)
    return apart


def without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """`spans` less `taken`; both as `merged` returns them."""
    rest: list[Span] = []
    at = 0
    for begin, end in spans:
        while at < len(taken) and taken[at].end <= begin:
            at += 1
        here = at
        while here < len(taken) and taken[here].begin < end:
            if taken[here].begin > begin:
                rest.append(Span(begin, taken[here].begin))
            begin = max(begin, taken[here].end)
            here += 1
        if begin < end:
            rest.append(Span(begin, end))
    return rest


def length(spans: Iterable[Span]) -> float:
    """Total length of spans that do not overlap."""
    return sum(end - begin for begin, end in spans)
