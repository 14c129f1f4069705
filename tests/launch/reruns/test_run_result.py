"""How a run ended, from the log and the lineage in the job's root, its exit code, and what Metaflow kept."""

import time
from typing import Any

import pytest

from convoy.gang.notices.sources import DrainRequest, request_drain
from convoy.job.events.log import EventWriter, read_events
from convoy.job.events.registry import (
    Event,
    FailureDetected,
    GenerationEnded,
    GenerationStarted,
    NoticeReceived,
    StepDone,
    Stopping,
)
from convoy.job.generations import form_generation
from convoy.job.lineage import CommitRef
from convoy.job.record import job_store
from convoy.launch.reruns.policy import FailedTask, RunFacts, gang_is_over, judge_ended_run, read_run_facts
from convoy.storage import Store

RUN = "SomeFlow/12"
BUG = FailureDetected(cause="exited", failed_node=1, worker=1, exit_code=1, reason="ValueError: no", step=7)
NOTICE = NoticeReceived(source="spot", notice="end", action="save_and_end", text="terminate")


@pytest.fixture
def store(store_uri: str) -> Store:
    return job_store(store_uri, "blue")


def formed(store: Store, run: str = RUN) -> int:
    """The number of a new generation of that run."""
    made = form_generation(
        store,
        formation=f"{run.partition('/')[2]}/train/3/0",
        nodes=2,
        world_size=2,
        config_hash="",
        rendezvous="127.0.0.1:1",
    )
    return made.generation


def log(store: Store, generation: int, *events: Event, node: int = 0, rank: int | None = None) -> None:
    writer = EventWriter(store, generation, node, rank)
    for event in events:
        writer.append(event)
    writer.close()


def step(number: int) -> StepDone:
    return StepDone(step=number, loss=1.0, grad_norm=1.0, lr=0.1, tokens=1, seconds=0.1)


def preempted(store: Store, at: int = 9) -> None:
    ended = GenerationEnded(outcome="preempted", step=at)
    log(store, formed(store), GenerationStarted(run=RUN), NOTICE, ended)


def failed(store: Store, cause: FailureDetected = BUG) -> None:
    log(store, formed(store), GenerationStarted(run=RUN), cause, GenerationEnded(outcome="failed", step=cause.step))


def how(store: Store, code: int = 1, task: FailedTask = FailedTask(), **facts: Any) -> str:  # noqa: B008
    return judge_ended_run(code, RUN, read_run_facts(store, RUN), task, **facts).how


def test_a_run_that_ends_well_has_finished_whatever_was_before(store: Store) -> None:
    failed(store)
    log(store, formed(store), GenerationStarted(run=RUN), GenerationEnded(outcome="finished", step=20))
    assert how(store, 0) == "finished"
    assert read_run_facts(store, RUN).step == 20


def test_a_gang_whose_failure_the_flow_has_caught_has_not_finished(store: Store) -> None:
    failed(store)
    assert how(store, 0) == "failed"
    preempted(store)
    assert how(store, 0) == "preempted"


def test_a_run_that_was_stopped_by_a_limit_tells_it(store: Store) -> None:
    generation = formed(store)
    log(store, generation, GenerationStarted(run=RUN), GenerationEnded(outcome="stopped", step=5))
    log(store, generation, step(5), Stopping(step=5, reason="max_hours", detail="2 hours"), rank=0)
    ended = judge_ended_run(0, RUN, read_run_facts(store, RUN), FailedTask())
    assert (ended.how, ended.step) == ("stopped", 5)
    assert ended.message == "the limit budget.max_hours was reached: 2 hours"


def test_a_preemption_is_told_by_the_log(store: Store) -> None:
    preempted(store)
    ended = judge_ended_run(1, RUN, read_run_facts(store, RUN), FailedTask("train", "whatever"))
    assert (ended.how, ended.step, ended.message) == ("preempted", 9, "node 0 had a notice (spot): terminate")


def test_a_preemption_of_another_run_is_not_this_one_s(store: Store) -> None:
    log(store, formed(store, "SomeFlow/11"), NOTICE, GenerationEnded(outcome="preempted", step=9))
    assert how(store) == "failed"
    assert read_run_facts(store, "SomeFlow/1").formed == 0


def test_of_several_attempts_of_a_run_the_newest_one_decides(store: Store) -> None:
    preempted(store)
    failed(store)
    assert how(store) == "failed"
    preempted(store)
    assert how(store) == "preempted"


def test_a_failed_gang_tells_every_first_cause(store: Store) -> None:
    failed(store)
    generation = formed(store)
    log(store, generation, BUG.model_copy(update={"step": 8}), node=1)  # of which node 0 is the judge
    log(store, generation, BUG, GenerationEnded(outcome="failed", step=7))
    ended = judge_ended_run(1, RUN, read_run_facts(store, RUN), FailedTask("train", "rank 1 on node 1 exited"))
    assert (ended.how, ended.step, [cause.step for cause in ended.causes]) == ("failed", 7, [7, 7])
    assert (ended.message, ended.failed_step, ended.lasting) == ("rank 1 on node 1 exited", "train", False)


def test_where_node_0_was_lost_the_others_word_counts(store: Store) -> None:
    lost = FailureDetected(cause="node_gone", failed_node=0, step=4)
    generation = formed(store)
    log(store, generation, GenerationStarted(run=RUN))
    log(store, generation, GenerationStarted(), lost, GenerationEnded(outcome="failed", step=4), node=1)
    ended = judge_ended_run(1, RUN, read_run_facts(store, RUN), FailedTask())
    assert ended.how == "failed"
    assert [cause.cause for cause in ended.causes] == ["node_gone"]
    assert ended.message == "node 0 was lost, its agent ended without a word"
    failed(store, BUG.model_copy(update={"retryable": False}))
    assert judge_ended_run(1, RUN, read_run_facts(store, RUN), FailedTask()).lasting


def test_a_step_that_fails_after_the_gang_has_finished_is_no_failure_of_the_gang(store: Store) -> None:
    failed(store, BUG.model_copy(update={"retryable": False}))
    log(store, formed(store), GenerationStarted(run=RUN), GenerationEnded(outcome="finished", step=20))
    ended = judge_ended_run(1, RUN, read_run_facts(store, RUN), FailedTask("join", "no such metric"))
    assert (ended.how, ended.causes, ended.lasting, ended.message) == ("failed", (), False, "no such metric")


def test_a_gang_whose_nodes_did_not_come_together_waited(store: Store) -> None:
    formed(store)
    assert how(store, task=FailedTask("train", "node 1 of 2 did not come within 600 s")) == "waited"


NOTICE_MESSAGE = "preempted: node 0 had a notice (spot): terminate"


@pytest.mark.parametrize(
    ("code", "run", "task", "more", "how", "message"),
    [
        (1, RUN, "", {}, "failed", ""),
        (1, RUN, NOTICE_MESSAGE, {}, "preempted", NOTICE_MESSAGE),  # before the gang was formed
        (1, RUN, "interrupted: the terminal was closed", {}, "preempted", "interrupted: the terminal was closed"),
        (-9, RUN, "", {"late": "no node 0 within 1 h"}, "waited", "no node 0 within 1 h"),
        (1, RUN, "", {"outage": "no answer"}, "outage", "no answer"),
        (2, None, "", {}, "refused", ""),
        (0, None, "", {}, "finished", ""),  # it had nothing left to do
    ],
)
def test_of_a_job_of_which_nothing_is_known_code_and_message_tell(
    code: int, run: str | None, task: str, more: dict[str, str], how: str, message: str, store: Store
) -> None:
    assert read_run_facts(store, RUN) == RunFacts()
    ended = judge_ended_run(code, run, RunFacts(), FailedTask("train", task), **more)
    assert (ended.how, ended.code, ended.message) == (how, code, message)


def test_a_drained_run_is_told_from_a_preempted_one(store: Store) -> None:
    preempted(store)
    request_drain(store, DrainRequest(run="SomeFlow/11", now=False, host="desk", requested=1.0))
    assert how(store) == "preempted"
    request_drain(store, DrainRequest(run=RUN, now=False, host="desk", requested=2.0))
    ended = judge_ended_run(1, RUN, read_run_facts(store, RUN), FailedTask())
    assert (ended.how, ended.message) == ("drained", "requested on desk")
    store.write("drain.json", b"{")
    assert how(store) == "preempted"


def test_the_newest_checkpoint_counts_where_no_generation_told_its_end(store: Store) -> None:
    store.create(CommitRef(generation=formed(store), step=40).name, b"{}")
    assert read_run_facts(store, RUN).step == 40


def test_lines_that_are_no_event_are_passed_over(store: Store) -> None:
    log(store, 1, BUG, node=1)
    store.write("events/000001/00002/agent.jsonl", b'{"kind": "of a later version"}\n{"half')
    log(store, 1, step(1), rank=0)
    assert [event.kind for event in read_events(store, 1, "agent")] == ["failure_detected"]


def finished(store: Store) -> float:
    """A gang of the step `train` finishes; the time at which that is known."""
    log(store, formed(store), GenerationStarted(run=RUN), GenerationEnded(outcome="finished", step=20))
    return time.time()


def test_the_gang_of_a_step_is_over_when_its_newest_one_has_finished(store: Store) -> None:
    assert not gang_is_over(store, RUN, "train", 0)
    failed(store)
    preempted(store)
    assert not gang_is_over(store, RUN, "train", 0)  # there may be another attempt
    before, after = time.time() - 1, finished(store)
    assert gang_is_over(store, RUN, "train", before)
    assert not gang_is_over(store, RUN, "train", after)  # the step failed after its gang
    assert not gang_is_over(store, RUN, "evaluate", 0)
    assert not gang_is_over(store, "SomeFlow/1", "train", 0)
    formed(store)  # by a second gang of the step
    assert not gang_is_over(store, RUN, "train", 0)


def test_a_gang_of_the_run_before_is_none_of_this_one_s(store: Store) -> None:
    finished(store)
    assert not gang_is_over(store, "SomeFlow/13", "train", 0)
    log(store, formed(store, "SomeFlow/13"), GenerationStarted(run=RUN))
    assert not gang_is_over(store, RUN, "train", 0)
