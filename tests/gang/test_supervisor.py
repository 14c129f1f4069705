"""What an agent makes of what it hears late."""

import threading
import time
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from convoy.gang import rendezvous, supervisor
from convoy.gang.messages import Evidence, EvidenceKind, Message, Restart
from convoy.gang.network.formation import PayloadReceived
from convoy.gang.rendezvous import FormedGeneration
from convoy.gang.supervisor import Supervisor
from convoy.gang.workers.board import Mark
from convoy.job.events.registry import FailureDetected
from convoy.job.lineage import Generation
from tests.gang.tasks import a_node


def generation(number: int) -> Generation:
    return Generation(generation=number, parent=None, formation="f", nodes=2, world_size=2, config_hash="", created=0.0)


def agent(node: int = 0, stages: int = 1) -> Any:
    """A node's of two, whose first generation is 4, without any worker."""
    config = SimpleNamespace(train=SimpleNamespace(compile=False), parallel=SimpleNamespace(pipeline=stages))
    site: Any = SimpleNamespace(
        node=a_node(nproc=1, index=node, nodes=2),
        task=SimpleNamespace(script=None, config=config),
        store=None,
        open_event_log=lambda number: SimpleNamespace(close=lambda seconds: None),
    )
    peers: Any = SimpleNamespace(events=SimpleQueue[Any](), send=lambda *_: None)
    surroundings: Any = SimpleNamespace(begin_generation=lambda: None)
    return Supervisor(site, peers, surroundings, FormedGeneration(generation(4)))


def told(number: int, kind: EvidenceKind) -> PayloadReceived:
    now = time.monotonic()
    sign = Evidence(kind=kind, node=1, by=1, at=now, noticed=now, rank=1 if kind == "exited" else None, exit_code=70)
    return PayloadReceived(node=1, body=Message(generation=number, sent=now, evidence=[sign]).body(), at=now)


@pytest.fixture
def forming(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The next generation is formed no sooner than this is set."""
    may = threading.Event()

    def form(*_: Any) -> FormedGeneration:
        may.wait(10)
        return FormedGeneration(generation(5))

    monkeypatch.setattr(rendezvous, "form_next_generation", form)
    return may


def test_an_end_of_a_worker_that_is_told_late_does_not_count_against_the_next_generation(
    forming: threading.Event,
) -> None:
    first = agent()
    first._receive(told(4, "exited"))
    assert [s.kind for s in first._monitor.evidence] == ["exited"]
    first._restart()
    assert first._monitor.evidence == []
    first._receive(told(4, "exited"))
    assert first._monitor.evidence == [], "of those that are no more"
    first._receive(told(4, "gone"))
    assert [s.kind for s in first._monitor.evidence] == ["gone"], "a node that is lost stays lost"
    forming.set()


def restart() -> PayloadReceived:
    """Node 0 ends generation 4."""
    cause = FailureDetected(cause="exited", failed_node=1, worker=1, step=3, action="restart")
    body = Message(generation=4, sent=0.0, decision=Restart(cause)).body()
    return PayloadReceived(node=0, body=body, at=time.monotonic())


def test_workers_of_a_generation_that_was_ended_before_they_were_started_are_not_started() -> None:
    second = agent(node=1)  # it still opens the log of its generation
    second._receive(restart())
    second._restart()
    assert second._starting is not None
    second._starting.result()
    second._continue_starting(time.monotonic())
    assert second.workers is None
    assert second._starting is None


def test_the_next_generation_may_be_told_of_in_the_turn_in_which_the_last_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def team(site: Any, formed: Generation, events: Any) -> Any:
        made.append(formed.generation)
        return SimpleNamespace(start=lambda *_, **__: None)

    monkeypatch.setattr(supervisor, "WorkerGroup", team)
    second = agent(node=1)
    second._starting = None  # its workers run
    second._context.task.spent_seconds = 0.0
    now = time.monotonic()
    second._receive(restart())
    second._receive(PayloadReceived(node=0, body=Message(generation=5, sent=now, formed=generation(5)).body(), at=now))
    assert isinstance(second._decide(now), Restart)
    second._restart()
    assert second._starting is not None
    second._starting.result()
    second._continue_starting(time.monotonic())
    assert made == [5]


@pytest.mark.parametrize(("stages", "slow"), [(1, [1]), (2, [])])
def test_a_node_is_compared_with_those_that_have_its_stage(stages: int, slow: list[int]) -> None:
    """The first one waits for the second one, whose stage may have more work."""
    first, told = agent(stages=stages), list[Any]()
    for i in range(300):
        now = time.monotonic() + i / 10
        marks = {rank: Mark("step", i, 1, at=now, looks=i, waits=i * (rank == 0)) for rank in (0, 1)}
        log = SimpleNamespace(append=told.append)
        first.workers = SimpleNamespace(newly_stopped=lambda now: [], marks=lambda marks=marks: marks, events=log)
        first._check_workers(first.workers, now)
    assert [event.slow_node for event in told] == slow
