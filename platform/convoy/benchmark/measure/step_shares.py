"""Which part of a step each moment of it belongs to. Pure: plain intervals of any one clock; imports no torch.

What computes decides first: an operator on a CPU, a kernel on a GPU, each for the part of the step that started it.
Communication is what is left of the collectives, which nothing that computes hides; then the wait for a batch; what
is left then is idle: Python between operators, launches that come too late, waiting for a core or another rank.
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
    """What computed, by the part that started it: of forward, backward, optimizer and data."""
    collectives: Sequence[Span] = ()
    """From the start of each to its end, whether or not anybody waits for it."""
    waits: Sequence[Span] = ()
    """In which the host waited for its batch, or made it."""


@dataclass(frozen=True)
class Shares:
    """Of the time between a timeline's ends."""

    parts: dict[SharedPart, float]
    """Each part's, all of them together 1."""
    hidden: float
    """In which a collective was under way while something computed: no part of its own."""


def shares(timeline: Timeline) -> Shares:
    """Each moment counts once. Raises ValueError for a timeline of no length."""
    total = timeline.end - timeline.begin
    if total <= 0:
        raise ValueError(f"a timeline from {timeline.begin} to {timeline.end} has no shares")
    window = [Span(timeline.begin, timeline.end)]
    found: dict[SharedPart, float] = dict.fromkeys(SHARES, 0.0)
    left = window
    for part, spans in _claims(timeline):
        rest = without(left, merged(spans))
        found[part] += max(0.0, length(left) - length(rest)) / total
        left = rest
    found["idle"] = length(left) / total
    under_way = length(window) - length(without(window, merged(timeline.collectives)))
    return Shares(found, max(0.0, under_way / total - found["communication"]))


def _claims(timeline: Timeline) -> Iterable[tuple[SharedPart, Sequence[Span]]]:
    """In the order in which they take what is left of the time."""
    for part in SHARES:
        yield part, timeline.work.get(part, ())
    yield "communication", timeline.collectives
    yield "data", timeline.waits


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same moments as spans that do not touch, in order."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.begin <= found[-1].end:
            found[-1] = Span(found[-1].begin, max(found[-1].end, span.end))
        elif span.end > span.begin:
            found.append(span)
    return found


def without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """What is left of `spans`; both as `merged` gives them."""
    found: list[Span] = []
    at = 0
    for begin, end in spans:
        while at < len(taken) and taken[at].end <= begin:
            at += 1
        here = at
        while here < len(taken) and taken[here].begin < end:
            if taken[here].begin > begin:
                found.append(Span(begin, taken[here].begin))
            begin = max(begin, taken[here].end)
            here += 1
        if begin < end:
            found.append(Span(begin, end))
    return found


def length(spans: Iterable[Span]) -> float:
    """Of all of them together."""
    return sum(end - begin for begin, end in spans)
