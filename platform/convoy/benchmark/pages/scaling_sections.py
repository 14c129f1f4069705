"""Parts of a benchmark's page on scaling: curves beside their ideal, and what explains the distance."""

from collections.abc import Sequence

from convoy.benchmark.analysis.model import BenchReport, ScalingPoint
from convoy.benchmark.pages.curves import Curve, over_ranks
from convoy.display import formatting
from convoy.display.page import Block, Chart, Heading, Table, Text
from convoy.stats.interval import Interval

_NAMES = {"weak": "weak", "strong": "strong", "independent": "independent jobs"}

_HOW = (
    "Efficiency is throughput over as many times that of one rank, or per rank over that of the fewest that have room "
    "for the model. Weak: the work grows with the ranks. Strong: all ranks share the work of the fewest. Independent "
    "jobs of these, at the same time, lose only what cores share: memory bandwidth, caches, clock rate; what is lost "
    "beside them is communication and waiting, less what a rank saves that updates its share of the weights only. "
    "Communication of the step counts that saving for neither side: it is the share of synchronisation of these blocks."
)
_APART = (
    "Where the fewest ranks were not measured in turns with the others, in one gang, the interval is that of two "
    "samples, and what differs from run to run is not in it."
)


def scaling(report: BenchReport) -> tuple[Block, ...]:
    """Nothing where the suite did not run; a line where it told of one size alone."""
    if not report.scaling:
        return ()
    models = dict.fromkeys(point.model for point in report.scaling)
    blocks: list[Block] = [Heading("Scaling"), Text(_HOW, quiet=True)]
    for model in models:
        points = [point for point in report.scaling if point.model == model]
        blocks += [*_charts(model, points), _table(points)]
    if any(point.efficiency and not point.paired for point in report.scaling):
        blocks.append(Text(_APART, quiet=True))
    return (*blocks, *(Text(line) for line in _unexplained(report)))


def _charts(model: str, points: Sequence[ScalingPoint]) -> list[Chart]:
    ranks = sorted({point.ranks for point in points})
    fewest = [point for point in points if point.reference]
    if len(ranks) < 2 or not fewest:
        return []
    one = fewest[0].tokens_per_second.estimate / fewest[0].ranks
    rates: dict[str, Curve] = {}
    shares: dict[str, Curve] = {}
    for kind, name in _NAMES.items():
        of_kind = [point for point in points if point.kind == kind]
        if any(not point.reference for point in of_kind):
            begin = [] if any(point.reference for point in of_kind) else fewest[:1]
            rates[name] = [(point.ranks, point.tokens_per_second) for point in [*begin, *of_kind]]
            shares[name] = [
                (p.ranks, p.efficiency or _EXACT) for p in [*begin, *of_kind] if p.efficiency or p.reference
            ]
    return [
        over_ranks(f"Throughput, {model}", rates, "tokens per second", [(n, n * one) for n in ranks]),
        over_ranks(f"Efficiency, {model}", shares, "of the ideal", [(n, 1.0) for n in ranks]),
    ]


_EXACT = Interval(estimate=1.0, low=1.0, high=1.0, n=1)
"""Of the reference, by definition."""


def _table(all_points: Sequence[ScalingPoint]) -> Table:
    """The reference, which lies on both curves, has one row."""
    points = list({(point.case, not point.reference and point.kind): point for point in all_points}.values())
    columns = [
        ("Scaling", ["reference" if point.reference else _NAMES[point.kind] for point in points]),
        ("Ranks", [str(point.ranks) for point in points]),
        ("Tokens per second", [formatting.estimate(point.tokens_per_second, formatting.rate) for point in points]),
        ("Efficiency", [_efficiency(point) for point in points]),
        ("Of independent jobs", [_percent(point.of_independent) for point in points]),
        ("Communication of the step", [_share(point.communication_share) for point in points]),
        ("Over computation", [_times(point.communication_ratio) for point in points]),
        ("Sent by a rank", ["" if p.network_bytes is None else formatting.size(p.network_bytes) for p in points]),
        ("Of the link", [_share(point.link_share) for point in points]),
    ]
    told = [(header, cells) for header, cells in columns if any(cells)]
    return Table(tuple(header for header, _ in told), tuple(zip(*(cells for _, cells in told), strict=True)))


def _unexplained(report: BenchReport) -> list[str]:
    """What a reader would look for."""
    several = [point for point in report.scaling if not point.reference and point.kind != "independent"]
    if not several:
        return ["No case of more ranks was measured, so nothing is told of efficiency."]
    if all(point.communication_share is None for point in several):
        return ["Communication was not measured: the results do not tell values.communication_seconds."]
    return []


def _efficiency(point: ScalingPoint) -> str:
    if point.efficiency is not None:
        return _percent(point.efficiency)
    return "" if point.reference else f"not known: {point.why}"


def _percent(figure: Interval | None) -> str:
    return "" if figure is None else formatting.estimate(figure, formatting.percent)


def _share(share: float | None) -> str:
    return "" if share is None else formatting.percent(share)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{formatting.significant(ratio)}×"
