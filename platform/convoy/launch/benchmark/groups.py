"""Groups of a benchmark, one after the other: supervised gangs in a flow's step or on this host, and drills."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.results.case import Case, Hardware, Provenance, Status
from convoy.benchmark.results.files import read_cases, save_case, write_case
from convoy.benchmark.results.values import OF_LARGEST
from convoy.benchmark.suites.environments import merged_cases, turns
from convoy.benchmark.suites.peers import refuse_missing_packages
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.display.formatting import work_progress
from convoy.gang import local_node
from convoy.gang.task import Script, Task
from convoy.launch.benchmark.split import Share, shares_of
from convoy.launch.checks.compatibility import world
from convoy.launch.checks.host import local_gpus
from convoy.launch.gang.step import GangFailedError
from convoy.storage import open_store

WORKER, DRILL_WORKER = "convoy.benchmark.worker", "convoy.benchmark.drill_worker"

HANG_SECONDS = 600.0
"""A block, or a step of warm-up that compiles, may take so long."""

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class GroupResult:
    """What came of a group."""

    group: Group
    cases: tuple[Case, ...]
    began: float
    """Wall time, as `ended`."""
    ended: float
    failure: str = ""
    """Why it has no figures; empty: it has."""


def run_groups(
    groups: Sequence[Group],
    run_gang: Callable[[Group, Script], None],
    say: Callable[[str], None],
    command: str = "",
    drills: bool = True,
) -> Iterator[GroupResult]:
    """Run each group as a gang, by `run_gang`, which raises GangFailedError. A failed group does not stop the others;
    cases whose packages are missing are refused before their gang starts.

    All nodes call it alike; only the node of the rank that writes cases has any. command: recorded in the cases.
    drills: whether this node runs drills, which need one host only; the other nodes wait for it in the next gang.
    """
    start, done, total = time.monotonic(), 0, sum(len(group.case_specs) for group in groups)
    for number, group in enumerate(groups, 1):
        here = refuse_missing_packages(group)
        names = "; ".join(spec.name for spec in here.case_specs)
        progress = work_progress(done, total, time.monotonic() - start)
        say(f"{group.name} (group {number} of {len(groups)}; cases: {progress}): {names}")
        done += len(group.case_specs)
        for each in here.refused:
            say(f"{each.spec.name}: {each.reason}")
        recorded = here.model_copy(update={"command": command})
        began = time.time()
        run = partial(run_drills, say=say) if here.recovery else run_gang
        cases: tuple[Case, ...] = ()
        failure = ""
        if here.variants and (drills or not here.recovery):
            cases, failure = _run_gangs_in_turns(recorded, run, say) if here.compared else _run_gang(recorded, run)
        if failure:
            say(f"{group.name}: {failure}")
            # Drills and stores are measured one by one.
            ended = {case.name: case for case in cases if here.recovery or here.stores}
            cases = tuple(ended.get(s.name) or unmeasured_case(group, s, "failed", failure) for s in here.case_specs)
        refused = (unmeasured_case(group, each.spec, "refused", each.reason) for each in here.refused)
        yield GroupResult(group, (*cases, *refused), began, time.time(), failure)


def _run_gang(group: Group, run: Callable[[Group, Script], None]) -> tuple[tuple[Case, ...], str]:
    """Run one gang, or one group's drills; returns the cases that were written, and why it failed."""
    with tempfile.TemporaryDirectory(prefix="convoy-bench-") as name:
        folder, group_file = Path(name) / "cases", Path(name) / "group.json"
        group_file.write_text(group.model_dump_json())
        failure = ""
        try:
            run(group, Script(entrypoint=WORKER, args=(str(group_file), str(folder)), hang_seconds=HANG_SECONDS))
        except GangFailedError as error:
            failure = str(error)
        return tuple(read_cases(folder)) if folder.is_dir() else (), failure


def _run_gangs_in_turns(
    group: Group, run: Callable[[Group, Script], None], say: Callable[[str], None]
) -> tuple[tuple[Case, ...], str]:
    """Run a gang for each turn of each environment. An environment that fails is not tried again; without one to
    compare with, or to be compared, nothing is."""
    measured, gangs = [], list(turns(group))
    failed: dict[str, str] = {}
    for number, turn in enumerate(gangs, 1):
        if turn.case in failed:
            continue
        say(f"{group.name}: gang {number} of {len(gangs)}, {turn.case}")
        cases, failure = _run_gang(turn.group, run)
        if failure:
            failed[turn.case] = failure
            if turn.case == group.baseline or len(failed) == len(group.case_specs) - 1:
                return (), f"{turn.case}: {failure}"
            say(f"{group.name}: {turn.case}: {failure}")
        measured += [(turn, case) for case in cases]
    whole = merged_cases(group, [(turn, case) for turn, case in measured if turn.case not in failed])
    specs = (spec for spec in group.case_specs if spec.name in failed)
    return (*whole, *(unmeasured_case(group, spec, "failed", failed[spec.name]) for spec in specs)), ""


def local_gang_runner(job: str, nodes: int, nproc: int) -> Callable[[Group, Script], None]:
    """A function that runs a group's gang on this host, with a process for each node."""

    def run(group: Group, script: Script) -> None:
        with tempfile.TemporaryDirectory(prefix="convoy-gang-") as name:
            task = Task(run_named_after(group), f"{job}-{group.name}", str(group.run.root), "", "script", script=script)
            processes = [
                local_node.start_node(
                    local_node.NodeSpec(task=task, node=local_node.node_on_this_host(index, nodes, nproc, job)),
                    Path(name) / str(index),
                    {**os.environ, "PYTHONUNBUFFERED": "1"},
                )
                for index in range(nodes)
            ]
            while any(node.process.poll() is None for node in processes):
                time.sleep(POLL_SECONDS)
            _raise_first_failure([node.result() for node in processes])

    return run


def run_named_after(group: Group) -> RunConfig:
    """The group's run with the group's name as that of its model, which is displayed."""
    return group.run.model_copy(update={"model": group.run.model.model_copy(update={"name": group.name})})


def unmeasured_case(group: Group, spec: VariantSpec, status: Status, reason: str) -> Case:
    """A case without figures. reason: its first line is recorded."""
    config = spec.config(group.run)
    first = next(iter(reason.strip().splitlines()), "")
    return Case(
        suite=group.suite,
        group=group.name,
        name=spec.name,
        baseline=group.baseline_of(spec),
        status=status,
        reason=first,
        model=config.model.name,
        parameters=0,
        tokens_per_step=config.train.global_batch * config.data.sequence_length,
        config=config.model_dump(mode="json"),
        hardware=Hardware(
            device="",
            nodes=config.cluster.nodes,
            ranks=1,
            threads=1,
            cores=1,
            memory_bytes=0,
            instance_type=config.cluster.instance_type,
        ),
        provenance=Provenance(measured=datetime.now(UTC), commit="", versions={}, environment={}),
        values={name: value for name, value in spec.values.items() if name in OF_LARGEST},
        not_measured=spec.not_measured,
    )


def _raise_first_failure(results: Sequence[local_node.NodeResult]) -> None:
    """Raise GangFailedError with the first cause, for which node 0 comes before all others."""
    for each in results:
        if each.outcome is None:
            raise GangFailedError(each.error)
        if each.outcome.outcome != "finished":
            raise GangFailedError(each.outcome.message or each.outcome.outcome)


def run_drills(group: Group, script: Script, say: Callable[[str], None]) -> None:
    """Run a group of drills, which form gangs of their own on this host and write a case each, to where the script's
    arguments say. Raises GangFailedError."""
    command, last = [sys.executable, "-m", DRILL_WORKER, *script.args], ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=drill_environment(group, local_gpus())
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip() or last
                say(f"{group.name}: {line.rstrip()}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise GangFailedError(f"the drills ended with exit code {process.returncode}: {last}")


def drill_environment(group: Group, gpus: int) -> dict[str, str]:
    """Variables of the drills: gangs of more workers than this host has GPUs train on its CPU."""
    workers = group.recovery.nodes if group.recovery is not None else 1
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if 0 < gpus < workers else {}
    return {**os.environ, **hidden}


def run_here(config: BenchConfig, folder: Path, say: Callable[[str], None], command: str = "") -> list[GroupResult]:
    """Run a whole benchmark on this host, without Metaflow, and write each case into the folder, and below the root, as
    soon as its group has ended.

    Raises ConfigError before anything starts.
    """
    groups = share_here(config).groups
    ranks, store = world(groups[0].run, local_gpus()), open_store(str(groups[0].run.root))
    run = f"bench-{socket.gethostname()}-{int(time.time())}-{os.getpid()}"
    results = []
    for result in run_groups(groups, local_gang_runner(run, ranks.nodes, ranks.nproc_per_node), say, command):
        for case in result.cases:
            write_case(folder, case)
            save_case(store, run, case)
        results.append(result)
    return results


def share_here(config: BenchConfig) -> Share:
    """Every group, checked against this host before anything starts. Raises ConfigError."""
    share = shares_of(config)[0]
    backend = share.groups[0].run.cluster.backend
    if backend != "local":
        raise ConfigError(f"run.cluster.backend = {backend}: must be local; flows/benchmark_flow.py starts machines")
    return share
