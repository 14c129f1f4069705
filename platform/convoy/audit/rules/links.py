"""Bandwidths of links, against what the catalog has of the machines that they join. Pure."""

import re
from typing import NamedTuple

from convoy.audit import machines
from convoy.audit.claims import LinkClaims
from convoy.audit.facts import Run
from convoy.audit.findings import Finding, claim_line
from convoy.audit.quantities.format import gigabytes_per_second as gbs
from convoy.audit.quantities.number import Figure, Span
from convoy.audit.rules.collectives import MOST_IDLE, number_of
from convoy.catalog.instances import Instance
from convoy.config.errors import ConfigError

_INSIDE = re.compile(r"intra|nvlink|nvswitch|within|inside", re.IGNORECASE)
_BETWEEN = re.compile(r"inter|between|network|efa|nic|infiniband|ethernet|rdma", re.IGNORECASE)


class Link(NamedTuple):
    """A link, and the machines that it joins."""

    scope: str
    claims: LinkClaims
    inside: bool
    machine: Instance | None


def link(scope: str, claims: LinkClaims, run: Run | None) -> Link:
    """Raises ConfigError for a scope that there is not."""
    inside = bool(_INSIDE.search(claims.scope))
    if not inside and not _BETWEEN.search(claims.scope):
        raise ConfigError(f"{scope}.scope = {claims.scope}: must be inter_node or intra_node")
    told = machines.machine(claims.instance) if claims.instance else run.machine if run else None
    if told is None and claims.gpu and not claims.instance:
        told = _only(claims.gpu)
    return Link(scope, claims, inside, told)


def findings(told: Link) -> list[Finding]:
    return [*_against_machine(told), *_used(told), *_repeated(told)]


def unchecked(told: Link) -> list[Finding]:
    claims = told.claims
    if _limit(told) is not None or (claims.peak and claims.utilisation):
        return []
    text = "needs an instance with such a link that the catalog has"
    return [
        Finding(kind="cannot be checked", claims=(claim_line(f"{told.scope}.{key}", each.text),), arithmetic=text)
        for key in ("bandwidth", "peak")
        for each in getattr(claims, key)
    ]


def _only(gpu: str) -> Instance | None:
    """The fastest machine that has such GPUs."""
    kind = machines.gpu_kind(gpu)
    return max(machines.machines_with(kind), key=lambda each: each.network_gbps, default=None) if kind else None


def _limit(told: Link) -> tuple[Span, str] | None:
    if told.machine is None:
        return None
    name, directions = told.machine.name, 2 if told.claims.directions == "both" else 1
    if told.inside:
        one = machines.nvlink(told.machine)
        if one is None:
            return None
        return one, f"NVLink of a {name} has {gbs(one.low)} a GPU in one direction, {gbs(one.high)} in both"
    one = Span(*(each * directions for each in machines.network(told.machine)))
    both = " in both directions" if directions == 2 else ""
    return one, f"a {name} has {told.machine.network_gbps * directions:g} Gbit/s = {gbs(one.value)}{both}"


def _against_machine(told: Link) -> list[Finding]:
    limit = _limit(told)
    if limit is None:
        return []
    found = []
    for key in ("bandwidth", "peak"):
        for figure in getattr(told.claims, key):
            span = _of_machine(figure, told)
            if not span.above(limit[0]):
                continue
            hint = _hint(figure, span, limit[0])
            line = f"{figure.text} is {span.value / limit[0].high:.3g} times what there is: {limit[1]}"
            lines = (claim_line(f"{told.scope}.{key}", figure.text),)
            given = (f"{told.machine.name}" if told.machine else "",)
            found.append(Finding(kind="impossible", claims=lines, arithmetic=line, hint=hint, given=given))
    return found


def _hint(figure: Figure, span: Span, limit: Span) -> str:
    """Bits, where an eighth is what such a link may well do, and the text does not say bits itself."""
    eighth = span.scaled(1 / 8)
    prefix = re.search(r"([kMGT])i?B", figure.text)
    if prefix is None or eighth.above(limit) or eighth.value * MOST_IDLE <= limit.high:
        return ""
    return f"bits for bytes? {number_of(figure)} {prefix[1]}bit/s are {gbs(figure.value / 8)}"


def _of_machine(figure: Figure, told: Link) -> Span:
    """A GPU's share of the network is an eighth of a machine with eight."""
    gpus = max(told.machine.gpus, 1) if told.machine else 1
    factor = (
        gpus if figure.per == "gpu" and not told.inside else 1 / gpus if figure.per == "node" and told.inside else 1
    )
    return figure.span.scaled(factor)


def _used(told: Link) -> list[Finding]:
    """bandwidth = utilisation × peak."""
    claims = told.claims
    if not (claims.bandwidth and claims.utilisation):
        return []
    used, figure, limit = claims.utilisation[0], claims.bandwidth[0], _limit(told)
    peak = claims.peak[0].span if claims.peak else limit[0] if limit and not told.inside else None
    if peak is None:
        return []
    implied = peak.times(used.span)
    if not implied.apart(_of_machine(figure, told)):
        return []
    of = claims.peak[0].text if claims.peak else gbs(peak.value)
    lines = [("bandwidth", figure), ("utilisation", used), *([("peak", claims.peak[0])] if claims.peak else [])]
    told_of = tuple(claim_line(f"{told.scope}.{key}", each.text) for key, each in lines)
    line = f"{used.text} of {of} are {gbs(implied.value)}, not {figure.text}"
    return [Finding(kind="contradiction", claims=told_of, arithmetic=line)]


def _repeated(told: Link) -> list[Finding]:
    """A bandwidth that is told twice in two ways."""
    figures = told.claims.bandwidth
    return [
        Finding(
            kind="contradiction",
            claims=tuple(claim_line(f"{told.scope}.bandwidth", each.text) for each in (figures[0], other)),
            arithmetic=f"{figures[0].text} is not {other.text}",
        )
        for other in figures[1:]
        if figures[0].span.apart(other.span)
    ]
