"""The network suite's sections of a page: each collective with its bound, its algorithms, and what was wrong."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convoy.benchmark.analysis.network import (
    AlgorithmFigures,
    CollectiveFigures,
    NetworkReport,
    SizeFigures,
    SizeRange,
    size_ranges,
)
from convoy.benchmark.analysis.report import BenchReport
from convoy.benchmark.pages.charts import over_sizes
from convoy.benchmark.pages.network_links import link_sections, pair_sections, rail_section
from convoy.benchmark.results.network import HostFigure
from convoy.benchmark.results.transports import ONE_SIDED_GROUP, TRANSPORTS_GROUP
from convoy.display import formatting
from convoy.display.page import Block, Callout, Column, Heading, Page, Table, Text, columns
from convoy.report.pages.sections import network_callouts, network_facts
from convoy.stats.interval import Interval

_HOW = (
    "The cases took turns, block by block, in one gang; the backend is gloo between CPUs and NCCL between GPUs. Size "
    "is the whole buffer's, and algbw and busbw are those of nccl-tests: busbw is what each rank's link must carry in "
    "each direction at least, so that it can be compared with the link's rate. They follow from the median, over the "
    "blocks, of the mean time of an operation; p50 and p99 are percentiles of single operations. Times are the "
    "slowest rank's. Intervals in parentheses are 95 % confidence intervals. Wrong is the number of wrong elements; "
    "every element was checked before and after each measurement."
)

_SETTINGS = (
    "NCCL reads these variables when a process starts, so each setting has gangs of its own, which took turns; a gang "
    "is one figure."
)

NEAR = 1.25
"""A choice counts as good if it takes at most this many times as long as the fastest algorithm."""


class _Row(NamedTuple):
    """A row of the table: a case at one size."""

    case: AlgorithmFigures
    figures: SizeFigures


def comparison(report: BenchReport) -> tuple[Block, ...]:
    """The suite's sections of a benchmark's page."""
    return () if report.network is None else sections(report.network)


def network_page(report: NetworkReport | None) -> Page:
    """The page that `convoy net bench` prints."""
    if report is None:
        return Page("Network", (Callout("Nothing was measured", "There are no cases.", "warning"),))
    shown = (f"{ONE_SIDED_GROUP},", f"{TRANSPORTS_GROUP},")  # in their sections
    missing = [Text(f"Not measured: {line}.") for line in report.not_measured if not line.startswith(shown)]
    return Page("Network", (*sections(report), *missing))


def sections(report: NetworkReport) -> tuple[Block, ...]:
    """Sections on what carried the traffic, on collectives, then on pairs, rails and links between two hosts."""
    return (*_carriers(report), *_collective_sections(report.collectives), *_link_sections(report))


def _carriers(report: NetworkReport) -> Iterator[Block]:
    if report.carried_by:
        yield Text(f"Between hosts: {'; '.join(network_facts(report.carried_by))}.")
        yield from network_callouts(report.carried_by)


def callouts(report: NetworkReport) -> tuple[Callout, ...]:
    """What was found wrong or slow, for the top of a page."""
    return tuple(block for block in sections(report) if isinstance(block, Callout) and block.tone != "good")


def _link_sections(report: NetworkReport) -> tuple[Block, ...]:
    return (*pair_sections(report.pairs), *rail_section(report.rails), *link_sections(report.links))


def _collective_sections(collectives: Sequence[CollectiveFigures]) -> tuple[Block, ...]:
    """A section for each collective."""
    blocks: list[Block] = []
    for number, each in enumerate(collectives):
        blocks += [Heading(f"Network: {_title(each)}"), Text(describe(each), quiet=True)]
        if each.varied:
            blocks.append(Text(_SETTINGS, quiet=True))
        elif number == 0:
            blocks.append(Text(_HOW, quiet=True))
        blocks += [*_callouts(each), *_charts(each), table(each), *_latencies(each), *_host(each), *_published(each)]
    return tuple(blocks)


def _title(collective: CollectiveFigures) -> str:
    settings = f" by {' and '.join(collective.varied)}" if collective.varied else ""
    return f"{collective.operation}{settings}"


def describe(collective: CollectiveFigures) -> str:
    """`all_reduce of fp32, 4 ranks on 4 hosts, lab of 400 Mbit/s …; bound: busbw 49.6 MB/s.`"""
    hosts = formatting.plural(collective.hosts, "host")
    where = f", lab of {collective.lab}" if collective.lab else ""
    text = (
        f"{collective.operation} of {collective.dtype}, {formatting.plural(collective.ranks, 'rank')} on {hosts}{where}"
    )
    if collective.bound is not None:
        assert collective.link_gbps is not None
        rate = formatting.bandwidth(collective.link_gbps * 1e9 / 8)
        return f"{text}. Bound: busbw of {formatting.bandwidth(collective.bound)}, from links of {rate} per direction."
    if collective.hosts == 1:
        return f"{text}. All ranks share one host: no link bounds them."
    return f"{text}. No bound is shown: network.link_gbps is not set, and the catalog does not have these machines."


def fastest_text(collective: CollectiveFigures) -> str:
    """`recursive doubling up to 64 KiB, ring from 256 KiB`"""
    return _ranges_text(collective.fastest)


def chosen_text(collective: CollectiveFigures) -> str:
    """The algorithms that pairs alone would choose, in the form of `fastest_text`."""
    return _ranges_text(size_ranges({each.size: each.name for each in collective.chosen}))


def _ranges_text(ranges: Sequence[SizeRange]) -> str:
    """Names with the first and the last size of each."""
    if len(ranges) == 1:
        return f"{ranges[0].name} at every size"
    parts = [f"{ranges[0].name} up to {formatting.buffer_size(ranges[0].last)}"]
    for each in ranges[1:-1]:
        to = "" if each.first == each.last else f" to {formatting.buffer_size(each.last)}"
        parts.append(f"{each.name} {'from' if to else 'at'} {formatting.buffer_size(each.first)}{to}")
    return ", ".join([*parts, f"{ranges[-1].name} from {formatting.buffer_size(ranges[-1].first)}"])


def _callouts(collective: CollectiveFigures) -> Iterator[Block]:
    wrong = [row for row in _rows(collective) if row.figures.wrong]
    if wrong:
        names = "; ".join(
            f"{row.case.name} at {formatting.buffer_size(row.figures.size)}: {row.figures.wrong:,}" for row in wrong
        )
        yield Callout(f"{collective.operation}: wrong elements", f"Results are not what they must be: {names}.", "bad")
    above = [row for row in _rows(collective) if row.figures.above_bound]
    if above:
        names = ", ".join(f"{row.case.name} at {formatting.buffer_size(row.figures.size)}" for row in above)
        text = f"{names}: above the bound by more than the interval, so no share is shown. Check network.link_gbps."
        yield Callout(f"{collective.operation}: bound wrong, or a burst", text, "warning")
    if collective.chosen:
        near = sum(each.over_best <= NEAR for each in collective.chosen)
        yield Text(
            f"Predicted fastest from the pairs alone: {chosen_text(collective)}. Its time is within {NEAR:g} × of the "
            f"fastest of Convoy's algorithms at {near} of {formatting.plural(len(collective.chosen), 'size')}."
        )
    if len(collective.algorithms) > 1 and collective.fastest:
        yield Text(f"Fastest by median time: {fastest_text(collective)}.")


def _charts(collective: CollectiveFigures) -> Iterator[Block]:
    curves = {
        case.name: [(each.size, each.busbw) for each in case.sizes] for case in collective.algorithms if case.sizes
    }
    if any(len(curve) > 1 for curve in curves.values()):
        bound = collective.bound
        limit = None if bound is None else (f"bound, {formatting.bandwidth(bound)}", bound)
        lab = " in a lab" if collective.lab else ""
        yield over_sizes(f"busbw of {collective.operation}{lab} by size, MB/s", curves, "busbw, MB/s", 1e-6, limit)


def table(collective: CollectiveFigures) -> Table:
    """Table with the backend's case and the fastest of the others at each size."""
    return columns(
        _best_rows(collective),
        Column("Size", lambda r: r.figures.size, formatting.buffer_size, right=True),
        Column("Algorithm", lambda r: r.case.name),
        Column("p50", lambda r: r.figures.p50, formatting.duration, right=True),
        Column("p99", lambda r: r.figures.p99, formatting.duration, right=True),
        Column("algbw", lambda r: r.figures.algbw.estimate, formatting.bandwidth, right=True),
        Column("busbw", lambda r: r.figures.busbw.estimate, formatting.bandwidth, right=True),
        Column("Of bound", _share, right=True),
        Column("Wrong", lambda r: r.figures.wrong, formatting.integer, right=True),
        Column("Time over the backend's", lambda r: r.figures.time_ratio, _plain_ratio, right=True),
        drop_empty=True,
    )


def _share(row: _Row) -> str | None:
    if row.figures.above_bound:
        return "bound wrong, or a burst"
    share = row.figures.bound_share
    return None if share is None else formatting.percent(share.estimate)


def _plain_ratio(figure: Interval) -> str:
    return f"{figure.estimate:.2f} ({figure.low:.2f} to {figure.high:.2f})"


def _rows(collective: CollectiveFigures) -> Iterator[_Row]:
    return (_Row(case, figures) for case in collective.algorithms for figures in case.sizes)


def _best_rows(collective: CollectiveFigures) -> list[_Row]:
    rows: list[_Row] = []
    for size in sorted({row.figures.size for row in _rows(collective)}):
        at = [row for row in _rows(collective) if row.figures.size == size]
        own = [row for row in at if row.figures.time_ratio is not None]
        rows += [row for row in at if row not in own]
        rows += sorted(own, key=lambda row: row.figures.seconds.estimate)[:1]
    return rows


def _latencies(collective: CollectiveFigures) -> Sequence[Block]:
    """Table of each case's latency, n½, and median time by size, which decide between algorithms."""
    sizes = sorted({row.figures.size for row in _rows(collective)})

    def time_at(size: int) -> Column[AlgorithmFigures]:
        return Column(formatting.buffer_size(size), lambda case: case.at(size), _median_text, right=True)

    each = [case for case in collective.algorithms if case.sizes]
    if len(each) < 2:
        return ()
    return (
        columns(
            each,
            Column("Median time", lambda case: case.name),
            Column("α", lambda case: case.link and case.link.alpha.estimate, formatting.duration, right=True),
            Column("n½", lambda case: case.link and case.link.half_size, formatting.buffer_size, right=True),
            *map(time_at, sizes[:: max(1, len(sizes) // 6)]),
            drop_empty=True,
        ),
    )


def _median_text(figures: SizeFigures) -> str:
    return formatting.duration(figures.seconds.estimate)


def _host(collective: CollectiveFigures) -> Iterator[Block]:
    """Table of the host resources that a rank uses, and Convoy's own processes around it."""
    watched = [case for case in collective.algorithms if case.host]
    if not watched:
        return

    def column(title: str, name: HostFigure, form: formatting.Form) -> Column[AlgorithmFigures]:
        return Column(title, lambda case: case.host.get(name) or None, form, right=True)

    yield columns(
        watched,
        Column("Host resources of a rank", lambda case: case.name),
        column("user CPU, cores", "host.user_cores", formatting.significant),
        column("system CPU, cores", "host.system_cores", formatting.significant),
        column("switches per second", "host.switches_per_second", formatting.count),
        column("peak memory", "host.peak_bytes", formatting.size),
        column("fragmentation", "host.fragmentation", formatting.percent),
        column("Convoy's agent, cores", "host.agent_cores", formatting.significant),
        column("its writer, cores", "host.writer_cores", formatting.significant),
        drop_empty=True,
    )


def _published(collective: CollectiveFigures) -> Iterator[Block]:
    """Table of published figures of as many machines of this type."""
    if collective.published:
        yield columns(
            collective.published,
            Column("Published", lambda each: each.source),
            Column("Date", lambda each: each.date),
            Column("Machines", lambda each: f"{each.nodes} × {each.instance}, {each.ranks} ranks, {each.transport}"),
            Column("Size", lambda each: each.size, formatting.buffer_size, right=True),
            Column("busbw", lambda each: 1e9 * each.busbw_gb_per_second, formatting.bandwidth, right=True),
        )
