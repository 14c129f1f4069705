"""What one-sided transfers and the transports of other tools reached between two hosts. Pure.

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
    """Transfers of one size."""

    size: int
    seconds: Interval
    rate: Interval
    wrong: int
    """Bytes that were not what they should be where they arrived; 0 where the tool checks none."""


class TransportFigures(FrozenResult):
    """A case between two hosts."""

    name: str
    transfers: tuple[TransferFigures, ...]
    """By size, from small to large; empty: the tool has one rate."""
    rate: Interval | None
    """Payload that arrived; None: it is by size."""
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
    """Between two hosts, or two ranks of one."""

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
        """Bytes that were not what they should be."""
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
    """Of the cases of these groups; None: there are none. link_gbps: of the hosts' network per direction."""
    own = [
        case
        for case in cases
        if case.group in (ONE_SIDED_GROUP, TRANSPORTS_GROUP, COPIES_GROUP) and case.status == "measured"
    ]
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
