"""Trials that never ran, event by event."""

from pathlib import Path
from random import Random
from typing import Any

from convoy.checkpoint.format import Commit, Progress, SamplerPosition
from convoy.config.run import RunConfig
from convoy.drills.fault import Fault, GangSize
from convoy.drills.faults.worker import WorkerKill
from convoy.drills.observe import Observation
from convoy.gang.local_node import NodeResult
from convoy.gang.messages import GangOutcome
from convoy.job.events.registry import Event, FailureDetected, GenerationEnded, GenerationStarted, StepDone
from convoy.job.lineage import CommitRef, Generation, History

BATCH = 8
TOKENS = 2048
STEPS = 40
CONFIG = RunConfig.model_validate({"train": {"steps": STEPS, "global_batch": BATCH}})


def a_fault(kind: type[Fault], folder: Path = Path("nowhere"), **facts: Any) -> Fault:
    """On three nodes with a worker each."""
    return kind(**{"size": GangSize(3, 1), "random": Random(7), "folder": folder, **facts})


def at(t: float, event: Event, generation: int = 1, node: int = 0) -> Event:
    stamped: Any = event.model_copy(update={"t": t, "generation": generation, "node": node})
    return stamped  # type: ignore[no-any-return]


def steps(first: int, last: int, began: float, generation: int) -> list[Event]:
    """One each tenth of a second, the first of them a tenth after `began`."""
    return [
        at(
            began + 0.1 * (i + 1),
            StepDone(step=s, loss=1.0, grad_norm=1.0, lr=0.1, tokens=TOKENS, seconds=0.1),
            generation,
        )
        for i, s in enumerate(range(first, last + 1))
    ]


def started(t: float, generation: int, parent: tuple[int, int] | None = None, attempt: int = 0) -> list[Event]:
    of = {} if parent is None else {"parent_generation": parent[0], "parent_step": parent[1]}
    facts: dict[str, Any] = {"run": "Drill/1", "attempt": attempt, "nodes": 3, "world_size": 3, **of}
    return [at(t, GenerationStarted(**facts), generation, node) for node in range(3)]


def ended(t: float, generation: int, outcome: Any) -> list[Event]:
    return [at(t, GenerationEnded(outcome=outcome), generation, node) for node in range(3)]


def failed(t: float, rank: int, generation: int = 1, **facts: Any) -> Event:
    cause: dict[str, Any] = {
        "cause": "exited",
        "failed_node": rank,
        "worker": rank,
        "signal": "SIGKILL",
        "action": "restart",
    }
    return at(t, FailureDetected(**cause | facts), generation)


def generation(number: int, parent: tuple[int, int] | None) -> Generation:
    ref = None if parent is None else CommitRef(generation=parent[0], step=parent[1])
    return Generation(
        generation=number, parent=ref, formation="f", nodes=3, world_size=3, config_hash="c", created=float(number)
    )


def history(*parents: tuple[int, int] | None) -> History:
    """Of as many generations, each on from a commit."""
    return History({i: generation(i, parent) for i, parent in enumerate(parents, 1)}, frozenset())


def commit(made_by: int, step: int = STEPS, *, tokens: int | None = None, skipped: int = 0) -> Commit:
    return Commit(
        generation=made_by,
        step=step,
        attempt="a",
        parent=None,
        world_size=3,
        progress=Progress(step=step, tokens=step * TOKENS if tokens is None else tokens, skipped=skipped),
        sampler=SamplerPosition(seed=0, next_sample=step * BATCH),
    )


def told(*outcomes: Any) -> list[list[NodeResult]]:
    """How each attempt ended, the same on all nodes."""
    return [[NodeResult(outcome=GangOutcome(outcome=outcome))] * 3 for outcome in outcomes]


def killed_worker(**changed: Any) -> Observation:
    """A worker is killed after 25 steps, 2.0 s after the injection the first step of the next generation is done."""
    fault = a_fault(WorkerKill)
    assert isinstance(fault, WorkerKill)
    events = [
        *started(100.0, 1),
        *steps(1, 25, 101.0, 1),
        failed(103.8, fault.rank),
        *ended(103.9, 1, "failed"),
        *started(104.0, 2, parent=(1, 20)),
        *steps(21, STEPS, 105.5, 2),
        *ended(108.0, 2, "finished"),
    ]
    facts: dict[str, Any] = {
        "fault": fault,
        "config": CONFIG,
        "injected": [103.6],
        "events": events,
        "history": history(None, (1, 20)),
        "results": told("finished"),
        "commit": commit(2),
    }
    return Observation(**facts | changed)
