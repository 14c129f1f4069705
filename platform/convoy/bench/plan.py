"""From a benchmark's configuration to its groups, in the order in which they run. Imports no torch."""

from collections.abc import Callable, Iterator

from convoy.bench import checkpoints, recovery, scaling, strategies, throughput
from convoy.bench.groups import Group, Ranks
from convoy.config.bench import BenchConfig, SuiteName
from convoy.config.errors import ConfigError, shown
from convoy.config.load import resolve, with_preset
from convoy.config.run import RunConfig

ENDLESS = 10**6
"""Optimizer steps of a measured job: no measurement comes to its end."""

_SUITES: dict[SuiteName, Callable[[BenchConfig, dict[str, RunConfig], Ranks], Iterator[Group]]] = {
    "throughput": throughput.groups,
    "scaling": scaling.groups,
    "strategies": strategies.groups,
    "checkpoint": checkpoints.groups,
    "recovery": recovery.groups,
}


def run_of(config: BenchConfig, model: str) -> RunConfig:
    """The job that all cases of a model share. Raises ConfigError."""
    preset = config.presets.get(model) or with_preset({"model": model})["model"]
    own = config.run.get("model", {})
    if not isinstance(own, dict) or "preset" in own:
        raise ConfigError(f"run.model = {shown(own)}: must be keys that differ from the preset; models says which")
    tree = {**config.run, "model": {**preset, **own}}
    return resolve(tree, {"train": {"steps": ENDLESS}})


def plan(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> list[Group]:
    """All gangs, one after the other. runs: of each model, as `run_of` gives them. ranks: of each gang.

    Drills come last: they need one host, and the other nodes of a flow have no gang to wait for in the meantime.
    """
    suites = sorted(config.suites, key=lambda suite: suite == recovery.SUITE)
    return [group for suite in suites for group in _SUITES[suite](config, runs, ranks)]
