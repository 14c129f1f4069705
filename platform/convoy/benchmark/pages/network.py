"""The network suite's sections of a page: each collective with its bound, its algorithms, and what was wrong."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convoy.benchmark.analysis.network import AlgorithmFigures, CollectiveFigures, NetworkReport, SizeFigures
from convoy.benchmark.analysis.report import BenchReport
from convoy.benchmark.pages.charts import over_sizes
from convoy.display import formatting
from convoy.display.page import Block, Callout, Column, Heading, Page, Table, Text, columns
from convoy.stats.interval import Interval

_HOW = (
    "The cases took turns, block by block, in one gang. Size is the whole buffer's, and algbw and busbw are those of "
    "nccl-tests: busbw is what each rank's link must carry in each direction at least, so that it can be compared with "
    "the link's rate. Times are the slowest rank's. Every element was checked before and after each measurement."
)


class _Row(NamedTuple):
    """A case at one size."""

    case: AlgorithmFigures
    figures: SizeFigures


def comparison(report: BenchReport) -> tuple[Block, ...]:
    """A section for each collective."""
    return sections(report.network)


def network_page(report: NetworkReport) -> Page:
    """What `convoy net bench` prints."""
    return Page("Network", sections(report.collectives))


def sections(collectives: Sequence[CollectiveFigures]) -> tuple[Block, ...]:
    """A section for each collective."""
    blocks: list[Block] = []
    for number, each in enumerate(collectives):
        blocks += [Heading(f"Network: {each.operation}"), Text(describe(each), quiet=True)]
        if number == 0:
            blocks.append(Text(_HOW, quiet=True))
        blocks += [*_callouts(each), *_charts(each), table(each), *_latencies(each)]
    return tuple(blocks)


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
    ranges = collective.fastest
    if len(ranges) == 1:
        return f"{ranges[0].name} at every size"
    parts = [f"{ranges[0].name} up to {formatting.buffer_size(ranges[0].last)}"]
    for each in ranges[1:-1]:
        first, last = formatting.buffer_size(each.first), formatting.buffer_size(each.last)
        parts.append(f"{each.name} at {first}" if each.first == each.last else f"{each.name} from {first} to {last}")
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
    if len(collective.algorithms) > 1 and collective.fastest:
        yield Text(f"Fastest by median time: {fastest_text(collective)}.")


def _charts(collective: CollectiveFigures) -> Iterator[Block]:
    curves = {
        case.name: [(each.size, each.busbw) for each in case.sizes] for case in collective.algorithms if case.sizes
    }
    if any(len(curve) > 1 for curve in curves.values()):
        bound = collective.bound
        yield over_sizes(
            f"busbw of {collective.operation}", curves, "busbw, MB/s", 1e-6, None if bound is None else ("bound", bound)
        )


def table(collective: CollectiveFigures) -> Table:
    """At each size the backend's case and the fastest of the others."""
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
    """Latency and bandwidth of each case, and its time at every size: what chooses between algorithms."""
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
            Column("n½", lambda case: case.link and case.link.half_size, formatting.size, right=True),
            *map(time_at, sizes[:: max(1, len(sizes) // 6)]),
            drop_empty=True,
        ),
    )


def _median_text(figures: SizeFigures) -> str:
    return formatting.duration(figures.seconds.estimate)
