"""Sizes, times and bandwidths of collective operations. Pure.

Bandwidth of the algorithm is size over time; of the bus it is that times 2(n - 1)/n for an all-reduce and (n - 1)/n for
an all-gather, a reduce-scatter and an all-to-all (nccl-tests, PERFORMANCE.md).
"""

import re
from typing import NamedTuple

from convoy.audit import machines
from convoy.audit.claims import CollectiveClaims, Figures
from convoy.audit.facts import Run
from convoy.audit.findings import Finding, claim_line
from convoy.audit.hints import hint
from convoy.audit.quantities.format import gigabytes_per_second as gbs
from convoy.audit.quantities.number import Figure, Span, exactly
from convoy.catalog.instances import Instance
from convoy.config.errors import ConfigError, nearest

_DOUBLE, _SINGLE, _ONE = (
    ("all_reduce",),
    ("all_gather", "reduce_scatter", "all_to_all"),
    ("broadcast", "reduce", "send_recv"),
)
OPERATIONS = (*_DOUBLE, *_SINGLE, *_ONE)

MOST_IDLE = 4.0
"""Over a bandwidth that was measured at most is what the links have, where it is taken for bits."""

_KEYS = ("algorithm_bandwidth", "bus_bandwidth", "bandwidth")


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
    per_node: int
    nodes: int
    """0: not known."""
    ranks: tuple[int, ...]
    """As many readings as there are."""

    def line(self, key: str, text: str) -> str:
        return claim_line(f"{self.scope}.{key}", text)


def collective(scope: str, claims: CollectiveClaims, run: Run | None) -> Collective:
    """Raises ConfigError for an operation that there is not."""
    plain = re.sub(r"^nccl|_perf$|[^a-z]", "", claims.operation.strip().lower())
    named = {re.sub("_", "", name): name for name in OPERATIONS} | {"p2p": "send_recv", "sendrecv": "send_recv"}
    if plain not in named:
        raise ConfigError(f"{scope}.operation = {claims.operation}: {nearest(claims.operation, OPERATIONS)}")
    told = machines.machine(claims.instance) if claims.instance else run.machine if run else None
    per_node = _first(claims.gpus_per_node) or (told.gpus if told else 0)
    nodes, ranks = _first(claims.nodes), _first(claims.ranks)
    if ranks and not nodes and per_node and ranks % per_node == 0:
        nodes = ranks // per_node
    several = (nodes, nodes * (per_node or 8)) if nodes else _sizes_of(run, per_node)
    readings = (ranks,) if ranks > 1 else tuple(dict.fromkeys(n for n in several if n > 1))
    return Collective(scope, claims, named[plain], told, per_node, nodes, readings)


def _sizes_of(run: Run | None, per_node: int) -> tuple[int, ...]:
    """Of a collective that does not tell its ranks: the GPUs of a machine, the machines, or all GPUs of the run."""
    if run is None:
        return ()
    nodes, gpus = _first(run.claims.nodes), _first(run.claims.gpus)
    nodes = nodes or (gpus // per_node if per_node else 0)
    return (per_node, nodes, gpus or nodes * per_node)


def findings(told: Collective) -> list[Finding]:
    """Bandwidths against size and time, and all of them against the links."""
    found = [*_repeated(told), *(each for key in _KEYS for each in _against_time(told, key))]
    found += _between(told)
    wrong = {claim for finding in found for claim in finding.claims}
    return [*found, *(each for each in _against_links(told) if not set(each.claims) & wrong or len(each.claims) == 1)]


def unchecked(told: Collective) -> list[Finding]:
    """Bandwidths that neither a time nor a link tells anything of."""
    claims, found = told.claims, []
    if claims.algorithm_bandwidth and claims.bus_bandwidth and told.ranks:
        return []
    for key in _KEYS:
        if getattr(claims, key) and not (claims.size and claims.time) and _most(told) is None:
            text = "needs size and time, or an instance that the catalog has"
            lines = tuple(told.line(key, each.text) for each in getattr(claims, key))
            found.append(Finding(kind="cannot be checked", claims=lines, arithmetic=text))
    return found


def bus_factor(operation: str, ranks: int) -> float:
    if operation in _DOUBLE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in _SINGLE else 1.0


def _against_time(told: Collective, key: str) -> list[Finding]:
    claims = told.claims
    if not (claims.size and claims.time) or claims.time[0].low <= 0:
        return []
    size, time = claims.size[0], claims.time[0]
    algorithm = size.span.times(time.span.power(-1))
    readings, found = _readings(told, key), []
    for figure in getattr(claims, key):
        implied = [algorithm.scaled(reading.factor) for reading in readings]
        if not readings or not all(figure.span.apart(each) for each in implied):
            continue
        line = f"{size.text} / {time.text} = {gbs(algorithm.value)} of the algorithm"
        line += "".join(f", {gbs(algorithm.value * each.factor)} {each.words}" for each in readings if each.factor != 1)
        hints = [hint("bandwidth", figure.span, each, {}) for each in implied]
        words = next(filter(None, hints), "")
        if words.endswith("bits for bytes?") and figure.value > algorithm.value:
            words += f" {number_of(figure)} Gbit/s are {gbs(figure.value / 8)}"
        lines = (told.line("size", size.text), told.line("time", time.text), told.line(key, figure.text))
        found.append(Finding(kind="contradiction", claims=lines, arithmetic=f"{line}, not {figure.text}", hint=words))
    return found


def number_of(figure: Figure) -> str:
    """The number alone: `189.6`."""
    found = re.search(r"[\d.,]+", figure.text)
    return found[0] if found else ""


def _readings(told: Collective, key: str) -> list[Reading]:
    """What the number of a key may be."""
    buses = [Reading(f"of the bus for {n} ranks", bus_factor(told.operation, n)) for n in told.ranks]
    if key == "algorithm_bandwidth":
        return [Reading("of the algorithm", 1.0)]
    return buses if key == "bus_bandwidth" else [Reading("of the algorithm", 1.0), *buses]


def _between(told: Collective) -> list[Finding]:
    """Bandwidths of the algorithm and of the bus, against each other."""
    claims = told.claims
    if not (claims.algorithm_bandwidth and claims.bus_bandwidth and told.ranks):
        return []
    own, bus = claims.algorithm_bandwidth[0], claims.bus_bandwidth[0]
    factors = [bus_factor(told.operation, n) for n in told.ranks]
    if not all(bus.span.apart(own.span.scaled(factor)) for factor in factors):
        return []
    told_of = " or ".join(
        f"{own.text} × {factor:.4g} = {gbs(own.value * factor)} for {n} ranks"
        for n, factor in zip(told.ranks, factors, strict=True)
    )
    lines = (told.line("algorithm_bandwidth", own.text), told.line("bus_bandwidth", bus.text))
    words = hint("bandwidth", bus.span, own.span.scaled(factors[0]), {})
    return [Finding(kind="contradiction", claims=lines, arithmetic=f"{told_of}, not {bus.text}", hint=words)]


def _repeated(told: Collective) -> list[Finding]:
    """A figure that is told twice in two ways."""
    found = []
    for key in ("size", "time", *_KEYS):
        figures: Figures = getattr(told.claims, key)
        for other in figures[1:]:
            if figures[0].span.apart(other.span):
                lines = (told.line(key, figures[0].text), told.line(key, other.text))
                text = f"{figures[0].text} is not {other.text}"
                found.append(Finding(kind="contradiction", claims=lines, arithmetic=text))
    return found


def _against_links(told: Collective) -> list[Finding]:
    """However it is done, each machine sends and receives its part over the network, and each GPU over NVLink."""
    most = _most(told)
    if most is None or told.machine is None:
        return []
    limit, why, claims = most[0], most[1], told.claims
    given, found = (f"{told.machine.name}: {why}",), []
    if claims.size and claims.time and claims.time[0].low > 0:
        algorithm = claims.size[0].span.times(claims.time[0].span.power(-1))
        if algorithm.above(limit):
            text = f"{claims.size[0].text} / {claims.time[0].text} = {gbs(algorithm.value)}"
            both = (told.line("size", claims.size[0].text), told.line("time", claims.time[0].text))
            line = f"{text}, where at most {gbs(limit.high)} of the algorithm are possible: {why}"
            found.append(Finding(kind="impossible", claims=both, arithmetic=line, given=given))
    for key in _KEYS:
        factors = [reading.factor for reading in _readings(told, key)] or [1.0]
        for figure in getattr(claims, key):
            largest = limit.scaled(max(factors))
            if not figure.span.above(largest):
                continue
            eighth = figure.span.scaled(1 / 8)
            words = "bits for bytes?" if eighth.value * MOST_IDLE > largest.value and not eighth.above(largest) else ""
            line = f"{figure.text} is more than the {gbs(largest.high)} that are possible: {why}"
            lines = (told.line(key, figure.text),)
            found.append(Finding(kind="impossible", claims=lines, arithmetic=line, hint=words, given=given))
    return found


def _most(told: Collective) -> tuple[Span, str] | None:
    """Bandwidth of the algorithm, and of which link."""
    if told.machine is None:
        return None
    if told.nodes > 1:
        network, n = machines.network(told.machine), told.nodes
        parts = {**dict.fromkeys(_DOUBLE, 2 * (n - 1) / n), **dict.fromkeys(_SINGLE, (n - 1) / n)}
        name = f"{n} {told.machine.name} are joined by {told.machine.network_gbps:g} Gbit/s = {gbs(network.value)} each"
        return network.scaled(1 / parts.get(told.operation, 1.0)), name
    link = machines.nvlink(told.machine)
    if link is None or not told.ranks or max(told.ranks) > told.machine.gpus:
        return None
    factor = min(bus_factor(told.operation, n) for n in told.ranks)
    # Switches that reduce on the way (NVLS) halve what a GPU sends.
    name = f"NVLink of a {told.machine.name} has {gbs(link.low)} a GPU and direction"
    return exactly(link.high).scaled(1 / factor), name


def _first(figures: Figures) -> int:
    return round(figures[0].value) if figures else 0
