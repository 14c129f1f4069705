"""Groups of a benchmark, one after the other, each a supervised gang; without Metaflow on this host, or in a step."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.results.case import Case, Hardware, Provenance, Status
from convoy.benchmark.results.files import read_cases
from convoy.benchmark.results.values import OF_LARGEST
from convoy.benchmark.suites.environments import merged, turns
from convoy.benchmark.suites.peers import parted
from convoy.config.run import RunConfig
from convoy.display.formatting import course
from convoy.gang import local_node
from convoy.gang.assignment import Script
from convoy.launch.benchmark.drills import run_drills
from convoy.launch.gang.step import GangFailedError

WORKER = "convoy.benchmark.worker"

HANG_SECONDS = 600.0
"""A block, or a step of warm-up that compiles, may take so long."""

LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Ran:
    """A group that was run."""

    group: Group
    cases: tuple[Case, ...]
    began: float
    """Wall time, as `ended`."""
    ended: float
    failure: str = ""
    """Why there are no figures; empty: there are."""


def run_groups(
    groups: Sequence[Group],
    run_gang: Callable[[Group, Script], None],
    say: Callable[[str], None],
    command: str = "",
    drills: bool = True,
) -> Iterator[Ran]:
    """Each as a gang, by `run_gang`, which raises GangFailedError. What fails does not keep the others from running;
    cases whose packages are not here are refused before their gang starts.

    command: what was asked for; the cases tell of it. Of several nodes each does this alike; cases are those of the
    node whose rank wrote them, and none on the others. drills: this node runs them, which need one host only; of
    several nodes one does, and the others go on to wait for it in the next gang.
    """
    start, done, total = time.monotonic(), 0, sum(len(group.cases) for group in groups)
    for number, group in enumerate(groups, 1):
        here = parted(group)
        names, so_far = ", ".join(spec.name for spec in here.cases), course(done, total, time.monotonic() - start)
        say(f"{group.name} (group {number} of {len(groups)}; cases: {so_far}): {names}")
        done += len(group.cases)
        for each in here.refused:
            say(f"{each.spec.name}: {each.reason}")
        recorded = here.model_copy(update={"command": command})
        began = time.time()
        run = partial(run_drills, say=say) if here.recovery else run_gang
        cases: tuple[Case, ...] = ()
        failure = ""
        if drills or not here.recovery:
            cases, failure = _in_turns(recorded, run, say) if here.compared else _run(recorded, run)
        if failure:
            say(f"{group.name}: {failure}")
            ended = {case.name: case for case in cases if here.recovery}  # drills are, one by one
            cases = tuple(ended.get(s.name) or unmeasured_case(group, s, "failed", failure) for s in here.cases)
        refused = (unmeasured_case(group, each.spec, "refused", each.reason) for each in here.refused)
        yield Ran(group, (*cases, *refused), began, time.time(), failure)


def _run(group: Group, run: Callable[[Group, Script], None]) -> tuple[tuple[Case, ...], str]:
    """One gang, or one group's drills: the cases that were written, and why it failed."""
    with tempfile.TemporaryDirectory(prefix="convoy-bench-") as name:
        folder, group_file = Path(name) / "cases", Path(name) / "group.json"
        group_file.write_text(group.model_dump_json())
        failure = ""
        try:
            run(group, Script(entrypoint=WORKER, args=(str(group_file), str(folder)), hang_seconds=HANG_SECONDS))
        except GangFailedError as error:
            failure = str(error)
        return tuple(read_cases(folder)) if folder.is_dir() else (), failure


def _in_turns(
    group: Group, run: Callable[[Group, Script], None], say: Callable[[str], None]
) -> tuple[tuple[Case, ...], str]:
    """A gang for each turn of each environment. The first that fails ends them all: without its pair too few may be
    left, and one that cannot work would fail again each time."""
    measured, planned = [], list(turns(group))
    for number, turn in enumerate(planned, 1):
        say(f"{group.name}: gang {number} of {len(planned)}, {turn.case}")
        cases, failure = _run(turn.group, run)
        if failure:
            return (), f"{turn.case}: {failure}"
        measured += [(turn, case) for case in cases]
    return merged(group, measured), ""


def gang_here(job: str, nodes: int, nproc: int) -> Callable[[Group, Script], None]:
    """Runs a group's gang on this host: a process for each node."""

    def run(group: Group, script: Script) -> None:
        with tempfile.TemporaryDirectory(prefix="convoy-gang-") as name:
            processes = [
                local_node.start(
                    local_node.Spec(
                        config=named(group),
                        job=f"{job}-{group.name}",
                        root=str(group.run.root),
                        data_id="",
                        fingerprint="script",
                        index=index,
                        nodes=nodes,
                        nproc=nproc,
                        run=job,
                        attempt=0,
                        script=script,
                    ),
                    Path(name) / str(index),
                    {**os.environ, "PYTHONUNBUFFERED": "1"},
                )
                for index in range(nodes)
            ]
            while any(node.process.poll() is None for node in processes):
                time.sleep(LOOK_SECONDS)
            _check([node.told() for node in processes])

    return run


def named(group: Group) -> RunConfig:
    """The group's run under the group's name, by which its job is shown."""
    return group.run.model_copy(update={"model": group.run.model.model_copy(update={"name": group.name})})


def unmeasured_case(group: Group, spec: VariantSpec, status: Status, reason: str) -> Case:
    """Stands for one that has no figures."""
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


def _check(results: Sequence[local_node.Told]) -> None:
    """Raise GangFailedError with the first cause, which node 0 knows before all others."""
    for each in results:
        if each.outcome is None:
            raise GangFailedError(each.error)
        if each.outcome.outcome != "finished":
            raise GangFailedError(each.outcome.message or each.outcome.outcome)
