"""From a benchmark's configuration to its groups, in the order in which they run. Imports no torch."""

from collections.abc import Callable, Iterator

from convoy.bench import scaling, strategies, throughput
from convoy.bench.groups import Group
from convoy.config.bench import BenchConfig, SuiteName
from convoy.config.load import merged, resolve, with_preset
from convoy.config.run import RunConfig

ENDLESS = 10**6
"""Optimizer steps of a measured job: no measurement comes to its end."""

_SUITES: dict[SuiteName, Callable[[BenchConfig, dict[str, RunConfig], int], Iterator[Group]]] = {
    "throughput": throughput.groups,
    "scaling": scaling.groups,
    "strategies": strategies.groups,
}


def run_of(config: BenchConfig, model: str) -> RunConfig:
    """The job that all cases of a model share. Raises ConfigError."""
    tree = merged(config.run, with_preset({"model": model}))
    return resolve(with_preset(tree), {"train": {"steps": ENDLESS}})


def plan(config: BenchConfig, runs: dict[str, RunConfig], ranks: int) -> list[Group]:
    """All gangs, one after the other. runs: of each model, as `run_of` gives them. ranks: of each gang."""
    return [group for suite in config.suites for group in _SUITES[suite](config, runs, ranks)]
