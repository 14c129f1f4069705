"""Detection of slow ports and links from the bandwidths between all pairs of hosts. Pure.

A host's port that sends slowly makes every rate from that host low, and one that receives slowly every rate to it. A
single link that is slow makes one rate low while the others of both of its ends are not. Where hosts form groups, such
as racks, that reach each other slowly, hosts are compared within their group.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.stats.interval import FEWEST, interval

SLOW_SHARE = 0.75
"""A rate is slow if its whole interval is below this share of the median of the rates that it is compared with. Rates
of equal links differ by less; a link that negotiated the next lower speed has at most 0.6 of its rate."""

Direction = Literal["sends", "receives"]

Rates = Mapping[tuple[int, int], Sequence[float]]
"""Bytes per second by round, by source and target host."""


class SlowPort(BaseModel):
    """A host that is slow towards, or from, every other one."""

    model_config = ConfigDict(frozen=True)

    host: int
    direction: Direction
    share: float
    """Median of its rates, over that of the hosts between each other without it."""


class SlowLink(BaseModel):
    """A link that is slow although neither of its ends is."""

    model_config = ConfigDict(frozen=True)

    source: int
    target: int
    share: float
    """Its rate over the median of the other rates from its source and to its target."""


class SlowFinding(BaseModel):
    """The slow ports, links and paths among hosts."""

    model_config = ConfigDict(frozen=True)

    ports: tuple[SlowPort, ...] = ()
    links: tuple[SlowLink, ...] = ()
    """Slow links; for two hosts the slower direction, where a slow port cannot be distinguished from a slow path."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Groups of hosts between which every rate is slow, as over a trunk; empty: there are none."""
    hosts: int

    @property
    def is_slow(self) -> bool:
        """Whether any port, link or path is slow."""
        return bool(self.ports or self.links or self.groups)

    @property
    def has_slow_port_or_link(self) -> bool:
        """Whether a port or a link is slow; slow paths between groups of hosts may be by design."""
        return bool(self.ports or self.links)

    def slows(self, source: int, target: int) -> bool:
        """Whether a slow port or link slows what one host sends to another."""
        ends = {"sends": source, "receives": target}
        ports = any(port.host == ends[port.direction] for port in self.ports)
        return ports or any((link.source, link.target) == (source, target) for link in self.links)

    @property
    def summary(self) -> str:
        """The finding in one sentence, without a capital or a full stop."""
        if self.hosts == 2 and self.links:
            slow = self.links[0]
            return (
                f"{slow.source} → {slow.target} has {slow.share:.2f} of the rate of the other direction; two hosts do "
                f"not show whether host {slow.source} sends slowly, host {slow.target} receives slowly, or the path "
                f"between them is slow"
            )
        parts = [f"host {each.host} {each.direction} at {each.share:.2f} of the others' rate" for each in self.ports]
        if self.groups:
            names = " | ".join(", ".join(map(str, group)) for group in self.groups)
            parts.append(f"the path between these groups of hosts is slower than within them: {names}")
        parts += [f"{each.source} → {each.target} has {each.share:.2f} of the others' rate" for each in self.links]
        if not parts and self.hosts == 2:
            return "both directions are alike; whether both are slow cannot be seen between two hosts"
        return "; ".join(parts) or "no port and no link is slower than the others"


def find_slow(rates: Rates) -> SlowFinding:
    """Find ports and links that are slow in comparison with the others. rates: see `Rates`.

    If most links are slow, they are the norm, and nothing is found: what is compared are hosts with each other, never
    with a nominal rate.
    """
    hosts = sorted({host for link in rates for host in link})
    medians = {link: statistics.median(values) for link, values in rates.items() if values}
    groups = _slow_groups(hosts, medians)
    parts = [_find_within(group, rates) for group in groups or (tuple(hosts),)]
    return SlowFinding(
        ports=tuple(port for part in parts for port in part.ports),
        links=tuple(link for part in parts for link in part.links),
        groups=groups,
        hosts=len(hosts),
    )


def _find_within(hosts: Sequence[int], rates: Rates) -> SlowFinding:
    """The slow ports and links within a group of hosts, by the rates between them."""
    own = {link: values for link, values in rates.items() if values and link[0] in hosts and link[1] in hosts}
    medians = {link: statistics.median(values) for link, values in own.items()}
    candidates = SLOW_SHARE * max(medians.values(), default=0.0)  # others are slow in comparison with nothing
    highs = {link: rate if rate >= candidates else _high(own[link]) for link, rate in medians.items()}
    if len(hosts) == 2:
        return SlowFinding(links=_slower_direction(medians, highs), hosts=2)
    directions: tuple[Direction, ...] = ("sends", "receives")
    found = [_slow_port(host, direction, medians, highs) for host in hosts for direction in directions]
    ports = [port for port in found if port is not None]
    return SlowFinding(ports=tuple(ports), links=_slow_links(ports, medians, highs), hosts=len(hosts))


def _slow_groups(hosts: Sequence[int], medians: Mapping[tuple[int, int], float]) -> tuple[tuple[int, ...], ...]:
    """Groups that no fast rate connects, if each has several hosts; else none."""
    fast = SLOW_SHARE * max(medians.values(), default=0.0)
    group = {host: host for host in hosts}
    for (source, target), rate in medians.items():
        if rate >= fast:
            kept, joined = sorted((group[source], group[target]))
            group = {host: kept if of == joined else of for host, of in group.items()}
    groups = tuple(tuple(host for host in hosts if group[host] == name) for name in sorted({*group.values()}))
    return groups if len(groups) > 1 and min(map(len, groups)) > 1 else ()


def _high(values: Sequence[float]) -> float:
    """Upper end of the interval of the median; of too few values, the largest."""
    return interval(values).high if len(values) >= FEWEST else max(values)


def _slow_port(
    host: int, direction: Direction, medians: Mapping[tuple[int, int], float], highs: Mapping[tuple[int, int], float]
) -> SlowPort | None:
    """The port if every one of its rates is slow, in comparison with the links that the host has no part in."""
    end = 0 if direction == "sends" else 1
    own = [link for link in medians if link[end] == host]
    others = [rate for link, rate in medians.items() if host not in link]
    if not own or not others:
        return None
    usual = statistics.median_high(others)  # of two rates, one of which is slow itself, the other shows what is usual
    if max(highs[link] for link in own) >= SLOW_SHARE * usual:
        return None
    return SlowPort(host=host, direction=direction, share=statistics.median(medians[link] for link in own) / usual)


def _slow_links(
    ports: Sequence[SlowPort], medians: Mapping[tuple[int, int], float], highs: Mapping[tuple[int, int], float]
) -> tuple[SlowLink, ...]:
    """Slow links that no slow port explains."""
    sending = {port.host for port in ports if port.direction == "sends"}
    receiving = {port.host for port in ports if port.direction == "receives"}
    free = [link for link in medians if link[0] not in sending and link[1] not in receiving]
    found = []
    for source, target in free:
        ends = [medians[link] for link in free if (link[0] == source) != (link[1] == target)]
        if not ends:
            continue
        usual = statistics.median_high(ends)
        if highs[source, target] < SLOW_SHARE * usual:
            found.append(SlowLink(source=source, target=target, share=medians[source, target] / usual))
    return tuple(found)


def _slower_direction(
    medians: Mapping[tuple[int, int], float], highs: Mapping[tuple[int, int], float]
) -> tuple[SlowLink, ...]:
    """The slower of two directions, if they differ."""
    for source, target in medians:
        other = medians.get((target, source))
        if other is not None and highs[source, target] < SLOW_SHARE * other:
            return (SlowLink(source=source, target=target, share=medians[source, target] / other),)
    return ()
