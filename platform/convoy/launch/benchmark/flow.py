"""The decorator that makes a flow a benchmark of Convoy's, as `launch/flow.py` makes one that trains."""

import json
import os
import sys
from typing import Any

from metaflow import FlowMutator
from metaflow._vendor import click

from convoy.benchmark.plan import error_under_run, name_keys_under_run
from convoy.config.benchmark import BenchConfig, resolve_bench
from convoy.config.errors import ConfigError
from convoy.launch.benchmark.split import Share, describe_bench, run_on_host, shares_of
from convoy.launch.benchmark.steps import COMMAND
from convoy.launch.checks.preflight import combine_missing, missing_settings, survey_root
from convoy.launch.dry_run import describe_decorators, missing_checklist
from convoy.launch.flow import LAUNCHES, add_decorators, config_as_dict, datastore_of
from convoy.launch.parse import expand_argv_presets, option_word_counts, print_and_exit, same_command


class convoy_benchmark(FlowMutator):  # noqa: N801 - it is used as a decorator
    """Class decorator of a flow with Configs `bench` and `set` and Parameter `dry-run`: as `convoy_flow`, for the
    configurations of `configs/bench/`. Gives the flow its schedule."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        expand_argv_presets("bench", "bench")
        super().__init__(*args, **kwargs)

    def pre_mutate(self, mutable_flow: Any) -> None:  # in `mutate` it is too late to add a decorator to a flow
        try:
            config = bench_config(dict(mutable_flow.configs))
        except ConfigError as error:
            print_and_exit(error)
        if config.schedule is not None:
            mutable_flow.add_decorator("schedule", deco_kwargs={"cron": config.schedule})

    def mutate(self, mutable_flow: Any) -> None:
        command = click.get_current_context()
        try:
            config = bench_config(dict(mutable_flow.configs))
            shared = run_on_host(config, config.models[0])
            if command.info_name in LAUNCHES:
                _prepare_launch(command, config, shares_of(config))
        except ConfigError as error:
            print_and_exit(error)
        add_decorators(mutable_flow, shared)


def bench_config(configs: dict[str, Any]) -> BenchConfig:
    """The checked configuration of a benchmark flow, from the values of its Configs `bench` and `set`. Raises
    ConfigError."""
    return resolve_bench(config_as_dict(configs["bench"]), config_as_dict(configs["set"]))


def _prepare_launch(command: Any, config: BenchConfig, shares: list[Share]) -> None:
    runs = [group.run for share in shares for group in share.groups]
    with name_keys_under_run():
        unset_keys = [each for run in runs for each in missing_settings(run, datastore_of(command))]
    missing = list({str(each): each for each in map(error_under_run, unset_keys)}.values())
    if command.params.get("dry_run"):
        _print_dry_run(config, shares, missing)
        raise SystemExit(0)
    if missing:
        raise combine_missing(missing)
    if command.info_name == "run":  # its first step is a process of this one
        os.environ[COMMAND] = same_command(sys.argv, option_word_counts(), os.environ)


def _print_dry_run(config: BenchConfig, shares: list[Share], missing: list[ConfigError]) -> None:
    """Print the dry run as `launch/flow.py` does, without a plan: a benchmark has none."""
    run = shares[0].groups[0].run
    with name_keys_under_run():
        root_survey = survey_root(run, missing)
    print(json.dumps(config.model_dump(mode="json"), indent=2))
    sections = [
        describe_bench(shares, root_survey.config),
        describe_decorators(run),
        missing_checklist([*map(error_under_run, root_survey.missing)]),
    ]
    print(*sections, sep="\n", file=sys.stderr)
