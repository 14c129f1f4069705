"""What makes a flow a Convoy flow: its configuration checked, its steps put on the cluster, before anything starts.

Every task and every card of a flow imports this module: of a benchmark it knows nothing (`launch/benchmark/flow.py`).
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from metaflow import FlowMutator, Step, StepMutator, namespace
from metaflow._vendor import click
from metaflow.exception import MetaflowNotFound
from metaflow.util import get_latest_run_id

from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.config.run import RunConfig
from convoy.launch.checks.compatibility import check_cluster
from convoy.launch.checks.host import local_gpus
from convoy.launch.checks.preflight import (
    Survey,
    check_job_is_free,
    named_job,
    notice_line,
    preflight,
    survey_run,
    with_host_defaults,
)
from convoy.launch.checks.watchers import check_notify, check_trackers
from convoy.launch.decorators import step_decorators
from convoy.launch.dry_run import align_lines, describe_decorators, describe_run, missing_checklist
from convoy.launch.parse import CONTINUE, expand_argv_presets, option_word_counts, print_and_exit, same_command

GANG = "convoy_gang"
"""The decorator of the steps that the gang's machines are for."""

LAUNCHES = ("run", "create")
"""The commands that start a run."""

_NEVER_REMOTE = ("start", "end")


class convoy_flow(FlowMutator):  # noqa: N801 - it is used as a decorator
    """Class decorator of a flow with Configs `run` and `set` and Parameters `job` and `dry-run`.

    Adds the decorators of `cluster:` to its steps, and on `run` checks what can be checked before the run exists: bad
    input ends the command with one line and exit code 2, a finished job and a dry run with exit code 0.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        expand_argv_presets("run", "train")
        super().__init__(*args, **kwargs)

    def mutate(self, mutable_flow: Any) -> None:
        command = click.get_current_context()
        try:
            config = flow_config(dict(mutable_flow.configs))
            if command.info_name == "resume":
                _check_resumed_job_is_free(command, config)
            elif command.info_name in LAUNCHES:
                _check_launch(command, config)
        except ConfigError as error:
            print_and_exit(error)
        add_decorators(mutable_flow, config)


class convoy_machines(StepMutator):  # noqa: N801 - it is used as a decorator
    """Step decorator next to `@convoy_gang` in a flow of your own: the machines, the size of /dev/shm, the retries and
    the time limit that `cluster:` asks for. `@convoy_machines("machines")`: the flow's Config of that name has them.

    What cannot work, or does not fit the machines, ends the command before the run exists: one line, exit code 2.
    """

    def init(self, config: str = "run") -> None:
        self._config = config

    def mutate(self, mutable_step: Any) -> None:
        command, configs = click.get_current_context(), dict(mutable_step.flow.configs)
        try:
            if self._config not in configs:
                names = ", ".join(sorted(configs)) or "none"
                raise ConfigError(f"@convoy_machines: the flow has no Config {self._config}; it has {names}")
            config = resolve(config_as_dict(configs[self._config]), {})
            if command.info_name in LAUNCHES:
                check_cluster(config, datastore_of(command))
                check_trackers(config)
                check_notify(config, os.environ)
        except ConfigError as error:
            print_and_exit(error)
        for decorator in step_decorators(config).gang:
            mutable_step.add_decorator(decorator.name, deco_kwargs=decorator.arguments, duplicates=mutable_step.IGNORE)


def flow_config(configs: dict[str, Any]) -> RunConfig:
    """The checked configuration of a flow, from the values of its Configs `run` and `set`. Raises ConfigError."""
    return with_host_defaults(resolve(config_as_dict(configs["run"]), config_as_dict(configs["set"])), local_gpus())


def _check_launch(command: Any, config: RunConfig) -> None:
    options = command.params
    job = named_job(options.get("job"), options.get("tags") or ())
    if options.get("dry_run"):
        _dry_run(config, survey_run(config, job, datastore_of(command)))
        raise SystemExit(0)
    finished = preflight(config, job, datastore_of(command))
    if finished is not None:
        print(finished)
        raise SystemExit(0)
    if command.info_name == "run":  # what is created prints its own description, for programs to read
        os.environ.setdefault(CONTINUE, same_command(sys.argv, option_word_counts(), os.environ))
        if (line := notice_line(config, os.environ)) is not None:
            print(line, flush=True)
        _print_plan(config)


def _dry_run(config: RunConfig, result: Survey) -> None:
    """The configuration on stdout, for programs; for people on stderr what would be launched, and what is missing."""
    print(json.dumps(config.model_dump(mode="json"), indent=2))
    sections = [describe_run(result.config, local_gpus()), *([str(result.finished)] if result.finished else [])]
    sections += [
        describe_decorators(config),
        *_plan_lines(config, root_answers=result.root_answers),
        missing_checklist(result.missing),
    ]
    print(*sections, sep="\n", file=sys.stderr)


def _plan_lines(config: RunConfig, *, root_answers: bool = True) -> Iterator[str]:
    """A title, and what is worth knowing of the plan."""
    from convoy.launch.plans import plan_caveats, plan_safely
    from convoy.planner.pages.plan import first_warning, plan_summary
    from convoy.planner.workload import rented_type

    plan = plan_safely(config, root_answers=root_answers)
    is_label = config.cluster.instance_type != rented_type(config)
    where = " of this host, where a local run computes" if is_label else ""
    yield f"\nPlan{where}:\n{align_lines(plan_summary(plan))}"
    yield from (f"  {caveat}" for caveat in plan_caveats(config, plan))
    if (why := first_warning(plan)) is not None:
        yield f"\nWARNING: by its plan this run {why}"


def _print_plan(config: RunConfig) -> None:
    """In one line, and in another one if nobody should count on it. The planner may be wrong: the run starts. Where
    it plans no time, as on CPUs that it does not know, the line would only say so."""
    from convoy.launch.plans import plan_caveats, plan_safely
    from convoy.planner.cost.assumptions import UNUSED_PRICE
    from convoy.planner.pages.plan import first_warning, plan_in_one_line

    plan = plan_safely(config)
    if plan.step is not None or config.cluster.backend != "local" or local_gpus():
        print(f"convoy plan: {'; '.join((plan_in_one_line(plan), *plan_caveats(config, plan)))}", flush=True)
    elif UNUSED_PRICE in plan.assumed:
        print(f"convoy plan: {UNUSED_PRICE}", flush=True)
    if (why := first_warning(plan)) is not None:
        print(f"WARNING: by its plan this run {why}. It starts all the same; see `convoy plan`", file=sys.stderr)


def _check_resumed_job_is_free(command: Any, config: RunConfig) -> None:
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
        gang = any(name_of_decorator == GANG for name_of_decorator, *_ in step.decorator_specs)
        for decorator in wanted.gang if gang else wanted.ordinary:
            step.add_decorator(decorator.name, deco_kwargs=decorator.arguments, duplicates=step.IGNORE)


def datastore_of(command: Any) -> str | None:
    """Where the command keeps artifacts, if it says so."""
    top = command.find_root().params
    value = top.get("datastore")
    return None if value is None else str(value)


def config_as_dict(value: Any) -> dict[str, Any]:
    """The value of a Config as a dictionary."""
    plain = value.to_dict() if hasattr(value, "to_dict") else value
    return dict(plain or {})
