"""Links between pairs of ranks: the names under which the cases of `network-pairs` keep them, and what they show. Pure.

Each kind of measurement is a case, named as in PAIR_KINDS. `samples` hold the seconds of an operation, the median of
each block, in the order of rounds, by source and target rank and bytes of a message: `seconds.0-1.1024`; of the
bisection by direction: `seconds.forth.65536`. `values` hold by the same names `messages`, the messages of one operation
from each source, and `wrong`, the bytes that came wrong; by pair the fitted `alpha` in seconds and `beta` in bytes per
second; of the bisection `pairs`, how many sources send at once; and `host.RANK`, the number of the host that a rank is
on.
"""

from collections.abc import Iterable, Mapping, Sequence

from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.network import NetworkResult
from convoy.network.link_model import LinkModel
from convoy.network.pairs.plan import PAIR_KINDS, PairTask, TaskTimes
from convoy.network.pairs.slow_links import SlowFinding, find_slow
from convoy.stats.interval import FEWEST, Interval, interval

GROUP = "network-pairs"

BISECTION_WAYS = ("forth", "back", "both")
"""From the first half of the hosts to the second, from the second to the first, and both at once."""


class PairFigures(FrozenResult):
    """The link between two ranks."""

    first: int
    second: int
    """Ranks; `first` is the smaller one."""
    hosts: tuple[int, int]
    """Numbers of their hosts, in the order of ranks; equal within a host."""
    latency: Interval | None
    """Seconds of half a round trip of the smallest message. None, here and below: not measured in enough rounds."""
    link: LinkModel | None
    """From round trips: latency, and the bandwidth that the difference between the two largest messages shows."""
    forth: Interval | None
    """Bytes per second from `first` to `second`, by a window of messages."""
    back: Interval | None
    """From `second` to `first`."""
    both: Interval | None
    """The sum of both directions at once."""
    messages_forth: Interval | None
    """Small messages per second from `first` to `second`."""
    messages_back: Interval | None
    wrong: int
    """Bytes that came wrong, in all measurements."""

    @property
    def within(self) -> bool:
        """Whether the ranks are on one host."""
        return self.hosts[0] == self.hosts[1]


class BisectionFigures(FrozenResult):
    """Half of the hosts, each of whose ranks sends to one rank of the other half at once. Sums of all bytes, over the
    time of the slowest rank, in bytes per second."""

    pairs: int
    """Ranks that send at once in one direction."""
    forth: Interval | None
    back: Interval | None
    both: Interval | None
    wrong: int


class PairsReport(FrozenResult):
    """Everything that a gang found of its links."""

    pairs: tuple[PairFigures, ...]
    bisection: BisectionFigures | None
    slow: SlowFinding | None
    """Among the hosts; None: there is one."""
    lab: str
    """Empty: real machines."""

    @property
    def wrong(self) -> int:
        """Bytes that came wrong."""
        return sum(pair.wrong for pair in self.pairs) + (self.bisection.wrong if self.bisection else 0)


def pair_cases(times: Mapping[PairTask, TaskTimes], hosts: Sequence[str]) -> dict[str, NetworkResult]:
    """The figures of each case by its name. hosts: of each rank, by rank."""
    return {kind: _result([task for task in times if task.kind == kind], times, hosts) for kind in PAIR_KINDS}


def _result(tasks: Sequence[PairTask], times: Mapping[PairTask, TaskTimes], hosts: Sequence[str]) -> NetworkResult:
    """Of tasks of one kind."""
    names = list(dict.fromkeys(hosts))
    result = NetworkResult({}, {f"host.{rank}": float(names.index(host)) for rank, host in enumerate(hosts)}, {})
    for task in tasks:
        result.samples[_name("seconds", task.link, task.size)] = times[task].blocks
        result.values[_name("messages", task.link, task.size)] = float(task.messages)
        result.values[_name("wrong", task.link, task.size)] = float(times[task].wrong)
        if task.kind == "bisection":
            result.values["pairs"] = float(len(task.pairs))
    for link in dict.fromkeys(task.link for task in tasks if task.kind == "half round trip"):
        model = fit_pair({task.size: times[task].blocks for task in tasks if task.link == link})
        if model is not None:
            result.values.update({f"alpha.{link}": model.alpha.estimate, f"beta.{link}": model.beta.estimate})
    return result


def fit_pair(times: Mapping[int, Sequence[float]]) -> LinkModel | None:
    """Latency of the smallest message, and the slope between the two largest; times: seconds by round, by bytes.

    A line through all sizes would have no part of it right where a network lets a burst pass before it keeps to its
    rate: the burst makes every larger message faster by the same time, which the difference between two of them does
    not contain. None: there are too few sizes or rounds, or the times of the largest two hardly differ.
    """
    if len(times) < 3 or min(map(len, times.values())) < FEWEST:
        return None
    smallest, *_, large, largest = sorted(times)
    slopes = [(b - a) / (largest - large) for a, b in zip(times[large], times[largest], strict=True)]
    slope = interval(slopes)
    return LinkModel(alpha=interval(times[smallest]), beta=slope.inverse()) if slope.low > 0 else None


def pairs_report(cases: Iterable[Case]) -> PairsReport | None:
    """What the cases of one gang show; None: they measured no pair."""
    measured = {case.name: case for case in cases if case.group == GROUP and case.status == "measured"}
    if not measured:
        return None
    some = next(iter(measured.values()))
    hosts = {int(key.removeprefix("host.")): int(of) for key, of in some.values.items() if key.startswith("host.")}
    trips = measured.get("half round trip", some)
    links = dict.fromkeys(link for case in measured.values() for link, _ in _measured(case) if "-" in link)
    ranks = sorted({(min(a, b), max(a, b)) for a, b in (map(int, link.split("-")) for link in links)})
    pairs = tuple(_pair(first, second, hosts, measured, trips) for first, second in ranks)
    return PairsReport(
        pairs=pairs,
        bisection=_bisection(measured.get("bisection")),
        slow=_slow(measured.get("one way"), hosts) if len({*hosts.values()}) > 1 else None,
        lab=some.lab,
    )


def _pair(first: int, second: int, hosts: Mapping[int, int], measured: Mapping[str, Case], trips: Case) -> PairFigures:
    link, turned = f"{first}-{second}", f"{second}-{first}"
    sizes = {size: samples for (of, size), samples in _measured(trips).items() if of == link}
    came = [(case, of, size) for case in measured.values() for of, size in _measured(case) if of in (link, turned)]
    return PairFigures(
        first=first,
        second=second,
        hosts=(hosts[first], hosts[second]),
        latency=_interval(sizes[min(sizes)]) if sizes else None,
        link=fit_pair(sizes),
        forth=_rate(measured.get("one way"), link),
        back=_rate(measured.get("one way"), turned),
        both=_rate(measured.get("both ways"), link, 2),
        messages_forth=_rate(measured.get("message rate"), link, messages=True),
        messages_back=_rate(measured.get("message rate"), turned, messages=True),
        wrong=round(sum(case.values[_name("wrong", of, size)] for case, of, size in came)),
    )


def _bisection(case: Case | None) -> BisectionFigures | None:
    if case is None:
        return None
    pairs = round(case.values["pairs"])
    forth, back, both = (_rate(case, way, pairs * (2 if way == "both" else 1)) for way in BISECTION_WAYS)
    wrong = sum(value for name, value in case.values.items() if name.startswith("wrong."))
    return BisectionFigures(pairs=pairs, forth=forth, back=back, both=both, wrong=round(wrong))


def _slow(one_way: Case | None, hosts: Mapping[int, int]) -> SlowFinding | None:
    """Among hosts, by their representatives' rates one way."""
    if one_way is None:
        return None
    rates = {}
    for link in dict.fromkeys(link for link, _ in _measured(one_way)):
        source, target = (hosts[int(rank)] for rank in link.split("-"))
        if source != target:
            rates[source, target] = _rates(one_way, link, 1)
    return find_slow(rates)


def _measured(case: Case) -> dict[tuple[str, int], tuple[float, ...]]:
    """Seconds by link, or direction, and bytes of a message."""
    found = {}
    for name, samples in case.samples.items():
        kind, _, rest = name.partition(".")
        link, _, size = rest.rpartition(".")
        if kind == "seconds" and link and size.isdecimal():
            found[link, int(size)] = samples
    return found


def _rates(case: Case, link: str, sources: int, *, messages: bool = False) -> list[float]:
    """Bytes, or messages, per second by round, of the largest size; sources: ranks that send at once."""
    size = max((size for of, size in _measured(case) if of == link), default=None)
    if size is None:
        return []
    sent = case.values[_name("messages", link, size)] * sources * (1 if messages else size)
    return [sent / seconds for seconds in case.samples[_name("seconds", link, size)]]


def _rate(case: Case | None, link: str, sources: int = 1, *, messages: bool = False) -> Interval | None:
    return None if case is None else _interval(_rates(case, link, sources, messages=messages))


def _interval(values: Sequence[float]) -> Interval | None:
    return interval(values) if len(values) >= FEWEST else None


def _name(what: str, link: str, size: int) -> str:
    return f"{what}.{link}.{size}"
