"""The network suite's report: bandwidths of collectives by size, their bounds, and the fastest algorithms. Pure.

Durations are in seconds, sizes in bytes, bandwidths in bytes per second.
"""

import itertools
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from convoy.benchmark.analysis.network_choice import Choice, choices
from convoy.benchmark.analysis.network_links import LinkFigures, link_figures
from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.network import (
    IN_PLACE_SUFFIX,
    SUITE_NAME,
    Figure,
    figure_name,
    measured_sizes,
    seconds_name,
)
from convoy.benchmark.results.pairs import PairsReport, pairs_report
from convoy.benchmark.results.rails import RailsReport, rails_report
from convoy.catalog.instances import instance
from convoy.catalog.published_collectives import PublishedCollective, published_collectives
from convoy.config.errors import ConfigError
from convoy.config.network import NetworkConfig, Operation
from convoy.network.bandwidth import bus_factor, busbw_bound
from convoy.network.link_model import LinkModel, fit_link
from convoy.report.train_report import NetworkUse
from convoy.stats.interval import FEWEST, Interval, interval, paired_ratio


class SizeFigures(FrozenResult):
    """Figures of a case at one buffer size."""

    size: int
    seconds: Interval
    """Time of one operation over blocks, on the slowest rank."""
    p50: float
    p95: float
    p99: float
    cv: float
    """Coefficient of variation of single operations, a fraction."""
    wrong: int
    """Wrong elements, on all ranks together."""
    worst_rank: int
    algbw: Interval
    busbw: Interval
    bound_share: Interval | None
    """busbw over its bound; None: the rate of the links is not known, or the figure is above the bound."""
    above_bound: bool = False
    """busbw is above its bound by more than its interval: the bound is wrong, or a burst went above the links' rate."""
    time_ratio: Interval | None = None
    """Time over that of the backend, over pairs of blocks; None: it is the backend, or that was not measured."""


class AlgorithmFigures(FrozenResult):
    """Figures of a case: a collective by one algorithm."""

    name: str
    sizes: tuple[SizeFigures, ...]
    """Figures by size, from small to large."""
    link: LinkModel | None
    """Latency and bandwidth that explain its times; None: too few sizes."""
    host: dict[str, float]
    """Host resources that a rank used, by the names of `HostFigure`; empty: not recorded, as by other tools."""
    not_measured: dict[str, str]

    def at(self, size: int) -> SizeFigures | None:
        """The figures at a size in bytes; None: not measured."""
        return next((each for each in self.sizes if each.size == size), None)


class SizeRange(FrozenResult):
    """Consecutive sizes in bytes, with the algorithm that is fastest, or chosen, at each of them."""

    name: str
    first: int
    last: int


class CollectiveFigures(FrozenResult):
    """A collective, measured by several algorithms in one gang."""

    group: str
    operation: Operation
    dtype: str
    ranks: int
    hosts: int
    lab: str
    """Empty: real machines."""
    link_gbps: float | None
    """Rate of a host's network per direction, in 10^9 bits per second; None: not known."""
    bound: float | None
    """Largest busbw that the links allow; None: their rate is not known, or there is one host."""
    algorithms: tuple[AlgorithmFigures, ...]
    """The backend first."""
    fastest: tuple[SizeRange, ...]
    """The fastest algorithm by size, among all out-of-place cases."""
    varied: tuple[str, ...] = ()
    """Environment variables that are all in which its cases differ; empty: they differ in the algorithm."""
    chosen: tuple[Choice, ...] = ()
    """The algorithm that pairs alone would choose, by size; empty: pairs were not measured."""
    published: tuple[PublishedCollective, ...] = ()
    """Published figures of as many machines of this type; empty: none, or the type is not known."""

    @property
    def is_wrong(self) -> bool:
        """Whether any element was wrong, or any figure is above its bound."""
        return any(each.wrong or each.above_bound for case in self.algorithms for each in case.sizes)


class NetworkReport(FrozenResult):
    """Everything that the network suite found."""

    collectives: tuple[CollectiveFigures, ...]
    pairs: PairsReport | None
    """Links between pairs of ranks; None: not measured."""
    links: LinkFigures | None
    """One-sided transfers and transports; None: neither was measured."""
    rails: RailsReport | None
    """Buffers over several rails; None: not measured."""
    carried_by: tuple[NetworkUse, ...] = ()
    """What carried the traffic of GPUs between hosts, each distinct network of all cases once."""
    not_measured: tuple[str, ...] = ()
    """Planned measurements that are missing, one line each with the case and the reason."""

    @property
    def is_wrong(self) -> bool:
        """Whether anything arrived wrong, is above its bound, or is slow: a port, or a link."""
        pairs, links = self.pairs, self.links
        found = [
            any(each.is_wrong for each in self.collectives),
            links is not None and (links.wrong > 0 or bool(links.above_rate)),
            self.rails is not None and self.rails.wrong > 0,
            pairs is not None and (pairs.wrong > 0 or (pairs.slow is not None and pairs.slow.has_slow_port_or_link)),
        ]
        return any(found)


def network_report(cases: Sequence[Case]) -> NetworkReport | None:
    """The report of the network suite's cases; None: there are none."""
    own = [case for case in cases if case.suite == SUITE_NAME and case.status == "measured"]
    if not own:
        return None
    between = [case for case in own if case.hardware.nodes > 1]  # within a host, no link bounds anything
    configs = [(case, network_config(case)) for case in between]
    rate = next((link_gbps(case, config) for case, config in configs if config is not None), None)
    pairs = pairs_report(own)
    return NetworkReport(
        collectives=network_figures(own, pairs),
        pairs=pairs,
        links=link_figures(own, rate),
        rails=rails_report(own),
        carried_by=tuple(dict.fromkeys(use for case in own for use in case.carried_by)),
        not_measured=tuple(
            dict.fromkeys(
                f"{case.group}, {what if what == case.name else f'{case.name}, {what}'}: {why}"
                for case in own
                for what, why in case.not_measured.items()
            )
        ),
    )


def network_figures(cases: Sequence[Case], pairs: PairsReport | None = None) -> tuple[CollectiveFigures, ...]:
    """Figures of each collective among the cases, in the order of groups. pairs: of the same ranks, if measured."""
    by_group: dict[str, list[Case]] = {}
    for case in cases:
        if case.suite == SUITE_NAME and case.status == "measured" and measured_sizes(case.samples):
            by_group.setdefault(case.group, []).append(case)
    found = [_collective(group, of_group, pairs) for group, of_group in by_group.items()]
    return tuple(each for each in found if each is not None)


def _collective(group: str, cases: Sequence[Case], pairs: PairsReport | None) -> CollectiveFigures | None:
    """Figures of the cases of a group; None: its configuration is not that of a collective."""
    config = network_config(cases[0])
    if config is None or len(config.operations) != 1:
        return None
    (operation,) = config.operations
    hardware = cases[0].hardware
    gbps = link_gbps(cases[0], config)
    bound = None
    if gbps is not None and hardware.nodes > 1:
        bound = busbw_bound(operation, hardware.nodes, hardware.ranks // hardware.nodes, gbps * 1e9 / 8)
    base = next((case for case in cases if case.baseline is None), None)
    algorithms = [_algorithm(case, base, operation, bound) for case in cases]
    own = {
        case.name: {size: case.samples[seconds_name(size)] for size in measured_sizes(case.samples)}
        for case in cases
        if case.baseline is not None and not case.varied and not case.name.endswith(IN_PLACE_SUFFIX)
    }
    algorithms.sort(key=lambda each: (base is None or each.name != base.name, each.name))
    return CollectiveFigures(
        group=group,
        operation=operation,
        dtype=config.dtype,
        ranks=hardware.ranks,
        hosts=hardware.nodes,
        lab=cases[0].lab,
        link_gbps=gbps,
        bound=bound,
        algorithms=tuple(algorithms),
        published=tuple(
            each
            for each in published_collectives(operation, hardware.instance_type)
            if hardware.instance_type is not None and each.nodes == hardware.nodes
        ),
        varied=cases[0].varied,
        chosen=choices(operation, own, pairs, hardware.ranks) if pairs is not None and own else (),
        fastest=fastest_ranges([each for each in algorithms if not each.name.endswith(IN_PLACE_SUFFIX)]),
    )


def network_config(case: Case) -> NetworkConfig | None:
    """The network configuration of the case's gang; None: the case has none, as one of another tool."""
    try:
        return NetworkConfig.model_validate(case.config.get("network"))
    except ValidationError:
        return None


def link_gbps(case: Case, config: NetworkConfig) -> float | None:
    """Rate of a host's network per direction, in 10^9 bits per second: as configured, or the catalog's."""
    if config.link_gbps is not None or case.hardware.instance_type is None:
        return config.link_gbps
    try:
        return instance(case.hardware.instance_type).network_gbps
    except ConfigError:
        return None


def _algorithm(case: Case, base: Case | None, operation: Operation, bound: float | None) -> AlgorithmFigures:
    sizes = [
        _figures_at(size, case, base if base is not case else None, operation, bound)
        for size in measured_sizes(case.samples)
        if len(case.samples[seconds_name(size)]) >= FEWEST
    ]
    times = {each.size: case.samples[seconds_name(each.size)] for each in sizes}
    return AlgorithmFigures(
        name=case.name,
        sizes=tuple(sizes),
        link=fit_link(times),
        host={name: value for name, value in case.values.items() if name.startswith("host.")},
        not_measured=case.not_measured,
    )


def _figures_at(size: int, case: Case, base: Case | None, operation: Operation, bound: float | None) -> SizeFigures:
    blocks = case.samples[seconds_name(size)]
    seconds = interval(blocks)
    algbw = seconds.inverse(size)
    factor = bus_factor(operation, case.hardware.ranks)
    busbw = _scaled(algbw, factor)
    above = bound is not None and busbw.low > bound
    paired = list(zip(blocks, base.samples.get(seconds_name(size), ()), strict=False)) if base else []

    def value(figure: Figure) -> float:
        return case.values.get(figure_name(figure, size), 0.0)

    return SizeFigures(
        size=size,
        seconds=seconds,
        p50=value("p50"),
        p95=value("p95"),
        p99=value("p99"),
        cv=value("cv"),
        wrong=round(value("wrong")),
        worst_rank=round(value("worst_rank")),
        algbw=algbw,
        busbw=busbw,
        bound_share=None if bound is None or above else _scaled(busbw, 1 / bound),
        above_bound=above,
        time_ratio=paired_ratio(paired) if len(paired) >= FEWEST else None,
    )


def _scaled(figure: Interval, factor: float) -> Interval:
    fields = {key: factor * getattr(figure, key) for key in ("estimate", "low", "high")}
    return figure.model_copy(update=fields)


def fastest_ranges(algorithms: Sequence[AlgorithmFigures]) -> tuple[SizeRange, ...]:
    """The algorithm with the shortest median time at each size, as ranges of sizes."""
    names: dict[int, str] = {}
    for size in sorted({each.size for case in algorithms for each in case.sizes}):
        times = {case.name: at.seconds.estimate for case in algorithms if (at := case.at(size)) is not None}
        names[size] = min(times, key=lambda each: times[each])
    return size_ranges(names)


def size_ranges(names: Mapping[int, str]) -> tuple[SizeRange, ...]:
    """Consecutive sizes with the same name, as ranges. names: by size in bytes, from small to large."""
    runs = [(name, list(sizes)) for name, sizes in itertools.groupby(names, key=lambda size: names[size])]
    return tuple(SizeRange(name=name, first=sizes[0], last=sizes[-1]) for name, sizes in runs)
