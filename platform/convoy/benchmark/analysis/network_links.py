"""Bandwidths of one-sided transfers and of other tools' transports between two hosts. Pure.

Durations are in seconds, sizes in bytes, rates in bytes per second.
"""

from collections.abc import Sequence

from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.network import measured_sizes, seconds_name
from convoy.benchmark.results.transports import (
    COPIES_GROUP,
    LOST_PACKETS,
    ONE_SIDED_GROUP,
    PACKETS,
    RATE,
    RETRANSMITS,
    TRANSPORTS_GROUP,
    WRONG,
)
from convoy.stats.interval import FEWEST, Interval, interval


class TransferFigures(FrozenResult):
    """Figures of transfers of one size."""

    size: int
    seconds: Interval
    rate: Interval
    wrong: int
    """Bytes that differed from the expected ones where they arrived; 0 if the tool checks none."""


class TransportFigures(FrozenResult):
    """Figures of a case between two hosts."""

    name: str
    transfers: tuple[TransferFigures, ...]
    """Figures by size, from small to large; empty: the tool has one rate only."""
    rate: Interval | None
    """Rate of the payload that arrived; None: rates are by size."""
    retransmits: int | None
    """Segments that TCP sent again, over all runs; None: not TCP."""
    packets: int | None
    lost_packets: int | None
    """Datagrams sent and lost, over all runs; None: not UDP."""
    not_measured: dict[str, str]

    @property
    def best_rate(self) -> Interval | None:
        """Its one rate, or the largest of any size."""
        rates = [each.rate for each in self.transfers] + ([self.rate] if self.rate is not None else [])
        return max(rates, key=lambda each: each.estimate, default=None)


class LinkFigures(FrozenResult):
    """Figures of the link between two hosts, or between two ranks of a host."""

    lab: str
    """Empty: real machines."""
    link_gbps: float | None
    one_sided: tuple[TransportFigures, ...]
    transports: tuple[TransportFigures, ...]
    copies: tuple[TransportFigures, ...] = ()
    """Between the memory of a host and that of its GPUs, which no link between hosts limits."""

    @property
    def link_rate(self) -> float | None:
        """Rate of the link per direction, in bytes per second; None: not known."""
        return None if self.link_gbps is None else self.link_gbps * 1e9 / 8

    def share(self, rate: Interval) -> float | None:
        """The rate as a share of the link's; None: the link's rate is not known."""
        return None if self.link_rate is None else rate.estimate / self.link_rate

    @property
    def wrong(self) -> int:
        """Wrong bytes of all one-sided transfers and copies."""
        return sum(each.wrong for case in (*self.one_sided, *self.copies) for each in case.transfers)

    @property
    def above_rate(self) -> tuple[str, ...]:
        """Cases that are faster than the link by more than their interval."""
        most = self.link_rate
        if most is None:
            return ()
        return tuple(
            case.name
            for case in (*self.one_sided, *self.transports)
            if any(rate.low > most for rate in (*(t.rate for t in case.transfers), case.rate) if rate is not None)
        )


def link_figures(cases: Sequence[Case], link_gbps: float | None) -> LinkFigures | None:
    """Figures of the cases of these groups; None: there are none. link_gbps: rate of a host's network per direction."""
    groups = (ONE_SIDED_GROUP, TRANSPORTS_GROUP, COPIES_GROUP)
    own = [case for case in cases if case.group in groups and case.status == "measured"]
    if not own:
        return None
    return LinkFigures(
        lab=own[0].lab,
        link_gbps=link_gbps,
        one_sided=tuple(_figures(case) for case in own if case.group == ONE_SIDED_GROUP),
        transports=tuple(_figures(case) for case in own if case.group == TRANSPORTS_GROUP),
        copies=tuple(_figures(case) for case in own if case.group == COPIES_GROUP),
    )


def _figures(case: Case) -> TransportFigures:
    rates = case.samples.get(RATE, ())

    def count(name: str) -> int | None:
        return round(case.values[name]) if name in case.values else None

    return TransportFigures(
        name=case.name,
        transfers=tuple(
            _transfers(case, size)
            for size in measured_sizes(case.samples)
            if len(case.samples[seconds_name(size)]) >= FEWEST
        ),
        rate=interval(rates) if len(rates) >= FEWEST else None,
        retransmits=count(RETRANSMITS),
        packets=count(PACKETS),
        lost_packets=count(LOST_PACKETS),
        not_measured=case.not_measured,
    )


def _transfers(case: Case, size: int) -> TransferFigures:
    seconds = interval(case.samples[seconds_name(size)])
    wrong = round(case.values.get(f"{WRONG}.{size}", 0.0))
    return TransferFigures(size=size, seconds=seconds, rate=seconds.inverse(size), wrong=wrong)
