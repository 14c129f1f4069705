"""The gradient synchronisation suite: what training together costs compared with training alone, and in which
environment.

The reference is as many independent trainings of one rank as the gang has ranks, all at once and of the same size: they
wait for no network, and share the host's memory bandwidth, caches and clock rate alike. Switching off only the
reduction of gradients would leave the gathers of sharded weights, which wait for the same links. What a sharded
training saves because each rank updates only its share of the weights is no gain of synchronisation: `sync_share`
(`benchmark/results/figures.py`) gives the reference the other's update, in which no rank waits.
"""

from collections.abc import Iterator, Sequence

from convoy.benchmark.analysis import sync
from convoy.benchmark.analysis.report import BenchReport, SyncFigures, SyncLevel
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.pages.cases import describe_group, table
from convoy.benchmark.pages.environments import compared_blocks
from convoy.benchmark.results.collectives import CollectiveTiming
from convoy.benchmark.suites import scaling
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.display.page import Block, Callout, Column, Heading, Text, Tone, columns
from convoy.stats.interval import FEWEST, Interval

WITHOUT = "without synchronisation"
WITH = "with synchronisation"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """For each model one group that measures the share, and one of gangs that take turns if environments are
    configured. A gang yields one figure, so it needs few blocks."""
    for model, run in runs.items():
        if config.sync.share:
            variants = variants_of(run.train.global_batch, ranks, run.parallel.shard_size)
            yield SUITE.make_group(model, run, config.measure, variants)
        if config.sync.environments:
            measure = config.measure.model_copy(update={"rounds": FEWEST})
            names = {"name": f"network-{model}", "baseline": config.sync.environments[0].name}
            yield SUITE.make_group(model, run, measure, [VariantSpec(name=WITH)], **names, compared=config.sync)


def variants_of(global_batch: int, ranks: Ranks, shard_size: int | None = None) -> tuple[VariantSpec, ...]:
    """Each rank by itself, and all together. global_batch: of all ranks. shard_size: of hsdp."""
    named = {spec.name: spec for spec in scaling.variants_of(global_batch, ranks, shard_size)}
    alone, together = named[scaling.independent_name(ranks.all, 1)], named[scaling.weak_name(ranks.all)]
    return alone.model_copy(update={"name": WITHOUT}), together.model_copy(update={"name": WITH, "values": {}})


_HOW = (
    "The same ranks train together, and each alone at the same time; the share is how much longer a step takes "
    "together, with the update of training together in both. It includes every wait: for gathers of weights, sums of "
    "gradients, the exchange of gradient norm, loss and decisions, and for ranks that lag behind. Time that "
    "computation hides is not included."
)
_BANDWIDTH = (
    "The collectives by themselves, for whole tensors, with the slowest rank's time. algbw is bytes over time; busbw, "
    "by the formulas of nccl-tests, is what each rank's link carried in each direction."
)
_MIDDLE, _HIGH = (f"{limit:.0%}".replace("%", " %") for limit in sync.LIMITS)

_TITLES: dict[SyncLevel, str] = {
    "low": f"below {_MIDDLE}: synchronisation is no bottleneck",
    "middle": f"{_MIDDLE} to {_HIGH}: synchronisation is worth reducing",
    "high": f"above {_HIGH}: synchronisation is the bottleneck",
}
_TONES: dict[SyncLevel, Tone] = {"low": "good", "middle": "warning", "high": "bad"}

_ACTIONS: dict[SyncLevel, str] = {
    "low": "Look for speed elsewhere: the throughput suite measures each technique's effect.",
    "middle": (
        "Give each message more computation: a larger train.micro_batch where memory allows. With memory to spare, "
        "gather once per step: parallel.reshard_after_forward: false. Halve the gradients: train.reduce_dtype: bf16."
    ),
    "high": (
        "Keep the traffic within nodes: parallel.strategy: hsdp with shard_size of one node's ranks. Then a larger "
        "train.micro_batch, more of them per step without parallel.reshard_after_forward, and train.reduce_dtype: "
        "bf16. Between machines, compare the busbw below with the rated bandwidth of their network: if it is far "
        "lower, the traffic may not use EFA or InfiniBand at all (NCCL_DEBUG=INFO shows what it uses)."
    ),
}


def comparison(report: BenchReport) -> tuple[Block, ...]:
    """The share of synchronisation, then environments versus each other."""
    measured = [group for group in report.groups if group.suite == SUITE.name and any(c.rate for c in group.cases)]
    shares: list[Block] = []
    pairs: list[Block] = []
    for group in measured:
        if compared := [each for each in report.environments if each.group == group.name]:
            pairs += compared_blocks(group, compared)
            continue
        figures = [each for each in report.sync if each.group == group.name]
        shares += [Text(f"{describe_group(group)} {_HOW}", quiet=True), *map(_share, figures), table(group)]
        shares += [block for each in figures for block in (*_parts(each), *_collectives(each.collectives))]
    return (
        *([Heading(SUITE.title), *shares] if shares else []),
        *([Heading("Environments compared"), *pairs] if pairs else []),
    )


def _share(figures: SyncFigures) -> Block:
    share = figures.share
    if share is None:
        return Text(f"The share of synchronisation is not known: {figures.why}.")
    text = f"{formatting.percent(max(0.0, share.estimate))} of a step ({_bounds(share)}, n = {share.n})"
    (level,) = sync.sync_levels(share.model_copy(update={"low": share.estimate, "high": share.estimate}))
    if len(figures.levels) == 1:
        return Callout(f"{figures.model}: {text}, {_TITLES[level]}", _ACTIONS[level], _TONES[level])
    border = " and ".join(f"“{_TITLES[each]}”" for each in figures.levels)
    unsure = f"The interval crosses a limit, so either may hold: {border}. More rounds (measure.rounds) would decide."
    return Callout(f"{figures.model}: {text}", f"{unsure} By the estimate alone: {_ACTIONS[level]}", "warning")


def _bounds(share: Interval) -> str:
    """Noise can make a share negative, which means that no cost was measured."""
    if share.low <= 0:
        return f"none to {formatting.percent(max(0.0, share.high))}"
    return formatting.bounds(share, formatting.percent)


def _parts(figures: SyncFigures) -> list[Block]:
    if not figures.parts:
        return []
    total = sum(figures.parts.values())
    share = Column[tuple[str, float]]("Of the step", lambda p: p[1] / total if total > 0 else None, formatting.percent)
    part = Column[tuple[str, float]]("Part", lambda p: p[0])
    return [columns(figures.parts.items(), part, Column("Time", lambda p: p[1], formatting.duration), share)]


def _collectives(collectives: Sequence[CollectiveTiming]) -> list[Block]:
    if not collectives:
        return []
    table = columns(
        collectives,
        Column("Collective", lambda c: c.operation),
        Column("Size", lambda c: c.bytes, formatting.size),
        Column("Time", lambda c: formatting.estimate(c.seconds, formatting.duration)),
        Column("algbw", lambda c: c.algbw, formatting.bandwidth),
        Column("busbw", lambda c: c.busbw, formatting.bandwidth),
    )
    return [Text(_BANDWIDTH, quiet=True), table]


SUITE = Suite(
    name=sync.SUITE,
    title="Gradient synchronisation",
    meaning="what training together costs compared with training alone, and in which environment",
    groups=groups,
    fewest_ranks=2,
    measures=frozenset({"collectives"}),
    titles={"network": "Environments"},
    figures=lambda cases, _: {"sync": sync.sync_figures(cases), "environments": sync.environment_figures(cases)},
    comparison=comparison,
)
