"""A writer that is killed at any operation of a save, alone or with its rank, costs that save at most, whatever engine
trains: the job ends in the state of an undisturbed one, and each step takes the samples that it took there.

`tests.checkpoint.crash` tries every operation of two writers in a store. Here a whole job trains and continues.
"""

import importlib
import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.format import Commit
from convoy.job.events.log import read_events
from convoy.job.events.registry import StepDone
from convoy.report.analysis.lineage import events_on_branch, lineage
from tests.campaign import in_full, this_commit
from tests.checkpoint.kills import Kill
from tests.training import writers
from tests.training.engines.test_engines import ENGINES, Name, job_of
from tests.training.faults import note_samples, noted_samples
from tests.training.job import Fault, Job, differing

WORLD = 2
SECTIONS: dict[str, Any] = {
    "train": {"steps": 4, "global_batch": 7, "micro_batch": 2},
    "checkpoint": {"every_steps": 2, "deadline_seconds": 4.0},
}
"""Two saves, and a batch that is no multiple of the ranks. A rank whose peer is dead waits until the deadline."""

STRIDE = 3 if in_full() else 60
"""Of a writer's operations one in so many is tried, another one with the next commit."""


class KillWithRank(Kill):
    """The rank is killed first, as both are where a machine is lost."""

    def _die(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        super()._die()


def kills() -> Iterator[Kill]:
    """In turns of the writer alone and with its rank, with nothing or half of what it was about to write."""
    for number in count():
        kind = KillWithRank if number % 2 else Kill
        yield kind(this_commit() % STRIDE + number * STRIDE, "half" if number // 2 % 2 else "before")


def kill_writer(kill: Kill, rank: int) -> Fault:
    """The operations of this rank's writer are counted from its start."""

    def fault(own: int) -> None:
        real = writers.main

        def main() -> None:
            kill.watch()
            real()

        if own == rank:
            writers.main = main  # type: ignore[attr-defined]

    return fault


def train(job: Job, fault: Fault | None = None) -> None:
    note = note_samples(samples_of(job))

    def both(rank: int) -> None:
        note(rank)
        if fault is not None:
            fault(rank)

    job.run(WORLD, both, may_die=fault is not None)


def samples_of(job: Job) -> Path:
    return Path(job.root) / "samples"


def problems(job: Job, undisturbed: Job) -> list[str]:
    """What differs, one line each."""
    wrong = [f"{name} differs" for name in differing(job.state(), undisturbed.state())]
    done, wanted = counters(job.commit()), counters(undisturbed.commit())
    if done != wanted:
        wrong.append(f"the counters are {done}, not {wanted}")
    if noted_samples(samples_of(job)) != noted_samples(samples_of(undisturbed)):
        wrong.append("the samples of a step are not those of the undisturbed job")
    events = read_events(job.store)
    led = [e.step for e in events_on_branch(events, lineage(events)) if isinstance(e, StepDone)]
    return [*wrong, *([f"steps {led} led to the state"] if len(led) != len(set(led)) else [])]


def counters(commit: Commit) -> tuple[Any, ...]:
    return commit.step, commit.progress.tokens, commit.progress.skipped, commit.sampler


@pytest.mark.campaign
@pytest.mark.sampled(5)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_whose_writer_is_killed_at_any_operation_ends_as_an_undisturbed_one(
    engine: Name, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (library := ENGINES[engine]["name"]) != "convoy":
        importlib.import_module(f"convoy.training.engines.{library}")  # once, and not by every rank
    undisturbed = job_of(tmp_path / "undisturbed", SECTIONS, engine)
    train(undisturbed)
    tried, wrong = list[str](), list[str]()
    for rank in range(WORLD):
        for number, kill in enumerate(kills()):
            job = job_of(tmp_path / f"{rank}-{number}", SECTIONS, engine)
            train(job, kill_writer(kill, rank))
            if not kill.operation:
                break
            train(job)
            tried.append(f"{type(kill).__name__} {number} of rank {rank} at {kill.operation}")
            wrong += [f"{tried[-1]}: {problem}" for problem in problems(job, undisturbed)]
    with capsys.disabled():
        print(f"\ncrash points of a job, {engine}: {len(tried)} points, {len(wrong)} wrong")
    assert len(tried) >= WORLD
    assert wrong == []
