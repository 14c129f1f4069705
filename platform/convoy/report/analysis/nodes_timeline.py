"""Moments that several nodes tell of, each at about the same time: one line for all of them."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from convoy.display import formatting
from convoy.job.events.types import AnyEvent, GangStopped, NoticeSources, StorageBad, StorageGood
from convoy.report.train_report import Moment

TOGETHER_SECONDS = 30.0
"""What comes so soon after the first node's word is the same story."""

_MOST_NAMED = 6

E = TypeVar("E", GangStopped, NoticeSources, StorageBad, StorageGood)


def node_moments(events: Sequence[AnyEvent]) -> list[Moment]:
    """In no order."""
    return [
        *_moments(events, GangStopped, lambda e: e.generation, _stopped),
        *_moments(events, NoticeSources, lambda e: (e.generation, *e.answering), _sources),
        *_moments(events, StorageBad, lambda e: e.tier, _bad),
        *_moments(events, StorageGood, lambda e: e.tier, _good),
    ]


def nodes_in_words(nodes: Iterable[int]) -> str:
    """`node 1`, `nodes 0 to 3`, `nodes 0, 2, 5` or `70 nodes`."""
    known = sorted(set(nodes))
    if len(known) == 1:
        return f"node {known[0]}"
    if len(known) > 2 and known[-1] - known[0] == len(known) - 1:
        return f"nodes {known[0]} to {known[-1]}"
    if len(known) > _MOST_NAMED:
        return f"{len(known)} nodes"
    return f"nodes {', '.join(map(str, known))}"


def _moments(
    events: Sequence[AnyEvent], kind: type[E], key: Callable[[E], Hashable], tell: Callable[[list[E]], Moment]
) -> list[Moment]:
    told: list[Moment] = []
    for group in _together([e for e in events if isinstance(e, kind)], key):
        told.append(tell(group))
    return told


def _together(events: Iterable[E], key: Callable[[E], Hashable]) -> list[list[E]]:
    """Groups of one key that no node is in twice, oldest first."""
    groups: list[list[E]] = []
    newest: dict[Hashable, list[E]] = {}
    for event in events:
        group = newest.get(key(event))
        if group is None or event.t - group[0].t > TOGETHER_SECONDS or any(e.node == event.node for e in group):
            group = newest[key(event)] = []
            groups.append(group)
        group.append(event)
    return groups


def _stopped(group: list[GangStopped]) -> Moment:
    slowest = max(e.seconds for e in group)
    text = f"No worker is left on {nodes_in_words(e.node for e in group)}, within {formatting.duration(slowest)}"
    return Moment(t=group[-1].t, text=text)


def _sources(group: list[NoticeSources]) -> Moment:
    who, answering = nodes_in_words(e.node for e in group), group[0].answering
    if not answering:
        return Moment(t=group[0].t, text=f"No notice source on {who}")
    return Moment(t=group[0].t, text=f"Notices on {who} come from {', '.join(answering)}")


def _bad(group: list[StorageBad]) -> Moment:
    who = nodes_in_words(e.node for e in group)
    return Moment(t=group[0].t, text=f"Storage {group[0].tier} on {who}: {group[0].problem}", tone="warning")


def _good(group: list[StorageGood]) -> Moment:
    who, longest = nodes_in_words(e.node for e in group), max(e.seconds for e in group)
    text = f"Storage {group[0].tier} is well again on {who}, after {formatting.duration(longest)}"
    return Moment(t=group[-1].t, text=text, tone="good")
