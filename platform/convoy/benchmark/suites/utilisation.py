"""The utilisation suite: what a step's time, the host's cores and the GPU's power go into, pinned to cores and not.

Both cases are the same training; the ranks' threads move to the cores of a case before each of its turns.
"""

from collections.abc import Iterator

from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig

PINNED, FREE = "pinned", "not pinned"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One for each model. runs: by the model's name. ranks: of the gang, all of which take part."""
    for model, run in runs.items():
        on_host = ranks.all if run.cluster.backend == "local" else ranks.per_node
        variants = [VariantSpec(name=FREE, pin=False)]
        if on_host > 1:  # the cores of a host's only rank are all there are
            variants.append(VariantSpec(name=PINNED, pin=True))
        yield Group(
            name=f"utilisation-{model}",
            suite=SUITE.name,
            baseline=FREE,
            variants=tuple(variants),
            run=run,
            measure=config.measure,
        )


SUITE = Suite(
    name="utilisation",
    title="Utilisation",
    meaning="what a step's time, the host's cores and the GPU's power go into, pinned to cores and not",
    groups=groups,
    measures=frozenset({"utilisation"}),
)
