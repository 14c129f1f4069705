"""How long a schedule takes on links of known latency and bandwidth, and which algorithm is best on them. Pure.

A message takes the latency of its link and its bytes over the link's bandwidth. What a host sends in a round shares its
port, and so does what it receives; each further message of a rank costs the time in which the link takes one more small
message. A rank begins a round when it has ended the one before and whoever sends to it has too. Source: LogGP
(Alexandrov et al. 1995).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from convoy.config.network import Operation
from convoy.network.collectives.algorithms import Algorithm, algorithms_for
from convoy.network.collectives.schedule import Round, Schedule


class Link(NamedTuple):
    """From one host to another, or within one."""

    latency: float
    """Seconds of a small message."""
    bytes_per_second: float
    message_seconds: float
    """Of each further message, where several are under way."""


Links = Mapping[tuple[int, int], Link]
"""By source and target host."""


def schedule_seconds(schedule: Schedule, operation: Operation, size: int, links: Links, hosts: Sequence[int]) -> float:
    """Seconds until the last rank has ended. size: bytes of the buffer. hosts: number of each rank's host, by rank."""
    chunks = schedule.chunks // 2 if operation == "all_to_all" else schedule.chunks
    clocks = [0.0] * schedule.ranks
    for each in schedule.rounds:
        clocks = _after_round(each, size / chunks, clocks, links, hosts)
    return max(clocks)


def _after_round(
    transfers: Round, chunk_bytes: float, before: Sequence[float], links: Links, hosts: Sequence[int]
) -> list[float]:
    """When each rank has ended the round."""
    sent = [each for each in transfers if each.source != each.target]
    leaving, coming = dict.fromkeys(hosts, 0.0), dict.fromkeys(hosts, 0.0)
    latency, messages = [0.0] * len(hosts), [0.0] * len(hosts)
    begins, counts = list(before), [0] * len(hosts)
    for each in sent:
        link = links[hosts[each.source], hosts[each.target]]
        seconds = len(each.chunks) * chunk_bytes / link.bytes_per_second
        leaving[hosts[each.source]] += seconds
        coming[hosts[each.target]] += seconds
        begins[each.target] = max(begins[each.target], before[each.source])
        for rank in (each.source, each.target):
            latency[rank] = max(latency[rank], link.latency)
            messages[rank] += link.message_seconds
            counts[rank] += 1
    ends = list(before)
    for rank, host in enumerate(hosts):
        if counts[rank]:
            further = messages[rank] * (1 - 1 / counts[rank])
            ends[rank] = begins[rank] + latency[rank] + further + max(leaving[host], coming[host])
    return ends


def choose_algorithms(
    operation: Operation, sizes: Iterable[int], links: Links, hosts: Sequence[int]
) -> dict[int, Algorithm]:
    """The algorithm with the least predicted time, by size of the buffer in bytes. hosts: as `schedule_seconds`."""
    per_host = max(hosts.count(host) for host in hosts)
    allowed = algorithms_for(operation, len(hosts), per_host)
    schedules = [(each, each.schedule(operation, len(hosts), per_host)) for each in allowed]

    def best(size: int) -> Algorithm:
        return min(schedules, key=lambda pair: schedule_seconds(pair[1], operation, size, links, hosts))[0]

    return {size: best(size) for size in sizes}
