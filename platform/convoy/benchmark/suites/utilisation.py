"""The utilisation suite: how a step's time, the host's cores and the GPU are used, pinned to cores and not.

Both cases are the same training; the ranks' threads move to the cores of a case before each of its turns.
"""

from collections.abc import Iterator

from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig

PINNED, FREE = "pinned", "not pinned"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One group for each model. A host's only rank has all cores, so there is nothing to pin it to."""
    for model, run in runs.items():
        on_host = ranks.all if run.cluster.backend == "local" else ranks.per_node
        pinned = (VariantSpec(name=PINNED, pin=True),) if on_host > 1 else ()
        yield SUITE.make_group(model, run, config.measure, (VariantSpec(name=FREE, pin=False), *pinned))


SUITE = Suite(
    name="utilisation",
    title="Utilisation",
    meaning="how a step's time, the host's cores and the GPU are used, pinned to cores and not",
    groups=groups,
    measures=frozenset({"utilisation"}),
)
