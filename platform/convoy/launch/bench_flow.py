"""What makes a flow a benchmark of Convoy's, as `launch/flow.py` makes one that trains."""

import json
import os
import sys
from typing import Any

from metaflow import FlowMutator
from metaflow._vendor import click

from convoy.bench.plan import keys_under_run, run_of
from convoy.config.bench import BenchConfig, resolve_bench
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.launch.bench_describe import describe_bench
from convoy.launch.bench_steps import COMMAND
from convoy.launch.flow import LAUNCHES, add_decorators, datastore_of, plain
from convoy.launch.host import local_gpus, name_user, use_this_interpreter
from convoy.launch.metaflow_options import values_of_options
from convoy.launch.parse import say_and_exit
from convoy.launch.preflight import check_extra, on_this_host, priced
from convoy.launch.shares import Share, shares_of
from convoy.launch.support import check
from convoy.launch.words import command_line


class convoy_benchmark(FlowMutator):  # noqa: N801 - it is used as a decorator
    """Class decorator of a flow with Configs `bench` and `set` and Parameter `dry-run`: as `convoy_flow`, for what
    `configs/bench/` configures. Gives the flow its schedule."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name_user()
        use_this_interpreter()
        super().__init__(*args, **kwargs)

    def pre_mutate(self, mutable_flow: Any) -> None:  # in `mutate` Metaflow takes no decorator of a flow any more
        try:
            config = bench_config(dict(mutable_flow.configs))
        except ConfigError as error:
            say_and_exit(error)
        if config.schedule is not None:
            mutable_flow.add_decorator("schedule", deco_kwargs={"cron": config.schedule})

    def mutate(self, mutable_flow: Any) -> None:
        command = click.get_current_context()
        try:
            config = bench_config(dict(mutable_flow.configs))
            shared = on_this_host(run_of(config, config.models[0]), local_gpus())
            if command.info_name in LAUNCHES:
                _check_bench(command, config, shares_of(config))
        except ConfigError as error:
            say_and_exit(error)
        add_decorators(mutable_flow, shared)


def bench_config(configs: dict[str, Any]) -> BenchConfig:
    """The checked configuration of a benchmark flow, from the values of its Configs `bench` and `set`. Raises
    ConfigError."""
    return resolve_bench(plain(configs["bench"]), plain(configs["set"]))


def _check_bench(command: Any, config: BenchConfig, shares: list[Share]) -> None:
    for share in shares:
        for group in share.groups:
            with keys_under_run():
                check(group.run, datastore_of(command), local_gpus())
                check_extra(group.run)
    if command.params.get("dry_run"):
        print(json.dumps(config.model_dump(mode="json"), indent=2))
        print(describe_bench(shares, _with_known_price(shares[0].groups[0].run)), file=sys.stderr)
        raise SystemExit(0)
    if command.info_name == "run":  # its first step is a process of this one
        os.environ[COMMAND] = command_line(sys.argv, values_of_options(), os.environ)


def _with_known_price(run: RunConfig) -> RunConfig:
    """As `priced`; where the root does not answer, as before there is an account, the catalog's price counts."""
    try:
        with keys_under_run():
            return priced(run)
    except ConfigError as error:
        print(f"convoy: the price below is the catalog's: {error}", file=sys.stderr)
        return run
