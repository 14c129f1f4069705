"""What agents tell each other comes through as it was said, by the hearer's clock."""

import json
from typing import Any

import pytest

from convoy.gang.diagnosis.verdict import End, Finished, Preempted, Restart, Stopped
from convoy.gang.evidence import Sign
from convoy.gang.network.messages import MESSAGES, Decided, Decision, Go, Seen, Where
from convoy.gang.workers.board import Mark
from convoy.job.events.types import FailureDetected
from convoy.job.lineage import CommitRef, Generation

OURS, THEIRS = 1000.0, 50.0
CAUSE = FailureDetected(cause="exited", failed_node=1, worker=3, signal="SIGKILL", log_tail="a\nb", step=41)
NOTICE = Sign(kind="notice", node=1, by=1, at=OURS - 1, seen=OURS - 1, reason="(spot): soon", deadline=OURS + 90)


def sent(message: Any) -> Any:
    """As it arrives at another agent."""
    return MESSAGES.validate_python(json.loads(json.dumps(message.body())))


def test_signs_come_through_by_the_hearer_s_clock() -> None:
    exited = Sign(kind="exited", node=1, by=1, at=OURS - 0.5, seen=OURS, rank=3, step=41, signal="SIGKILL")
    heard, notice = sent(Seen.of(7, [exited, NOTICE], OURS)).heard(THEIRS)
    assert heard == exited.model_copy(update={"at": THEIRS - 0.5, "seen": THEIRS})
    assert (notice.at, notice.deadline, notice.reason) == (THEIRS - 1, THEIRS + 90, "(spot): soon")


def test_marks_come_through_by_the_hearer_s_clock() -> None:
    mark = Mark("step", 41, 3, at=OURS - 2, step_seconds=0.5, beat_at=OURS - 0.25)
    (heard,) = sent(Where.of(7, {3: mark}, OURS)).heard(THEIRS).items()
    rank, told = heard
    assert (rank, told.phase, told.step, told.count, told.at) == (3, "step", 41, 3, THEIRS - 2)
    assert (told.step_seconds, told.beat_at) == (0.5, THEIRS - 0.25)


@pytest.mark.parametrize(
    "decision", [Restart(CAUSE), End(CAUSE), Finished(), Stopped(), Preempted(NOTICE, CAUSE), Preempted(NOTICE)]
)
def test_a_decision_comes_through(decision: Decision) -> None:
    message = sent(Decided.of(7, decision, OURS))
    heard = message.decision(OURS)
    assert message.generation == 7
    if isinstance(decision, Preempted) and isinstance(heard, Preempted):
        assert (heard.cause, heard.notice.reason) == (decision.cause, NOTICE.reason)
    else:
        assert heard == decision


def test_a_decision_without_its_cause_is_none() -> None:
    with pytest.raises(ValueError, match="without its cause: end"):
        Decided(generation=1, what="end").decision(0.0)


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
    assert sent(Go.of(formed)).formed == formed
