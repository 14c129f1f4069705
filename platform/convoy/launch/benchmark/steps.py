"""The bodies of the benchmark flow's steps. Artifacts between them are plain JSON data.

Every task of the flow imports this module, so modules that only one step needs are imported when that step runs.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from convoy.display import formatting
from convoy.launch.steps import plain_errors

if TYPE_CHECKING:
    from convoy.benchmark.groups import Group
    from convoy.benchmark.results.case import Case
    from convoy.gang.task import Script
    from convoy.storage import Store

Json = dict[str, Any]

COMMAND = "CONVOY_BENCHMARK_COMMAND"
"""Variable by which the process that starts a run passes its command line to the first step."""


def settle(bench_config: Any, overrides: Any, current: Any) -> tuple[Json, list[Json], str, str]:
    """The resolved configuration, the shares of the benchmark, the name of its results, which a resumed run shares with
    the original one, and the command that started it, as far as it is known here."""
    from convoy.launch.benchmark.flow import bench_config as resolved
    from convoy.launch.benchmark.split import shares_of

    with plain_errors():
        config = resolved({"bench": bench_config, "set": overrides})
        shares = [share.model_dump(mode="json") for share in shares_of(config)]
    command = os.environ.get(COMMAND) or f"{current.flow_name} run"  # an orchestrator of a cluster has no command line
    return config.model_dump(mode="json"), shares, f"{current.flow_name}-{current.run_id}", command


def prepare_data(shares: Sequence[Json]) -> None:
    """Prepare the token shards of every model that is trained, before any expensive machine starts."""
    from convoy.data.job_data import prepare_job_data

    with plain_errors():
        trained = (group for group in _groups(shares) if group.network is None)
        for group in trained:
            prepare_job_data(group.run, _store(group))


def measure(share: Json, name: str, command: str, current: Any) -> list[Json]:
    """Run the share's gangs, one after the other; returns `name`, `began`, `ended` and `failure` of each.

    Cases that an earlier attempt of this run measured are not measured again. Fails for a preemption, and if no gang of
    the share yielded any figure.
    """
    from convoy.benchmark.results.files import read_saved_cases, save_case
    from convoy.launch.benchmark.groups import run_groups
    from convoy.launch.gang.step import GangFailedError

    groups = _groups([share])
    store = _store(groups[0])
    done = {(case.group, case.name) for case in read_saved_cases(store, name) if case.status != "failed"}
    remaining = [group for group in groups if not _measurable_cases(group) <= done]
    times = []
    first = current.parallel.node_index == 0

    def say(line: str) -> None:
        if first:  # the other nodes would print the same
            print(line, flush=True)

    for ran in run_groups(remaining, _gang_runner(current), say, command, first):
        for case in ran.cases if first else ():
            save_case(store, name, case)
        if ran.failure and not first:  # the first node may not know it
            print(f"{ran.group.name}: {ran.failure}", flush=True)
        times.append({"name": ran.group.name, "began": ran.began, "ended": ran.ended, "failure": ran.failure})
    if remaining and len(remaining) == len(groups) and all(each["failure"] for each in times):
        with plain_errors(GangFailedError):
            raise GangFailedError("\n".join(f"{each['name']}: {each['failure']}" for each in times))
    return times


def report(shares: Sequence[Json], name: str, current: Any) -> list[Json]:
    """Draw the card; returns every case as plain data."""
    from convoy.benchmark.analysis.history import rates_by_fingerprint
    from convoy.benchmark.page import benchmark_page
    from convoy.benchmark.results.files import read_earlier_cases, read_saved_cases
    from convoy.catalog.prices import PriceBook
    from convoy.launch.pricing import read_prices
    from metaflow_extensions.convoy.plugins.cards.convoy.components import show

    with plain_errors():
        store = _store(_groups(shares)[0])
        cases = read_saved_cases(store, name)
        before = rates_by_fingerprint(past for case in cases for past in read_earlier_cases(store, case))
        page = benchmark_page(cases, before, PriceBook(read_prices(store)))
    show(current.card, page)  # written as the task ends
    _notify_of_regressions(_groups(shares)[0], name, cases)
    return [case.model_dump(mode="json") for case in cases]


def summary(results: Sequence[Json], times: Sequence[Json]) -> str:
    """The last lines in the terminal."""
    measured = sum(case["status"] == "measured" for case in results)
    lines = [f"{measured} of {len(results)} cases measured in {formatting.plural(len(times), 'gang')}"]
    lines += [f"{each['name']}: {each['failure']}" for each in times if each["failure"]]
    return "\n".join(lines)


def _notify_of_regressions(group: "Group", name: str, cases: Sequence["Case"]) -> None:
    """Send `regressed` if a rate is lower than in the run before, beyond what chance explains."""
    from convoy.benchmark.results.compare import compare
    from convoy.benchmark.results.files import read_earlier_cases
    from convoy.benchmark.results.regressions import regression_message
    from convoy.gang.async_call import say
    from convoy.job.record import job_store
    from convoy.report.notifications.notifier import Outbox
    from convoy.report.notifications.send import check_target

    if "regressed" not in group.run.notify.on:
        return
    store = _store(group)
    earlier = [(case, read_earlier_cases(store, case)) for case in cases if case.status == "measured"]
    compared = [each for case, before in earlier if before for each in compare(before[-1], case)]  # same fingerprint
    command = os.environ.get(COMMAND) or f"{name.rpartition('-')[0]} run"
    message = regression_message(name, compared, command)
    if message is None:
        return
    try:
        check_target(os.environ)
        outbox = Outbox(group.run.notify, job_store(str(group.run.root), name, group.run))
        outbox.deliver("regressed", lambda: message)
    except (OSError, ValueError) as error:  # the results count all the same
        say(f"convoy: notify: {error}", error=True)


def _measurable_cases(group: "Group") -> set[tuple[str, str]]:
    """Group and name of the cases that any machine can measure."""
    return {(group.name, spec.name) for spec in group.case_specs if not spec.needs_gpu}


def _gang_runner(current: Any) -> "Any":
    """A function that runs a group as a gang of this step. Any failure but a preemption is the group's."""
    from metaflow.exception import MetaflowException

    from convoy.gang.messages import PreemptedError
    from convoy.launch.gang.step import GangFailedError

    def run(group: "Group", script: "Script") -> None:
        try:
            current.convoy.run(script.entrypoint, script.args, config=group.run, hang_seconds=script.hang_seconds)
        except MetaflowException as error:
            if error.headline == PreemptedError.headline:
                raise
            raise GangFailedError(str(error)) from None

    return run


def _groups(shares: Sequence[Json]) -> "list[Group]":
    from convoy.launch.benchmark.split import Share

    return [group for share in shares for group in Share.model_validate(share).groups]


def _store(group: "Group") -> "Store":
    from convoy.storage import open_store

    return open_store(str(group.run.root), group.run.checkpoint.store)
