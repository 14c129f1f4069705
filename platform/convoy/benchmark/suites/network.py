"""The network suite: collectives by the backend and by algorithms of Convoy's own, and links between pairs of ranks.

A gang measures one collective, whose algorithms take turns, or links in one of several ways; nothing is trained.
"""

from collections.abc import Iterator

from convoy.benchmark.analysis.network import network_report
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.pages.network import comparison
from convoy.benchmark.results.network import IN_PLACE_SUFFIX, SUITE_NAME
from convoy.config.benchmark import BenchConfig
from convoy.config.network import IN_AND_OUT_OF_PLACE, Operation
from convoy.config.run import RunConfig
from convoy.network.collectives.algorithms import algorithms_for

BACKEND = "backend"
"""Case of the collective as the backend, gloo or NCCL, carries it out."""


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """A gang for each collective, and for each kind of measurement of links. The models play no part."""
    run, network = next(iter(runs.values())), config.network
    for operation in network.operations:
        own = network.model_copy(update={"operations": (operation,), "links": ()})
        yield SUITE.make_group(operation, run, config.measure, cases_of(operation, ranks), network=own)
    for kind in network.links:
        own = network.model_copy(update={"operations": (), "links": (kind,)})
        cases = [VariantSpec(name=kind)]
        yield SUITE.make_group(kind, run, config.measure, cases, network=own, baseline=None)


def cases_of(operation: Operation, ranks: Ranks) -> list[VariantSpec]:
    """The backend, out of place and in place where it has both, and every algorithm that so many ranks can run."""
    names = [BACKEND, *([BACKEND + IN_PLACE_SUFFIX] if operation in IN_AND_OUT_OF_PLACE else [])]
    names += [algorithm.name for algorithm in algorithms_for(operation, ranks.all, ranks.per_node)]
    return [VariantSpec(name=name) for name in names]


SUITE = Suite(
    name=SUITE_NAME,
    title="Network",
    meaning="collectives by algorithm and size, with their bounds, and the links between pairs of ranks",
    groups=groups,
    fewest_ranks=2,
    figures=lambda cases, _: {"network": network_report(cases)},
    comparison=comparison,
)
