"""The network suite: collectives by the backend and by algorithms of Convoy's own, and links between pairs of ranks.

A gang measures one collective, whose algorithms take turns, or links in one of several ways; nothing is trained. NCCL's
own algorithms and protocols are chosen when a process starts, so gangs of each take turns.
"""

from collections.abc import Iterator
from typing import Any

from convoy.benchmark.analysis.network import network_report
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.pages.network import comparison
from convoy.benchmark.results.network import IN_PLACE_SUFFIX, SUITE_NAME
from convoy.config.benchmark import BenchConfig, EnvironmentConfig, SyncConfig
from convoy.config.network import IN_AND_OUT_OF_PLACE, NetworkConfig, Operation
from convoy.config.run import RunConfig
from convoy.network.collectives.algorithms import algorithms_for
from convoy.stats.interval import FEWEST

BACKEND = "backend"
"""Case of the collective as the backend, gloo or NCCL, carries it out."""

NCCL_CHOICE = "NCCL's choice"
"""Case of all_reduce with which settings of NCCL are compared."""

NCCL_SETTINGS = "nccl"
"""Name of their group, after the suite's."""


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """A gang for each collective, and for each kind of measurement of links, and gangs in turns for settings of NCCL.
    The models play no part."""
    run, network = next(iter(runs.values())), config.network
    missing = {} if ranks.on_gpus else {f"NCCL, {each}": "there is no GPU" for each in network.nccl_settings}
    for operation in network.operations:
        own = _only(network, operations=(operation,))
        cases = cases_of(operation, ranks)
        cases[0], missing = cases[0].model_copy(update={"not_measured": missing}), {}
        yield SUITE.make_group(operation, run, config.measure, cases, network=own)
    for kind in network.links:
        own = _only(network, links=(kind,))
        cases = [VariantSpec(name=kind, not_measured=missing)]
        missing = {}
        yield SUITE.make_group(kind, run, config.measure, cases, network=own, baseline=None)
    if network.nccl_settings and ranks.on_gpus:
        yield _nccl_group(config, run)


def _only(network: NetworkConfig, **measured: Any) -> NetworkConfig:
    nothing: dict[str, Any] = {"operations": (), "links": (), "nccl_settings": ()}
    return network.model_copy(update=nothing | measured)


def _nccl_group(config: BenchConfig, run: RunConfig) -> Group:
    """all_reduce in an environment for each setting, whose gangs take turns."""
    environments = [EnvironmentConfig(name=NCCL_CHOICE, set={"NCCL_ALGO": None, "NCCL_PROTO": None})]
    for setting in config.network.nccl_settings:
        algorithm, protocol = setting.split("/")
        variables: dict[str, str | None] = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
        environments.append(EnvironmentConfig(name=setting, set=variables))
    return SUITE.make_group(
        NCCL_SETTINGS,
        run,
        config.measure.model_copy(update={"rounds": FEWEST}),
        [VariantSpec(name=BACKEND)],
        baseline=NCCL_CHOICE,
        network=_only(config.network, operations=("all_reduce",)),
        compared=SyncConfig(share=False, environments=tuple(environments)),
    )


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
