"""The gradient synchronisation suite: what training together costs beside training alone, and in which environment.

The reference is as many independent trainings of one rank as the gang has ranks, all at once and of the same size: they
have no network to wait for, and share the host's memory bandwidth, caches and clock rate alike. To switch only the
reduction of gradients off would leave the gathers of sharded weights in, which wait for the same links. What a sharded
training saves because each rank updates its share of the weights alone is no gain of synchronisation: the share
(`sync_share` of `benchmark/results/figures.py`) gives the reference the update of the other, in which nobody waits.
"""

from collections.abc import Iterator

from convoy.benchmark.analysis import sync
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.pages import sync_sections
from convoy.benchmark.suites import scaling
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig
from convoy.stats.interval import FEWEST

WITHOUT = "without synchronisation"
WITH = "with synchronisation"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """For each model one of the share, and one of gangs that take turns where there are environments. runs: by the
    model's name."""
    for model, run in runs.items():
        if config.sync.share:
            yield Group(
                name=f"sync-{model}",
                suite=SUITE.name,
                baseline=WITHOUT,
                variants=variants_of(run.train.global_batch, ranks, run.parallel.shard_size),
                run=run,
                measure=config.measure,
            )
        if config.sync.environments:
            yield _in_environments(f"network-{model}", config, run)


def variants_of(global_batch: int, ranks: Ranks, shard_size: int | None = None) -> tuple[VariantSpec, ...]:
    """All ranks by themselves, and all together. global_batch: of all ranks. shard_size: of hsdp."""
    found = {spec.name: spec for spec in scaling.variants_of(global_batch, ranks, shard_size)}
    alone, together = found[scaling.independent(ranks.all, 1)], found[scaling.weak(ranks.all)]
    return alone.model_copy(update={"name": WITHOUT}), together.model_copy(update={"name": WITH, "values": {}})


def _in_environments(name: str, config: BenchConfig, run: RunConfig) -> Group:
    """Training as it is configured. A gang is one figure, so its own blocks are few."""
    return Group(
        name=name,
        suite=SUITE.name,
        baseline=config.sync.environments[0].name,
        variants=(VariantSpec(name=WITH),),
        run=run,
        measure=config.measure.model_copy(update={"rounds": FEWEST}),
        compared=config.sync,
    )


SUITE = Suite(
    name=sync.SUITE,
    title="Gradient synchronisation",
    meaning="what training together costs next to training alone, and in which environment",
    groups=groups,
    fewest_ranks=2,
    measures=frozenset({"collectives"}),
    titles={"network": "Environments"},
    figures=lambda cases, _: {"sync": sync.sync(cases), "environments": sync.environments(cases)},
    comparison=sync_sections.sync,
)
