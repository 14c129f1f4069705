"""The network suite's sections on links: pairs of ranks, one-sided transfers, and the transports of other tools."""

from collections.abc import Iterator
from typing import NamedTuple

from convoy.benchmark.analysis.network_links import LinkFigures, TransferFigures, TransportFigures
from convoy.benchmark.results.pairs import PairFigures, PairsReport
from convoy.benchmark.results.rails import RailSize, RailsReport
from convoy.display import formatting
from convoy.display.page import MARKS, Block, Callout, Column, Heading, Table, Text, columns
from convoy.network.pairs.plan import MOST_HOSTS_ALONE
from convoy.network.pairs.slow_links import SlowFinding
from convoy.stats.interval import Interval

MOST_ROWS = 28
"""Pairs of eight hosts; of more there is only the matrix."""

_PAIRS = (
    "Latency is half of a round trip of the smallest message. Bandwidth is measured with a window of messages in "
    "flight, which the receiver acknowledges once; round trips reach half of it."
)
_ALONE = "Pairs are measured one at a time."
_AT_ONCE = "As many pairs are measured at once as have no host in common, so what hosts share limits them together."
_RAILS = (
    "Two hosts with several networks send buffers over one rail, split over all rails, or round-robin over the "
    "rails. The split times are predicted from the times on one rail."
)
_ONE_SIDED = (
    "NIXL writes into, or reads from, the memory of another rank, which checks the bytes. Blocking: one transfer at a "
    "time; window: several in flight; proxy thread: the same by a thread that takes transfers from a queue."
)
_TRANSPORTS = (
    "Measured between two ranks, on two hosts if there are several, with iperf3, libfabric's fi_pingpong and "
    "perftest's ib_write_bw."
)

_COPIES = (
    "All ranks of a host copy at once, each between its host's memory and its own GPU. Times are the slowest rank's. "
    "Pinned memory is what CUDA copies without a buffer of its own."
)


def pair_sections(report: PairsReport | None) -> tuple[Block, ...]:
    """The links between hosts, and within one."""
    if report is None:
        return ()
    between = [pair for pair in report.pairs if not pair.within]
    at_once = len({rank for pair in between for rank in (pair.first, pair.second)}) > MOST_HOSTS_ALONE
    text = f"{_lab(report.lab)}{_PAIRS} {_AT_ONCE if at_once else _ALONE}"
    blocks: list[Block] = [Heading("Network: pairs"), Text(text, quiet=True)]
    if report.wrong:
        blocks.append(Callout("Pairs: wrong bytes", f"{report.wrong:,} bytes were not what was sent.", "bad"))
    if report.slow is not None:
        title = "A slow port or link" if report.slow.is_slow else "No slow port or link"
        summary = report.slow.summary
        text = f"{summary[0].upper()}{summary[1:]}."
        blocks.append(Callout(title, text, "warning" if report.slow.is_slow else "good"))
    if len(between) > 1:
        blocks.append(matrix(between, report.slow))
        if report.slow is not None and report.slow.has_slow_port_or_link:
            blocks.append(Text(f"{MARKS['warning']} marks the rates of a slow port or link.", quiet=True))
    if len(report.pairs) <= MOST_ROWS:
        blocks.append(_pair_table(report.pairs))
    if report.bisection is not None and report.bisection.forth is not None:
        blocks.append(Text(_bisection_text(report)))
    return tuple(blocks)


def matrix(pairs: list[PairFigures], slow: SlowFinding | None = None) -> Table:
    """Bandwidth from each rank (a row) to each other (a column), with a mark where it is slow."""
    hosts = {rank: host for pair in pairs for rank, host in zip((pair.first, pair.second), pair.hosts, strict=True)}
    rates = {(pair.first, pair.second): pair.forth for pair in pairs}
    rates |= {(pair.second, pair.first): pair.back for pair in pairs}
    ranks = sorted({rank for link in rates for rank in link})

    def cell(source: int, target: int) -> str:
        rate = rates.get((source, target))
        if rate is None:
            return ""
        marked = slow is not None and slow.slows(hosts[source], hosts[target])
        return formatting.bandwidth(rate.estimate) + (f" {MARKS['warning']}" if marked else "")

    rows = tuple((str(source), *(cell(source, target) for target in ranks)) for source in ranks)
    return Table(("From rank", *(f"to {rank}" for rank in ranks)), rows, tuple(range(1, len(ranks) + 1)))


def _pair_table(pairs: tuple[PairFigures, ...]) -> Table:
    return columns(
        pairs,
        Column("Ranks", lambda p: f"{p.first}, {p.second}{' (one host)' if p.within else ''}"),
        Column("Latency", lambda p: p.latency, _duration),
        Column("Bandwidth, first to second", lambda p: p.forth, _bandwidth),
        Column("back", lambda p: p.back, _bandwidth),
        Column("both at once", lambda p: p.both, _bandwidth),
        Column("Messages/s, first to second", lambda p: p.messages_forth, _count, right=True),
        Column("back", lambda p: p.messages_back, _count, right=True),
        drop_empty=True,
    )


def _bisection_text(report: PairsReport) -> str:
    halves = report.bisection
    assert halves is not None
    assert halves.forth is not None
    ways = [f"{_bandwidth(halves.forth)} from the first half of the hosts to the second"]
    ways += [f"{_bandwidth(halves.back)} back"] if halves.back is not None else []
    ways += [f"{_bandwidth(halves.both)} both ways at once"] if halves.both is not None else []
    return f"Bisection, {formatting.plural(halves.pairs, 'pair')} at once: {', '.join(ways)}."


def rail_section(report: RailsReport | None) -> tuple[Block, ...]:
    """One buffer split over several networks, and many spread over them."""
    if report is None:
        return ()
    table = columns(
        (*report.one_buffer, *report.many_buffers),
        Column("Buffers", lambda r: r.buffers, right=True),
        Column("Size of each", lambda r: r.size, formatting.buffer_size, right=True),
        Column("On one rail", lambda r: r.one, _duration),
        Column("Speedup, split", lambda r: r.split_gain, formatting.ratio),
        Column("Speedup, round-robin", lambda r: r.round_robin_gain, formatting.ratio),
        Column("Time split, predicted", lambda r: r.predicted_split, formatting.duration, right=True),
        Column("measured", _measured_split, formatting.duration, right=True),
        drop_empty=True,
    )
    pays = "at no size" if report.crossover is None else f"from {formatting.buffer_size(report.crossover)}"
    expected = report.predicted_crossover
    predicted = "at no size" if expected is None else f"from {formatting.buffer_size(expected)}"
    rails = "communicators of NCCL, which chooses the adapters of each," if report.are_communicators else "rails"
    text = f"Splitting one buffer over {report.rails} {rails} pays {pays}; the model predicts {predicted}."
    wrong = Callout("Rails: wrong bytes", f"{report.wrong:,} bytes were not what was sent.", "bad")
    how = Text(f"{_lab(report.lab)}{_RAILS}", quiet=True)
    return (Heading("Network: rails"), how, *([wrong] if report.wrong else []), Text(text), table)


def _measured_split(row: RailSize) -> float | None:
    return None if row.predicted_split is None else row.split.estimate


def link_sections(links: LinkFigures | None) -> tuple[Block, ...]:
    """One-sided transfers, transports, and copies within a host."""
    return () if links is None else (*_one_sided(links), *_transports(links), *_copies(links))


class _Row(NamedTuple):
    """A case at one size."""

    case: TransportFigures
    transfers: TransferFigures


def _one_sided(links: LinkFigures) -> Iterator[Block]:
    if not links.one_sided:
        return
    yield Heading("Network: one-sided transfers")
    library = links.one_sided[0].name.partition(", ")[0]
    by = library if all(case.name.startswith(f"{library}, ") for case in links.one_sided) else ""
    yield Text(f"{_lab(links.lab)}{f'Backend of NIXL: {by}. ' if by else ''}{_ONE_SIDED}", quiet=True)
    yield from _wrong("One-sided transfers", links.one_sided)
    yield from _above(links, links.one_sided)
    yield from _missing(links.one_sided)
    rows = [_Row(case, each) for case in links.one_sided for each in case.transfers]
    if rows:
        yield columns(
            rows,
            Column("Transfer", lambda r: r.case.name.removeprefix(f"{by}, ")),
            Column("Size", lambda r: r.transfers.size, formatting.buffer_size, right=True),
            Column("Time", lambda r: r.transfers.seconds, _duration),
            Column("Bandwidth", lambda r: r.transfers.rate, _bandwidth),
            Column("Of the link", lambda r: links.share(r.transfers.rate), formatting.percent, right=True),
            Column("Wrong", lambda r: r.transfers.wrong, formatting.integer, right=True),
            drop_empty=True,
        )


def _transports(links: LinkFigures) -> Iterator[Block]:
    if not links.transports:
        return
    yield Heading("Network: transports")
    yield Text(f"{_lab(links.lab)}{_TRANSPORTS}", quiet=True)
    yield from _above(links, links.transports)
    yield from _missing(links.transports)
    measured = [case for case in links.transports if case.best_rate is not None]
    if measured:
        yield columns(
            measured,
            Column("Transport", lambda c: c.name),
            Column("Messages", _messages_text),
            Column("Bandwidth", lambda c: c.best_rate, _bandwidth),
            Column("Of the link", lambda c: c.best_rate and links.share(c.best_rate), formatting.percent, right=True),
            Column("Retransmits", lambda c: c.retransmits, formatting.integer, right=True),
            Column("Lost", _lost_text, right=True),
            drop_empty=True,
        )


def _copies(links: LinkFigures) -> Iterator[Block]:
    if not links.copies:
        return
    yield Heading("Network: copies between host and GPU")
    yield Text(_COPIES, quiet=True)
    yield from _wrong("Copies", links.copies)
    yield from _missing(links.copies)
    rows = [_Row(case, each) for case in links.copies for each in case.transfers]
    if rows:
        yield columns(
            rows,
            Column("Copy", lambda r: r.case.name),
            Column("Size", lambda r: r.transfers.size, formatting.buffer_size, right=True),
            Column("Time", lambda r: r.transfers.seconds, _duration),
            Column("Bandwidth", lambda r: r.transfers.rate, _bandwidth),
            Column("Wrong", lambda r: r.transfers.wrong, formatting.integer, right=True),
        )


def _messages_text(case: TransportFigures) -> str | None:
    """The time of the smallest message, and the size of the largest."""
    if not case.transfers:
        return None
    first, last = case.transfers[0], formatting.buffer_size(case.transfers[-1].size)
    return f"{formatting.buffer_size(first.size)} in {formatting.duration(first.seconds.estimate)}, up to {last}"


def _lost_text(case: TransportFigures) -> str | None:
    if case.lost_packets is None or not case.packets:
        return None
    return f"{case.lost_packets:,} of {case.packets:,}"


def _wrong(what: str, cases: tuple[TransportFigures, ...]) -> Iterator[Block]:
    wrong = sum(each.wrong for case in cases for each in case.transfers)
    if wrong:
        yield Callout(f"{what}: wrong bytes", f"{wrong:,} bytes arrived wrong.", "bad")


def _above(links: LinkFigures, cases: tuple[TransportFigures, ...]) -> Iterator[Block]:
    names = [case.name for case in cases if case.name in links.above_rate]
    if names:
        text = f"{', '.join(names)}: faster than the link: the traffic bypassed it, or network.link_gbps is wrong."
        yield Callout("Bound wrong, or a burst", text, "warning")


def _missing(cases: tuple[TransportFigures, ...]) -> Iterator[Block]:
    missing = [
        f"{case.name}{'' if case.best_rate is None else f', {what}'}: {why}"
        for case in cases
        for what, why in case.not_measured.items()
    ]
    if missing:
        yield Text(f"Not measured: {'; '.join(missing)}.")


def _lab(lab: str) -> str:
    return f"Lab of {lab}. " if lab else ""


def _duration(figure: Interval) -> str:
    return formatting.estimate(figure, formatting.duration)


def _bandwidth(figure: Interval) -> str:
    return formatting.estimate(figure, formatting.bandwidth)


def _count(figure: Interval) -> str:
    return formatting.count(figure.estimate)
