"""Predicted times of schedules on links of known latency and bandwidth, and the choice of the fastest algorithm. Pure.

Each rank carries out one round after the other, and in each waits for its own messages alone, as the executor does. A
message starts when both of its ranks have come to its round, and takes

    latency + (messages - 1) · message seconds + bytes / bandwidth

where `messages` is the larger number of those that its source sends and its target receives in the round. Bytes over
bandwidth is that of the port which takes longest for all that it carries in the round: the link itself; the source's
sends, or the target's receives; between hosts also those of the whole host. So messages that share a port take as long
as one after the other, and messages of different rounds do not slow each other down. Adding takes no time.

Source: LogGP (Alexandrov et al. 1995).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from convoy.config.network import Operation
from convoy.network.collectives.algorithms import Algorithm, algorithms_for
from convoy.network.collectives.schedule import Round, Schedule


class Link(NamedTuple):
    """Properties of the path from one host to another, or within a host."""

    latency: float
    """Time of a small message, in seconds."""
    bytes_per_second: float
    message_seconds: float
    """Time that each further message adds when several are in flight, in seconds."""


Links = Mapping[tuple[int, int], Link]
"""Links by source and target host, each between one rank of either host. (h, h): between two ranks of host h."""


class _Message(NamedTuple):
    """A transfer, with its time on its link."""

    source: int
    target: int
    fixed_seconds: float
    """The part of the time that does not depend on the size."""
    seconds_per_byte: float
    """Seconds for each byte of a chunk."""


class TimedSchedule:
    """A schedule on given links, which predicts a time for each buffer size."""

    def __init__(self, operation: Operation, schedule: Schedule, links: Links, hosts: Sequence[int]) -> None:
        """hosts: number of each rank's host, by rank. Raises KeyError if `links` lacks one that the schedule uses."""
        self._ranks, self._whole = schedule.ranks, schedule.whole(operation)
        ports = _Ports(links, hosts)
        self._rounds = [ports.messages(each) for each in schedule.rounds]

    def seconds(self, size: int) -> float:
        """Time until the last rank is done, in seconds. size: bytes of the operation's whole buffer."""
        chunk, clocks = size / self._whole, [0.0] * self._ranks
        for messages in self._rounds:
            after = list(clocks)
            for source, target, fixed, per_byte in messages:
                end = max(clocks[source], clocks[target]) + fixed + chunk * per_byte
                after[source], after[target] = max(after[source], end), max(after[target], end)
            clocks = after
        return max(clocks)


_Port = tuple[str, int, int]
"""A resource that messages share: its kind, and up to two numbers of hosts or ranks (-1: none)."""


class _Ports:
    """The ports of ranks and hosts, and the messages that pass them."""

    def __init__(self, links: Links, hosts: Sequence[int]) -> None:
        self._links, self._hosts = links, hosts
        self._fastest: dict[tuple[str, int], float] = {}
        """Bandwidth of the fastest link from, and to, each host."""
        for (source, target), link in links.items():
            for end in (("from", source), ("to", target)) if source != target else ():
                self._fastest[end] = max(self._fastest.get(end, 0.0), link.bytes_per_second)

    def _link(self, transfer: tuple[int, int]) -> Link:
        source, target = transfer
        return self._links[self._hosts[source], self._hosts[target]]

    def _passed(self, transfer: tuple[int, int]) -> Iterator[tuple[_Port, float]]:
        """The ports that a message from one rank to another passes, with the bytes per second of each."""
        source, target = transfer
        rate, first, second = self._link(transfer).bytes_per_second, self._hosts[source], self._hosts[target]
        yield ("link", source, target), rate
        if first == second:
            yield ("from rank", source, -1), rate
            yield ("to rank", target, -1), rate
        else:  # one rank can fill the network of its host
            yield ("from host", first, -1), self._fastest["from", first]
            yield ("to host", second, -1), self._fastest["to", second]

    def messages(self, transfers: Round) -> list[_Message]:
        """The messages of a round. Transfers within a rank are left out, as they take no time."""
        sent = [((each.source, each.target), len(each.chunks)) for each in transfers if each.source != each.target]
        loads, sends, receives = Counter[_Port](), Counter[int](), Counter[int]()
        for (source, target), chunks in sent:
            sends[source] += 1
            receives[target] += 1
            for port, _ in self._passed((source, target)):
                loads[port] += chunks

        def message(source: int, target: int) -> _Message:
            link, further = self._link((source, target)), max(sends[source], receives[target]) - 1
            slowest = max(loads[port] / rate for port, rate in self._passed((source, target)))
            return _Message(source, target, link.latency + further * link.message_seconds, slowest)

        return [message(*ranks) for ranks, _ in sent]


def predict_times(
    operation: Operation, sizes: Sequence[int], links: Links, hosts: Sequence[int]
) -> dict[Algorithm, list[float]]:
    """Predicted seconds at each buffer size in bytes, for every algorithm that can carry out the operation.

    hosts: number of each rank's host, by rank. Hierarchical algorithms are left out if hosts have different numbers of
    ranks, or if the ranks of a host are not consecutive. Raises KeyError if a link is missing.
    """
    per_host, names = len(hosts) // len(set(hosts)), dict.fromkeys(hosts)
    if list(hosts) != [host for host in names for _ in range(per_host)]:
        per_host = 1
    times: dict[Algorithm, list[float]] = {}
    for algorithm in algorithms_for(operation, len(hosts), per_host):
        timed = TimedSchedule(operation, algorithm.schedule(operation, len(hosts), per_host), links, hosts)
        times[algorithm] = [timed.seconds(size) for size in sizes]
    return times


def choose_algorithms(
    operation: Operation, sizes: Iterable[int], links: Links, hosts: Sequence[int]
) -> dict[int, Algorithm]:
    """The algorithm with the shortest predicted time, by buffer size in bytes; of equally fast ones, the first in
    ALGORITHMS. links, hosts, errors: as in `predict_times`."""
    chosen = list(sizes)
    times = predict_times(operation, chosen, links, hosts)
    return {size: min(times, key=lambda each: times[each][i]) for i, size in enumerate(chosen)}
