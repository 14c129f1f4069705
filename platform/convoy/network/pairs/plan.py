"""The plan of pairs: the messages that are timed between ranks to characterise every link. Pure.

The conventions are those of the OSU micro-benchmarks: latency is half of a round trip, bandwidth is measured with a
window of messages under way at once, for which the receiver answers with one short message when all have come.
"""

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

PairKind = Literal["half round trip", "one way", "both ways", "message rate", "bisection"]

PAIR_KINDS: tuple[PairKind, ...] = get_args(PairKind)

LATENCY_SIZES = (8, 2**10, 2**15, 2**18, 2**20, 2**22, 2**24)
"""Message sizes of round trips in bytes, enough to fit latency and bandwidth to their times."""

LEAST_LARGEST = 2**20
"""Round trips up to this message size in bytes are timed even on a slow network."""

WINDOW = 64
"""Number of messages in flight at once."""

WINDOW_SIZES = (2**16, 2**18, 2**20, 2**22)
"""Message sizes of a window in bytes, of which one is chosen."""

SMALL = 8
"""Message size in bytes at which the message rate is measured."""

OPERATION_SECONDS = 0.05
"""Approximate longest time of an operation on the slowest link; only the smallest size may exceed it."""


MOST_HOSTS_ALONE = 8
"""Up to so many hosts, each pair is measured while all other ranks wait. The pairs of 64 hosts would take hours, so of
more hosts as many pairs are measured at once as have no host in common."""


_NOBODY = -1


class PairTask(NamedTuple):
    """Messages that are timed together; all other ranks wait."""

    kind: PairKind
    pairs: tuple[tuple[int, int], ...]
    """Source and target ranks. No rank is in two pairs."""
    size: int
    """Message size in bytes."""
    messages: int = 1
    """Number of messages from each source to its target in one operation."""
    both: bool = False
    """Bidirectional: targets send as many messages back at the same time."""

    @property
    def link(self) -> str:
        """Source and target, `0-1`; of a bisection, its direction: `forth`, `back` or `both`."""
        source, target = self.pairs[0]
        if self.kind != "bisection":
            return f"{source}-{target}"
        return "both" if self.both else "forth" if source < target else "back"

    @property
    def bytes(self) -> int:
        """Bytes sent in one operation by all sources, and by the targets if both send; a round trip is one message."""
        return self.size * self.messages * len(self.pairs) * (2 if self.both else 1)

    def by_pair(self) -> "tuple[PairTask, ...]":
        """The pairs that are timed at once but each by itself, as tasks; a bisection is timed as a whole."""
        if self.kind == "bisection":
            return (self,)
        return tuple(self._replace(pairs=(pair,)) for pair in self.pairs)


class TaskTimes(NamedTuple):
    """Times of a task, the same on all ranks."""

    blocks: tuple[float, ...]
    """Seconds of one operation, by round: the median of the block, or half of it for round trips."""
    wrong: int
    """Bytes that differed from those sent, at all receivers, over two checks."""


def pairs_between(hosts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of ranks on different hosts, each host represented by its first rank. hosts: name of the host, by rank."""
    first = [hosts.index(host) for host in dict.fromkeys(hosts)]
    return list(itertools.combinations(first, 2))


def rounds_between(hosts: Sequence[str]) -> list[tuple[tuple[int, int], ...]]:
    """The pairs of `pairs_between` in rounds, each of pairs that are measured at once: see `MOST_HOSTS_ALONE`.

    Rounds of many hosts are those of a tournament by the circle method: one host keeps its place, and the others move
    on by one each round, so that every two meet once.
    """
    first = [hosts.index(host) for host in dict.fromkeys(hosts)]
    if len(first) <= MOST_HOSTS_ALONE:
        return [(pair,) for pair in pairs_between(hosts)]
    circle = first if len(first) % 2 == 0 else [*first, _NOBODY]  # whoever meets nobody waits
    rounds = []
    for _ in range(len(circle) - 1):
        met = zip(circle[: len(circle) // 2], reversed(circle), strict=False)
        rounds.append(tuple((min(one, other), max(one, other)) for one, other in met if _NOBODY not in (one, other)))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def rounds_of(hosts: Sequence[str]) -> list[tuple[tuple[int, int], ...]]:
    """All pairs between hosts, and within one, in rounds of those that are measured at once."""
    return rounds_between(hosts) + [(pair,) for pair in pairs_within(hosts)]


def pairs_within(hosts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of ranks on the first host that has several ranks. hosts: name of the host, by rank."""
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, of in enumerate(hosts) if of == host]
        if len(ranks) > 1:
            return list(itertools.combinations(ranks, 2))
    return []


def bisection_pairs(hosts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Each rank on the first half of the hosts, paired with the rank in the same place on a host of the second half.

    The middle one of an odd number of hosts takes no part. The ranks of a single host are halved instead. hosts: name
    of the host, by rank.
    """
    names = list(dict.fromkeys(hosts))
    members = [[rank for rank, of in enumerate(hosts) if of == name] for name in names]
    if len(members) == 1:
        members = [[rank] for rank in members[0]]
    half = len(members) // 2
    if half == 0:
        return ()
    return tuple(
        pair
        for first, second in zip(members[:half], members[-half:], strict=True)
        for pair in zip(first, second, strict=False)
    )


def window_probes(hosts: Sequence[str], largest: int) -> list[PairTask]:
    """One window of the smallest messages for every pair, whose times determine the message sizes of `pair_tasks`.

    hosts: name of the host, by rank. largest: the largest requested message size in bytes.
    """
    size = min(WINDOW_SIZES[0], largest)
    return [PairTask("one way", pairs, size, WINDOW) for pairs in rounds_of(hosts)]


def pair_tasks(hosts: Sequence[str], largest: int, bytes_per_second: float) -> list[PairTask]:
    """All tasks to time, round by round of pairs.

    hosts: name of the host, by rank. largest: the largest requested message size in bytes. bytes_per_second: the
    approximate bandwidth of the slowest link, which decides which sizes would take too long.
    """
    affordable = OPERATION_SECONDS * bytes_per_second
    sizes = [size for size in LATENCY_SIZES if size <= min(largest, max(LEAST_LARGEST, affordable))] or [largest]
    message = max(size for size in WINDOW_SIZES if size == WINDOW_SIZES[0] or size * WINDOW <= affordable)
    message, small = min(message, largest), min(SMALL, largest)
    tasks: list[PairTask] = []
    for there in rounds_of(hosts):
        back = tuple((second, first) for first, second in there)
        tasks += [PairTask("half round trip", there, size) for size in sizes]
        tasks += [PairTask("one way", way, message, WINDOW) for way in (there, back)]
        tasks.append(PairTask("both ways", there, message, WINDOW, both=True))
        tasks += [PairTask("message rate", way, small, WINDOW) for way in (there, back)]
    halves = bisection_pairs(hosts)
    if halves:
        turned = tuple((second, first) for first, second in halves)
        tasks += [PairTask("bisection", way, message, WINDOW) for way in (halves, turned)]
        tasks.append(PairTask("bisection", halves, message, WINDOW, both=True))
    return tasks
