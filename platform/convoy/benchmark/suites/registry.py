"""All suites that a benchmark can run, in the order of its page. Imports no torch."""

from collections.abc import Iterable

from convoy.benchmark.groups import Suite
from convoy.benchmark.suites import (
    checkpoint,
    frameworks,
    memory,
    network,
    recovery,
    scaling,
    strategies,
    sync,
    throughput,
    utilisation,
    workloads,
)
from convoy.config.errors import ConfigError, must_be_one_of

SUITES: tuple[Suite, ...] = (
    throughput.SUITE,
    strategies.SUITE,
    frameworks.SUITE,
    memory.SUITE,
    utilisation.SUITE,
    sync.SUITE,
    network.SUITE,
    checkpoint.SUITE,
    recovery.SUITE,
    scaling.SUITE,
    workloads.SUITE,
)


def suites_of(names: Iterable[str], key: str = "suites.{}") -> list[Suite]:
    """The suites of these names. Raises ConfigError for one that does not exist. key: of the name at an index."""
    suites = {suite.name: suite for suite in SUITES}
    for i, name in enumerate(names):
        if name not in suites:
            raise ConfigError(f"{key.format(i)} = {name}: {must_be_one_of(name, list(suites))}")
    return [suites[name] for name in names]
