"""The groups of a benchmark's configuration, in the order in which they run. Imports no torch."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import TypeAdapter

from convoy.benchmark.groups import ENDLESS, Group, Ranks
from convoy.benchmark.memory_fit import gangs_that_fit
from convoy.benchmark.suites import network
from convoy.benchmark.suites.registry import suites_of
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError, yaml_value
from convoy.config.loader import expand_preset, resolve
from convoy.config.run import RunConfig, with_param_dtype

GROUPS = TypeAdapter(tuple[Group, ...])
"""Groups as JSON, for the processes that measure them."""


def run_of(config: BenchConfig, model: str) -> RunConfig:
    """The job that all cases of a model share. Raises ConfigError."""
    preset = config.presets.get(model) or expand_preset({"model": model})["model"]
    own = config.run.get("model", {})
    if not isinstance(own, dict) or "preset" in own:
        raise ConfigError(f"run.model = {yaml_value(own)}: must be keys that differ from the preset; models says which")
    tree = {**config.run, "model": {**preset, **own}}
    with name_keys_under_run():
        run = resolve(tree, {"train": {"steps": ENDLESS}})
    # Cases are compared in one type, the configuration's, whatever machine they run on.
    return with_param_dtype(run, "bf16") if run.train.param_dtype == "auto" else run


@contextmanager
def name_keys_under_run() -> Iterator[None]:
    """Errors on a key of the run name it as a benchmark's configuration does."""
    try:
        yield
    except ConfigError as error:
        raise error_under_run(error) from None


def error_under_run(error: ConfigError) -> ConfigError:
    """The same error, with a key of the run as a benchmark's configuration names it."""
    key = str(error).split(" ")[0].rstrip(":")
    of_run = key.split(".")[0] in RunConfig.model_fields and key != "model"  # a preset, which `models` names
    return type(error)(f"run.{error}") if of_run else error


def plan_groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> list[Group]:
    """All gangs, one after the other. runs: of each model, as `run_of` returns them. ranks: of each gang.

    Drills come last: they need one host, and the other nodes of a flow have no gang to wait for in the meantime.
    Raises ConfigError for a suite or case that does not exist, and for a model no case of which has room.
    """
    chosen = config.cases or {}
    suites_of(chosen, "cases")
    groups = [
        group.model_copy(update={"measures": suite.measures})
        for suite in suites_of(config.suites)
        if ranks.all >= suite.fewest_ranks
        for group in select_cases(suite.name, list(suite.groups(config, runs, ranks)), chosen.get(suite.name))
    ]
    groups.sort(key=lambda group: group.recovery is not None)
    return [gang for group in groups for gang in gangs_that_fit(group, ranks)]


def select_cases(suite: str, groups: list[Group], names: tuple[str, ...] | None) -> list[Group]:
    """The groups with the cases of these names alone, and those that they are compared with. names: None: all.

    What cases there are depends on the run: a name that is not among them is passed over, unless all are.
    """
    if names is None:
        return groups
    left = [_keep_cases(group, names) for group in groups if {spec.name for spec in group.case_specs} & set(names)]
    if groups and not left:
        cases = dict.fromkeys(spec.name for group in groups for spec in group.case_specs)
        raise ConfigError(f"cases.{suite} = {yaml_value(list(names))}: must be among {'; '.join(cases)}")
    return left


def _keep_cases(group: Group, names: tuple[str, ...]) -> Group:
    if group.compared is not None:  # gangs in several environments have one variant
        return group
    wanted = {group.baseline, *names, *(spec.baseline for spec in group.variants if spec.name in names)}
    return group.model_copy(update={"variants": tuple(spec for spec in group.variants if spec.name in wanted)})


def network_groups(config: BenchConfig, ranks: int, per_host: int, command: str, lab: str = "") -> list[Group]:
    """The groups of the network suite for so many ranks. lab: its hosts and links. Raises ConfigError."""
    runs = {model: run_of(config, model) for model in config.models}
    groups = network.SUITE.groups(config, runs, Ranks(ranks, per_host))
    return [group.model_copy(update={"command": command, "lab": lab}) for group in groups]
