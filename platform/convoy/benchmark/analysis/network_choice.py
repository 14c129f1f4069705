"""The algorithm that pairs alone would choose, and its time compared with the fastest that was measured. Pure."""

import statistics
from collections.abc import Mapping, Sequence

from convoy.benchmark.results.case import FrozenResult
from convoy.benchmark.results.pairs import PairsReport
from convoy.config.network import Operation
from convoy.network.collectives.predicted import Link, Links, choose_algorithms


class Choice(FrozenResult):
    """The algorithm that pairs alone would choose at a size in bytes."""

    size: int
    name: str
    over_best: float
    """Its median time over that of the fastest of Convoy's algorithms there."""


def links_of(report: PairsReport, ranks: int) -> tuple[Links, tuple[int, ...]] | None:
    """Links by pair of hosts, and the host of each rank; None: a pair of hosts was not measured, ranks of a host are
    not consecutive, or hosts have different numbers of ranks."""
    hosts = sorted({host for pair in report.pairs for host in pair.hosts})
    links = dict[tuple[int, int], Link]()
    for pair in report.pairs:
        for way in (pair.hosts, pair.hosts[::-1]):
            rate = pair.forth if way == pair.hosts else pair.back
            messages = pair.messages_forth if way == pair.hosts else pair.messages_back
            if pair.latency is not None and rate is not None and messages is not None:
                links[way] = Link(pair.latency.estimate, rate.estimate, 1 / messages.estimate)
    if not links:
        return None
    for host in hosts:  # where nothing was measured within a host, its ranks are no farther apart than hosts are
        links.setdefault((host, host), _quickest(links))
    complete = all((a, b) in links for a in hosts for b in hosts)
    of_ranks = tuple(rank * len(hosts) // ranks for rank in range(ranks))
    follow = all(max(pair.first, pair.second) < ranks for pair in report.pairs) and all(
        (of_ranks[pair.first], of_ranks[pair.second]) == pair.hosts for pair in report.pairs
    )
    return (links, of_ranks) if complete and follow and ranks % len(hosts) == 0 else None


def _quickest(links: Links) -> Link:
    return Link(
        min(each.latency for each in links.values()),
        max(each.bytes_per_second for each in links.values()),
        min(each.message_seconds for each in links.values()),
    )


def choices(
    operation: Operation, times: Mapping[str, Mapping[int, Sequence[float]]], report: PairsReport, ranks: int
) -> tuple[Choice, ...]:
    """Choices by size. times: seconds of the blocks by algorithm and size in bytes. Empty: `links_of` has no links."""
    found = links_of(report, ranks)
    if found is None:
        return ()
    links, hosts = found
    medians = {name: {size: statistics.median(each) for size, each in of.items()} for name, of in times.items()}
    sizes = sorted({size for of in medians.values() for size in of})
    chosen = choose_algorithms(operation, sizes, links, hosts)
    return tuple(
        Choice(
            size=size,
            name=chosen[size].name,
            over_best=medians[chosen[size].name][size] / min(of[size] for of in medians.values() if size in of),
        )
        for size in sizes
        if size in medians.get(chosen[size].name, {})
    )
