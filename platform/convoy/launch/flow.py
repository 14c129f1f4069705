"""What makes a flow a Convoy flow: its configuration checked, its steps put on the cluster, before anything starts."""

import json
import os
import sys
from typing import Any

from metaflow import FlowMutator, Step, StepMutator, namespace
from metaflow._vendor import click
from metaflow.exception import MetaflowNotFound
from metaflow.util import get_latest_run_id

from convoy.bench.plan import keys_under_run, run_of
from convoy.config.bench import BenchConfig, resolve_bench
from convoy.config.errors import ConfigError
from convoy.config.load import resolve
from convoy.config.run import RunConfig
from convoy.launch.bench_describe import describe_bench
from convoy.launch.bench_steps import COMMAND
from convoy.launch.cluster import step_decorators
from convoy.launch.describe import describe
from convoy.launch.host import local_gpus, name_user, use_this_interpreter
from convoy.launch.metaflow_options import values_of_options
from convoy.launch.parse import say_and_exit
from convoy.launch.preflight import (
    check_extra,
    check_job_is_free,
    named_job,
    notice_line,
    on_this_host,
    preflight,
    priced,
)
from convoy.launch.shares import Share, shares_of
from convoy.launch.support import check, check_cluster
from convoy.launch.words import command_line

GANG = "convoy_gang"
"""The decorator of the steps that the gang's machines are for."""

_LAUNCHES = ("run", "create")
_NEVER_REMOTE = ("start", "end")


class convoy_flow(FlowMutator):  # noqa: N801 - it is used as a decorator
    """Class decorator of a flow with Configs `run` and `set` and Parameters `job` and `dry-run`.

    Adds the decorators of `cluster:` to its steps, and on `run` checks what can be checked before the run exists: bad
    input ends the command with one line and exit code 2, a finished job and a dry run with exit code 0.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Metaflow looks at both before it calls any hook.
        name_user()
        use_this_interpreter()
        super().__init__(*args, **kwargs)

    def mutate(self, mutable_flow: Any) -> None:
        command = click.get_current_context()
        try:
            config = flow_config(dict(mutable_flow.configs))
            if command.info_name == "resume":
                _check_resume(command, config)
            elif command.info_name in _LAUNCHES:
                _check(command, config)
        except ConfigError as error:
            say_and_exit(error)
        add_decorators(mutable_flow, config)


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
            if command.info_name in _LAUNCHES:
                _check_bench(command, config, shares_of(config))
        except ConfigError as error:
            say_and_exit(error)
        add_decorators(mutable_flow, shared)


class convoy_machines(StepMutator):  # noqa: N801 - it is used as a decorator
    """Step decorator beside `@convoy_gang` in a flow of your own: the machines, the size of /dev/shm, the retries and
    the time limit that `cluster:` asks for. `@convoy_machines("machines")`: the flow's Config of that name has them.

    What cannot work, or does not fit the machines, ends the command before the run exists: one line, exit code 2.
    """

    def init(self, config: str = "run") -> None:
        self._config = config

    def mutate(self, mutable_step: Any) -> None:
        command, configs = click.get_current_context(), dict(mutable_step.flow.configs)
        try:
            if self._config not in configs:
                raise ConfigError(f"@convoy_machines: the flow has no Config {self._config}; {_known(configs)}")
            config = resolve(_plain(configs[self._config]), {})
            if command.info_name in _LAUNCHES:
                check_cluster(config, _datastore(command))
        except ConfigError as error:
            say_and_exit(error)
        for decorator in step_decorators(config).gang:
            mutable_step.add_decorator(decorator.name, deco_kwargs=decorator.arguments, duplicates=mutable_step.IGNORE)


def flow_config(configs: dict[str, Any]) -> RunConfig:
    """The checked configuration of a flow, from the values of its Configs `run` and `set`. Raises ConfigError."""
    return on_this_host(resolve(_plain(configs["run"]), _plain(configs["set"])), local_gpus())


def bench_config(configs: dict[str, Any]) -> BenchConfig:
    """The checked configuration of a benchmark flow, from the values of its Configs `bench` and `set`. Raises
    ConfigError."""
    return resolve_bench(_plain(configs["bench"]), _plain(configs["set"]))


def _check_bench(command: Any, config: BenchConfig, shares: list[Share]) -> None:
    for share in shares:
        for group in share.groups:
            with keys_under_run():
                check(group.run, _datastore(command), local_gpus())
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


def _check(command: Any, config: RunConfig) -> None:
    options = command.params
    job = named_job(options.get("job"), options.get("tags") or ())
    finished = preflight(config, job, _datastore(command))
    if options.get("dry_run"):
        print(json.dumps(config.model_dump(mode="json"), indent=2))
        print(describe(priced(config), local_gpus()), *([finished] if finished else []), sep="\n", file=sys.stderr)
        raise SystemExit(0)
    if finished is not None:
        print(finished)
        raise SystemExit(0)
    if command.info_name == "run":  # what is created prints its own description, for programs to read
        print(notice_line(config, os.environ), flush=True)


def _check_resume(command: Any, config: RunConfig) -> None:
    """Configuration and job are those of the run to resume, if it got as far as naming its job."""
    flow = command.obj.flow.name
    run = command.params.get("origin_run_id") or get_latest_run_id(command.obj.echo, flow)
    namespace(None)
    try:
        start = Step(f"{flow}/{run}/start").task
    except MetaflowNotFound:
        return
    if start is not None and "job" in start:
        check_job_is_free(config, start["job"].data)


def add_decorators(mutable_flow: Any, config: RunConfig) -> None:
    """Those that `cluster:` asks for."""
    wanted = step_decorators(config)
    for name, step in mutable_flow.steps:
        if name in _NEVER_REMOTE:
            continue
        gang = any(known == GANG for known, *_ in step.decorator_specs)
        for decorator in wanted.gang if gang else wanted.ordinary:
            step.add_decorator(decorator.name, deco_kwargs=decorator.arguments, duplicates=step.IGNORE)


def _known(configs: dict[str, Any]) -> str:
    return f"it has {', '.join(sorted(configs))}" if configs else "it has none"


def _datastore(command: Any) -> str | None:
    top = command.find_root().params
    value = top.get("datastore")
    return None if value is None else str(value)


def _plain(value: Any) -> dict[str, Any]:
    plain = value.to_dict() if hasattr(value, "to_dict") else value
    return dict(plain or {})
