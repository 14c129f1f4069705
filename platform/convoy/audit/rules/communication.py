"""Collective operations and links: bandwidths against size and time, each other, and what machines have. Pure.

Bandwidth of the algorithm is size over time; of the bus it is that times 2(n - 1)/n for an all-reduce and (n - 1)/n for
an all-gather, a reduce-scatter and an all-to-all (nccl-tests, PERFORMANCE.md).
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convoy.audit import machines
from convoy.audit.claims import CollectiveClaims, Figures, LinkClaims
from convoy.audit.facts import Run, machine_of
from convoy.audit.finding_text import hint
from convoy.audit.findings import Finding, claim_line
from convoy.audit.quantities.format import gigabytes_per_second as gbs
from convoy.audit.quantities.number import Figure, Span, exactly, read_number
from convoy.catalog.instances import Instance
from convoy.config.errors import ConfigError, nearest

_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Times that an operation moves (n - 1)/n of the data."""

OPERATIONS = (*_PASSES, "broadcast", "reduce", "send_recv")

_MOST_IDLE = 4.0
"""Over a bandwidth that was measured at most is what the links have, where it is taken for bits."""

_KEYS = ("algorithm_bandwidth", "bus_bandwidth", "bandwidth")

_INSIDE = re.compile(r"intra|nvlink|nvswitch|within|inside", re.IGNORECASE)
_BETWEEN = re.compile(r"inter|between|network|efa|nic|infiniband|ethernet|rdma", re.IGNORECASE)


class Limit(NamedTuple):
    """The bandwidth that a link has."""

    span: Span
    why: str


class Reading(NamedTuple):
    """One of the bandwidths that a number may be."""

    words: str
    factor: float
    """Over the bandwidth of the algorithm."""


class Collective(NamedTuple):
    """A collective, and what it ran on."""

    scope: str
    claims: CollectiveClaims
    operation: str
    machine: Instance | None
    nodes: int
    """0: unknown."""
    ranks: tuple[int, ...]
    """As many readings as there are."""

    def readings(self, key: str) -> list[Reading]:
        """What the number of a key may be."""
        buses = [Reading(f"of the bus for {n} ranks", bus_factor(self.operation, n)) for n in self.ranks]
        if key == "algorithm_bandwidth":
            return [Reading("of the algorithm", 1.0)]
        return buses if key == "bus_bandwidth" else [Reading("of the algorithm", 1.0), *buses]

    @property
    def algorithm(self) -> Span | None:
        """Bandwidth by size and time; None: the page does not state both."""
        claims = self.claims
        if not (claims.size and claims.time) or claims.time[0].low <= 0:
            return None
        return claims.size[0].span.times(claims.time[0].span.power(-1))

    @property
    def limit(self) -> Limit | None:
        """Bandwidth of the algorithm: however it is done, each machine sends and receives its part over the network,
        and each GPU over NVLink."""
        if self.machine is None:
            return None
        if self.nodes > 1:
            network = machines.network(self.machine)
            rate = f"{self.machine.network_gbps:g} Gbit/s = {gbs(network.value)}"
            why = f"{self.nodes} {self.machine.name} are joined by {rate} each"
            return Limit(network.scaled(1 / bus_factor(self.operation, self.nodes)), why)
        link = machines.nvlink(self.machine)
        if link is None or not self.ranks or max(self.ranks) > self.machine.gpus:
            return None
        factor = min(bus_factor(self.operation, n) for n in self.ranks)
        why = f"NVLink of a {self.machine.name} has {gbs(link.low)} a GPU and direction"
        # Switches that reduce on the way (NVLS) halve what a GPU sends.
        return Limit(exactly(link.high / factor), why)


class Link(NamedTuple):
    """A link, and the machines that it joins."""

    scope: str
    claims: LinkClaims
    inside: bool
    machine: Instance | None

    @property
    def limit(self) -> Limit | None:
        if self.machine is None:
            return None
        name, directions = self.machine.name, 2 if self.claims.directions == "both" else 1
        if self.inside:
            one = machines.nvlink(self.machine)
            if one is None:
                return None
            why = f"NVLink of a {name} has {gbs(one.low)} a GPU in one direction, {gbs(one.high)} in both"
            return Limit(one, why)
        one = machines.network(self.machine).scaled(directions)
        both = " in both directions" if directions == 2 else ""
        return Limit(one, f"a {name} has {self.machine.network_gbps * directions:g} Gbit/s = {gbs(one.value)}{both}")

    def of_machine(self, figure: Figure) -> Span:
        """A GPU's share of the network is an eighth of a machine with eight."""
        gpus = max(self.machine.gpus, 1) if self.machine else 1
        if figure.per == "gpu" and not self.inside:
            return figure.span.scaled(gpus)
        return figure.span.scaled(1 / gpus) if figure.per == "node" and self.inside else figure.span


def collective(scope: str, claims: CollectiveClaims, run: Run | None) -> Collective:
    """Raises ConfigError for an operation that there is not."""
    plain = re.sub(r"^nccl|_perf$|[^a-z]", "", claims.operation.strip().lower())
    operations = {re.sub("_", "", name): name for name in OPERATIONS} | {"p2p": "send_recv", "sendrecv": "send_recv"}
    if plain not in operations:
        raise ConfigError(f"{scope}.operation = {claims.operation}: {nearest(claims.operation, OPERATIONS)}")
    machine = machine_of(claims.instance, run)
    per_node = _first(claims.gpus_per_node) or (machine.gpus if machine else 0)
    nodes, ranks = _first(claims.nodes), _first(claims.ranks)
    if ranks and not nodes and per_node and ranks % per_node == 0:
        nodes = ranks // per_node
    several = (nodes, nodes * (per_node or 8)) if nodes else _sizes_of(run, per_node)
    readings = (ranks,) if ranks > 1 else tuple(dict.fromkeys(n for n in several if n > 1))
    return Collective(scope, claims, operations[plain], machine, nodes, readings)


def _sizes_of(run: Run | None, per_node: int) -> tuple[int, ...]:
    """Of a collective that does not state its ranks: the GPUs of a machine, the machines, or all GPUs of the run."""
    if run is None:
        return ()
    nodes, gpus = _first(run.claims.nodes), _first(run.claims.gpus)
    nodes = nodes or (gpus // per_node if per_node else 0)
    return (per_node, nodes, gpus or nodes * per_node)


def link(scope: str, claims: LinkClaims, run: Run | None) -> Link:
    """Raises ConfigError for a scope that there is not."""
    inside = bool(_INSIDE.search(claims.scope))
    if not inside and not _BETWEEN.search(claims.scope):
        raise ConfigError(f"{scope}.scope = {claims.scope}: must be inter_node or intra_node")
    machine = machine_of(claims.instance, run)
    kind = machines.gpu_kind(claims.gpu) if machine is None and claims.gpu and not claims.instance else None
    if kind is not None:  # the fastest machine that has such GPUs
        machine = max(machines.machines_with(kind), key=lambda each: each.network_gbps, default=None)
    return Link(scope, claims, inside, machine)


def findings(item: Collective | Link) -> list[Finding]:
    """Bandwidths against size and time, or utilisation, and all of them against the links."""
    if isinstance(item, Link):
        return [*_link_against_machine(item), *_utilisation(item), *_repeated(item, ("bandwidth",))]
    wrong = [*_repeated(item, ("size", "time", *_KEYS)), *_between(item)]
    wrong += [each for key in _KEYS for each in _against_time(item, key)]
    blamed = {claim for finding in wrong for claim in finding.claims}
    limits = _against_links(item)
    return [*wrong, *(each for each in limits if not set(each.claims) & blamed or len(each.claims) == 1)]


def unchecked(item: Collective | Link) -> list[Finding]:
    """Bandwidths that nothing limits and nothing else implies."""
    if item.limit is not None:
        return []
    if isinstance(item, Link):
        is_checked = bool(item.claims.peak and item.claims.utilisation)
        keys: tuple[str, ...] = ("bandwidth", "peak")
        text = "needs an instance with such a link that the catalog has"
    else:
        both = item.claims.algorithm_bandwidth and item.claims.bus_bandwidth and item.ranks
        is_checked = bool(both or (item.claims.size and item.claims.time))
        keys, text = _KEYS, "needs size and time, or an instance that the catalog has"
    lines = [] if is_checked else [_line(item, key, each) for key in keys for each in getattr(item.claims, key)]
    return [Finding(kind="cannot be checked", claims=(line,), arithmetic=text) for line in lines]


def _line(item: Collective | Link, key: str, figure: Figure) -> str:
    return claim_line(f"{item.scope}.{key}", figure.text)


def bus_factor(operation: str, ranks: int) -> float:
    return _PASSES[operation] * (ranks - 1) / ranks if operation in _PASSES else 1.0


def _repeated(item: Collective | Link, keys: Sequence[str]) -> Iterator[Finding]:
    """A figure that is stated twice in two ways."""
    for key in keys:
        figures: Figures = getattr(item.claims, key)
        for other in figures[1:]:
            if figures[0].span.apart(other.span):
                text = f"{figures[0].text} is not {other.text}"
                lines = (_line(item, key, figures[0]), _line(item, key, other))
                yield Finding(kind="contradiction", claims=lines, arithmetic=text)


def _against_time(item: Collective, key: str) -> Iterator[Finding]:
    algorithm, readings = item.algorithm, item.readings(key)
    if algorithm is None or not readings:
        return
    size, time = item.claims.size[0], item.claims.time[0]
    for figure in getattr(item.claims, key):
        implied = [algorithm.scaled(reading.factor) for reading in readings]
        if not all(figure.span.apart(each) for each in implied):
            continue
        line = f"{size.text} / {time.text} = {gbs(algorithm.value)} of the algorithm"
        line += "".join(f", {gbs(algorithm.value * each.factor)} {each.words}" for each in readings if each.factor != 1)
        words = next(filter(None, (hint("bandwidth", figure.span, each, {}) for each in implied)), "")
        if words.endswith("bits for bytes?") and figure.value > algorithm.value:
            words += f" {_number(figure)} Gbit/s are {gbs(figure.value / 8)}"
        lines = (_line(item, "size", size), _line(item, "time", time), _line(item, key, figure))
        yield Finding(kind="contradiction", claims=lines, arithmetic=f"{line}, not {figure.text}", hint=words)


def _between(item: Collective) -> list[Finding]:
    """Bandwidths of the algorithm and of the bus, against each other."""
    claims = item.claims
    if not (claims.algorithm_bandwidth and claims.bus_bandwidth and item.ranks):
        return []
    own, bus = claims.algorithm_bandwidth[0], claims.bus_bandwidth[0]
    factors = {n: bus_factor(item.operation, n) for n in item.ranks}
    if not all(bus.span.apart(own.span.scaled(factor)) for factor in factors.values()):
        return []
    products = " or ".join(
        f"{own.text} × {factor:.4g} = {gbs(own.value * factor)} for {n} ranks" for n, factor in factors.items()
    )
    lines = (_line(item, "algorithm_bandwidth", own), _line(item, "bus_bandwidth", bus))
    words = hint("bandwidth", bus.span, own.span.scaled(factors[item.ranks[0]]), {})
    return [Finding(kind="contradiction", claims=lines, arithmetic=f"{products}, not {bus.text}", hint=words)]


def _against_links(item: Collective) -> Iterator[Finding]:
    limit, algorithm = item.limit, item.algorithm
    if limit is None or item.machine is None:
        return
    facts = (f"{item.machine.name}: {limit.why}",)
    if algorithm is not None and algorithm.above(limit.span):
        size, time = item.claims.size[0], item.claims.time[0]
        most = f"where at most {gbs(limit.span.high)} of the algorithm are possible: {limit.why}"
        line = f"{size.text} / {time.text} = {gbs(algorithm.value)}, {most}"
        lines = (_line(item, "size", size), _line(item, "time", time))
        yield Finding(kind="impossible", claims=lines, arithmetic=line, given=facts)
    for key in _KEYS:
        largest = limit.span.scaled(max([reading.factor for reading in item.readings(key)] or [1.0]))
        for figure in getattr(item.claims, key):
            if figure.span.above(largest):
                eighth = figure.span.scaled(1 / 8)
                is_bits = eighth.value * _MOST_IDLE > largest.value and not eighth.above(largest)
                line = f"{figure.text} is more than the {gbs(largest.high)} that are possible: {limit.why}"
                words, alone = "bits for bytes?" if is_bits else "", (_line(item, key, figure),)
                yield Finding(kind="impossible", claims=alone, arithmetic=line, hint=words, given=facts)


def _link_against_machine(item: Link) -> Iterator[Finding]:
    limit = item.limit
    if limit is None or item.machine is None:
        return
    for key in ("bandwidth", "peak"):
        for figure in getattr(item.claims, key):
            span = item.of_machine(figure)
            if span.above(limit.span):
                line = f"{figure.text} is {span.value / limit.span.high:.3g} times what there is: {limit.why}"
                words, lines = _bits(figure, span, limit.span), (_line(item, key, figure),)
                yield Finding(kind="impossible", claims=lines, arithmetic=line, hint=words, given=(item.machine.name,))


def _bits(figure: Figure, span: Span, limit: Span) -> str:
    """Bits, where an eighth is what such a link may well do, and the text does not say bits itself."""
    eighth = span.scaled(1 / 8)
    prefix = re.search(r"([kMGT])i?B", figure.text)
    if prefix is None or eighth.above(limit) or eighth.value * _MOST_IDLE <= limit.high:
        return ""
    return f"bits for bytes? {_number(figure)} {prefix[1]}bit/s are {gbs(figure.value / 8)}"


def _utilisation(item: Link) -> list[Finding]:
    """bandwidth = utilisation × peak."""
    claims, limit = item.claims, item.limit
    if not (claims.bandwidth and claims.utilisation):
        return []
    used, figure = claims.utilisation[0], claims.bandwidth[0]
    peak = claims.peak[0].span if claims.peak else limit.span if limit and not item.inside else None
    implied = peak.times(used.span) if peak else None
    if peak is None or implied is None or not implied.apart(item.of_machine(figure)):
        return []
    of = claims.peak[0].text if claims.peak else gbs(peak.value)
    keys = ("bandwidth", "utilisation", "peak") if claims.peak else ("bandwidth", "utilisation")
    lines = tuple(_line(item, key, getattr(claims, key)[0]) for key in keys)
    line = f"{used.text} of {of} are {gbs(implied.value)}, not {figure.text}"
    return [Finding(kind="contradiction", claims=lines, arithmetic=line)]


def _number(figure: Figure) -> str:
    """The number alone: `189.6`."""
    return read_number(figure.text).digits


def _first(figures: Figures) -> int:
    return round(figures[0].value) if figures else 0
