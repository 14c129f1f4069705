"""Messages between agents arrive as they were sent, by the receiver's clock."""

import json
from typing import Any

import pytest

from convoy.gang.messages import (
    Decision,
    EndAttempt,
    Evidence,
    Finished,
    Message,
    Preempted,
    Restart,
    Stopped,
)
from convoy.gang.workers.board import Mark
from convoy.job.events.registry import FailureDetected
from convoy.job.lineage import CommitRef, Generation

OURS, THEIRS = 1000.0, 50.0
CAUSE = FailureDetected(cause="exited", failed_node=1, worker=3, signal="SIGKILL", log_tail="a\nb", step=41)
NOTICE = Evidence(kind="notice", node=1, by=1, at=OURS - 1, noticed=OURS - 1, reason="(spot): soon", deadline=OURS + 90)


def sent(**facts: Any) -> Any:
    """A message as it arrives at another agent."""
    message = Message(generation=7, sent=OURS, **facts)
    return Message.model_validate(json.loads(json.dumps(message.body())))


def test_evidence_arrives_by_the_receiver_s_clock() -> None:
    exited = Evidence(kind="exited", node=1, by=1, at=OURS - 0.5, noticed=OURS, rank=3, step=41, signal="SIGKILL")
    message = sent(evidence=[exited, NOTICE])
    received, notice = (item.on_own_clock(THEIRS, THEIRS - message.sent) for item in message.evidence)
    assert received == exited.model_copy(update={"at": THEIRS - 0.5, "noticed": THEIRS})
    assert (notice.at, notice.deadline, notice.reason) == (THEIRS - 1, THEIRS + 90, "(spot): soon")


def test_marks_arrive_by_the_receiver_s_clock() -> None:
    mark = Mark("step", 41, 3, at=OURS - 2, step_seconds=0.5, beat_at=OURS - 0.25)
    message = sent(marks={3: mark})
    ((rank, received),) = message.marks.items()
    received = received.shifted(THEIRS - message.sent)
    assert (rank, received.phase, received.step, received.count, received.at) == (3, "step", 41, 3, THEIRS - 2)
    assert (received.step_seconds, received.beat_at) == (0.5, THEIRS - 0.25)


@pytest.mark.parametrize(
    "decision", [Restart(CAUSE), EndAttempt(CAUSE), Finished(), Stopped(), Preempted(NOTICE, CAUSE), Preempted(NOTICE)]
)
def test_a_decision_arrives(decision: Decision) -> None:
    message = sent(decision=decision)
    assert (message.generation, message.decision) == (7, decision)


def test_the_notice_of_a_decision_arrives_by_the_receiver_s_clock() -> None:
    received = Preempted(NOTICE, CAUSE).on_own_clock(THEIRS, THEIRS - OURS)
    assert (received.notice.deadline, received.notice.noticed, received.cause) == (THEIRS + 90, THEIRS, CAUSE)


@pytest.mark.parametrize("decision", [{"kind": "end"}, {"kind": "wait"}, {"kind": "preempted", "cause": None}])
def test_a_decision_without_its_cause_is_refused(decision: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="decision"):
        Message.model_validate({"generation": 1, "sent": OURS, "decision": decision})


def test_a_generation_comes_through() -> None:
    formed = Generation(
        generation=8,
        parent=CommitRef(generation=7, step=40),
        formation="f",
        nodes=2,
        world_size=4,
        config_hash="c",
        created=1.5,
        rendezvous="host:1",
        tiers=("/a",),
        control="host:2",
        token_name="000008-1f",
    )
    assert sent(formed=formed).formed == formed
