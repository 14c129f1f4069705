"""The scaling suite: the same training on more and more ranks of one gang.

All cases are compared with one rank that trains alone, or with as few as have room for the model. Weak scaling gives
each rank as many sequences as one of these has; strong scaling divides their sequences among all ranks. As many
independent trainings of that size as the gang has room for, all at once, are the second reference: what they lose
versus a single one, they lose to the memory and the caches that a host's ranks share, and not to communication.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from convoy.benchmark.analysis import scaling
from convoy.benchmark.analysis.report import BenchReport, ScalingPoint
from convoy.benchmark.analysis.scaling_curve import predicted_scaling
from convoy.benchmark.groups import Group, Ranks, RefusedCase, Suite, VariantSpec
from convoy.benchmark.memory_estimate import estimate_memory
from convoy.benchmark.memory_fit import states_fit, states_shortage
from convoy.benchmark.pages.charts import Curve, over_ranks
from convoy.benchmark.pages.scaling_curve import predicted_blocks
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.values import INDEPENDENT, WEAK
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.display.page import Block, Chart, Column, Heading, Table, Text, columns
from convoy.stats.interval import Interval, exact


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One group for each model. Where only the whole gang has room for it, that is its one case, which a larger gang's
    can be compared with, and the next smaller number of ranks is refused."""
    for model, run in runs.items():
        fewest = fewest_ranks_with_room(run, ranks)
        variants = [*variants_of(run.train.global_batch, ranks, run.parallel.shard_size, fewest)]
        refused: tuple[RefusedCase, ...] = ()
        if fewest == ranks.all:
            variants, refused = variants[:1], (_refused_reference(run, ranks),)
        yield SUITE.make_group(model, run, config.measure, variants, whole=True, refused=refused)


def fewest_ranks_with_room(run: RunConfig, ranks: Ranks) -> int:
    """The smallest reference with which all cases have room at the same time: rank 0 takes part in each of them."""
    if ranks.memory_bytes is None:
        return 1
    for n in [1, *rank_counts(ranks)]:
        specs = variants_of(run.train.global_batch, ranks, run.parallel.shard_size, n)
        if states_fit((estimate_memory(spec, run, ranks) for spec in specs), ranks):
            return n
    return ranks.all


def _refused_reference(run: RunConfig, ranks: Ranks) -> RefusedCase:
    """The largest reference that leaves ranks for others to be compared with it, which has no room with those."""
    n = [1, *rank_counts(ranks)][-2]
    specs = [*variants_of(run.train.global_batch, ranks, run.parallel.shard_size, n)]
    return RefusedCase(spec=specs[0], reason=states_shortage((estimate_memory(s, run, ranks) for s in specs), ranks))


def variants_of(
    global_batch: int, ranks: Ranks, shard_size: int | None = None, fewest: int = 1
) -> Iterator[VariantSpec]:
    """The fewest ranks alone; the independent trainings; more and more ranks, weak and strong.

    global_batch: of all ranks together in weak scaling. shard_size: of hsdp; fewer ranks shard over all of them.
    """
    each = max(1, global_batch // ranks.all)

    def variant(name: str, n: int, batch: int, values: dict[str, float], *, at_once: bool = False) -> VariantSpec:
        changes: dict[str, Any] = {"train": {"global_batch": batch}}
        if shard_size is not None and n % shard_size:
            changes["parallel"] = {"shard_size": n}
        return VariantSpec(name=name, ranks=n, at_once=at_once, changes=changes, values=values)

    shared = each * fewest
    yield variant(alone_name(fewest), fewest, shared, {})
    yield variant(independent_name(ranks.all // fewest, fewest), fewest, shared, {INDEPENDENT: 1.0}, at_once=True)
    for n in rank_counts(ranks):
        if n > fewest:
            yield variant(weak_name(n), n, each * n, {WEAK: 1.0})
            if shared >= n:
                yield variant(f"{n} ranks, strong", n, shared, {WEAK: 0.0})


def rank_counts(ranks: Ranks) -> list[int]:
    """Numbers of ranks above one: all, and 2, 4, 8 … that divide them and fill parts of a node, or whole nodes."""
    doubled = [2**i for i in range(1, ranks.all.bit_length())]
    fitting = [n for n in doubled if ranks.all % n == 0 and (n % ranks.per_node == 0 or ranks.per_node % n == 0)]
    return sorted({*fitting, ranks.all})


def alone_name(ranks: int) -> str:
    """Name of the case of the fewest ranks."""
    return f"{ranks} rank{'' if ranks == 1 else 's'}"


def independent_name(jobs: int, ranks: int) -> str:
    """Name of the case of independent trainings of so many ranks each."""
    return f"{jobs} jobs of {alone_name(ranks)}"


def weak_name(ranks: int) -> str:
    """Name of a case of weak scaling."""
    return f"{ranks} ranks, weak"


_NAMES = {"weak": "weak", "strong": "strong", "independent": "independent jobs"}

_HOW = (
    "Efficiency is throughput over as many times that of one rank, or per rank over that of the fewest that have room "
    "for the model. Overhead is the additional time of all ranks together for the same work: 1 / efficiency - 1. Weak: "
    "the work grows with the ranks. Strong: all ranks share the work of the fewest. Independent jobs of that size, at "
    "the same time, lose only to what cores share: memory bandwidth, caches, clock rate; any further loss is "
    "communication and waiting, less what a rank saves by updating only its share of the weights. Communication of the "
    "step counts that saving for neither side: it is the share of synchronisation of these blocks."
)
_RELATIVE = (
    "Where one rank has no room for the model, all of this is relative to as few ranks as have, and leaves out what "
    "these exchange among themselves. Communication added is the share of the step that all ranks exchange on top of "
    "that, versus as many jobs of the reference's size at once: a lower bound of all communication."
)
_APART = (
    "If the fewest ranks were not measured in turns with the others, in one gang, the interval is that of two samples, "
    "and does not include differences from run to run."
)


def comparison(report: BenchReport) -> tuple[Block, ...]:
    """Curves of each model with a table, across gangs."""
    if not report.scaling:
        return ()
    blocks: list[Block] = [Heading(SUITE.title), Text(_HOW, quiet=True)]
    for model in dict.fromkeys(point.model for point in report.scaling):
        points = [point for point in report.scaling if point.model == model]
        blocks += [*_charts(model, points), _table(points)]
    if any(point.reference and point.ranks > 1 for point in report.scaling):
        blocks.append(Text(_RELATIVE, quiet=True))
    if any(point.efficiency and not point.paired for point in report.scaling):
        blocks.append(Text(_APART, quiet=True))
    blocks += predicted_blocks(report)
    larger = [point for point in report.scaling if not point.reference and point.kind != "independent"]
    if not larger:
        blocks.append(Text("No case of more ranks was measured, so efficiency is not known."))
    elif all(point.communication_share is None and point.added_share is None for point in larger):
        blocks.append(Text("Communication was not measured: the results have no values.communication_seconds."))
    return tuple(blocks)


def _charts(model: str, points: Sequence[ScalingPoint]) -> list[Chart]:
    ranks = sorted({point.ranks for point in points})
    fewest = [point for point in points if point.reference]
    if len(ranks) < 2 or not fewest:
        return []
    one = fewest[0].tokens_per_second.estimate / fewest[0].ranks
    rates: dict[str, Curve] = {}
    shares: dict[str, Curve] = {}
    for kind, name in _NAMES.items():
        curve = [point for point in points if point.kind == kind]
        if all(point.reference for point in curve):
            continue
        curve = [*([] if any(point.reference for point in curve) else fewest[:1]), *curve]
        rates[name] = [(point.ranks, point.tokens_per_second) for point in curve]
        shares[name] = [(p.ranks, p.efficiency or exact(1.0)) for p in curve if p.efficiency or p.reference]
    return [
        over_ranks(f"Throughput, {model}", rates, "tokens per second", [(n, n * one) for n in ranks]),
        over_ranks(f"Efficiency, {model}", shares, "of the ideal", [(n, 1.0) for n in ranks]),
    ]


def _table(points: Sequence[ScalingPoint]) -> Table:
    """The reference, which lies on both curves, has one row."""
    return columns(
        {(point.case, not point.reference and point.kind): point for point in points}.values(),
        Column("Scaling", lambda p: "reference" if p.reference else _NAMES[p.kind]),
        Column("Ranks", lambda p: p.ranks),
        Column("Tokens per second", lambda p: formatting.estimate(p.tokens_per_second, formatting.rate)),
        Column("Efficiency", _efficiency),
        Column("Overhead", _overhead),
        Column("Of independent jobs", lambda p: p.of_independent, _percent),
        Column("Communication of the step", lambda p: p.communication_share, formatting.percent),
        Column("Over computation", lambda p: p.communication_ratio, lambda ratio: f"{formatting.significant(ratio)}×"),
        Column("Communication added", lambda p: p.added_share, _share_from_zero),
        Column("Sent by a rank", lambda p: p.network_bytes, formatting.size),
        Column("Of the link", lambda p: p.link_share, formatting.percent),
        Column("Sent by a node", lambda p: p.node_bytes, formatting.size),
        drop_empty=True,
    )


def _efficiency(point: ScalingPoint) -> str | None:
    if point.efficiency is None:
        return None if point.reference else f"not known: {point.why}"
    return _percent(point.efficiency)


def _overhead(point: ScalingPoint) -> str | None:
    if point.overhead is None or point.relative_to is None:
        return None
    return f"{_share_from_zero(point.overhead)}, relative to {alone_name(point.relative_to)}"


def _share_from_zero(share: Interval) -> str:
    """Noise can make it negative, which means that none was measured."""
    return _percent(share.model_copy(update={k: max(0.0, getattr(share, k)) for k in ("estimate", "low", "high")}))


def _percent(share: Interval) -> str:
    return formatting.estimate(share, formatting.percent)


def _figures(cases: Sequence[Case]) -> dict[str, object]:
    points = scaling.scaling_points(cases)
    return {"scaling": points, "scaling_predicted": predicted_scaling(cases, points)}


SUITE = Suite(
    name=scaling.SUITE,
    title="Scaling",
    meaning="the same training on more and more ranks of one gang",
    groups=groups,
    fewest_ranks=2,
    measures=frozenset({"communication"}),
    figures=lambda cases, _: _figures(cases),
    comparison=comparison,
)
