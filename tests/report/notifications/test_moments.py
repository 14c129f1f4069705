"""Each moment's source in the event log."""

import pytest

from convoy.job.events.registry import (
    INTERRUPT,
    FailureDetected,
    GenerationEnded,
    NoticeReceived,
    ScriptStep,
    StepDone,
    Stopping,
)
from convoy.report.fold import fold
from convoy.report.notifications.message import Commands, message_for
from convoy.report.notifications.moments import MomentLog, Occurrence, occurrences
from tests.report.synthetic import Log


def moments(log: Log, retries: int = 0, since: int = 0) -> dict[str, Occurrence]:
    kept = MomentLog()
    kept.add(log.events)
    found = occurrences(log.events, retries, since)
    assert occurrences(kept.events, retries, since) == found  # nothing that counts is left out
    return {each.moment: each for each in found}


def begun() -> Log:
    log = Log()
    log.form(1)
    for step in (1, 2, 3):
        log.step(step)
    return log


def fail(log: Log, action: str = "end", cause: str = "exited") -> None:
    log.wait(1)
    failure = {"cause": cause, "action": action, "failed_node": 1, "worker": 1, "reason": "MemoryError: no", "step": 3}
    log.add(FailureDetected.model_validate(failure), node=0)
    log.add(GenerationEnded(outcome="failed", step=3), node=0)


def test_a_job_that_runs_well_starts_and_finishes() -> None:
    log = begun()
    assert list(moments(log)) == ["started"]
    log.add(GenerationEnded(outcome="finished", step=3), node=1)
    assert list(moments(log)) == ["started"]
    log.add(GenerationEnded(outcome="finished", step=3), node=0)
    assert list(moments(log)) == ["started", "finished"]


def test_an_attempt_that_fails_is_reported_with_its_first_cause() -> None:
    log = begun()
    fail(log)
    assert moments(log)["failed"].cause == "rank 1 on node 1 failed: MemoryError: no"


def test_a_failure_that_the_gang_or_metaflow_restarts_is_reported_when_training_has_resumed() -> None:
    log = begun()
    fail(log, action="restart")
    log.form(2, parent=2)
    assert set(moments(log)) == {"started"}
    log.step(3)
    assert moments(log)["resumed"].cause == "rank 1 on node 1 failed: MemoryError: no"
    fail(log)
    assert set(moments(log, retries=1)) == {"started", "resumed"}
    log.form(3, attempt=1, parent=2)
    fail(log)
    assert moments(log, retries=1)["failed"].generation == 3


def test_what_an_earlier_run_with_more_retries_tried_again_has_not_failed() -> None:
    log = Log()
    log.form(1, run="TrainFlow/1")
    log.step(1)
    fail(log)
    log.form(2, run="TrainFlow/1", attempt=1, parent=1)
    log.form(3, run="TrainFlow/2", parent=1)
    log.step(2)
    assert "failed" not in moments(log)
    fail(log)
    assert moments(log)["failed"].generation == 3


def test_a_failure_while_the_next_generation_forms_ends_the_attempt() -> None:
    log = begun()
    fail(log, action="restart")
    log.add(FailureDetected(cause="node_gone", action="end", failed_node=1, step=3), node=0)
    assert moments(log)["failed"].generation == 1


@pytest.mark.parametrize(
    ("source", "reported"), [("imds", True), ("signal", True), ("drain", False), (INTERRUPT, False)]
)
def test_a_preemption_is_reported_as_it_begins_unless_somebody_asked_for_it(source: str, reported: bool) -> None:
    log = begun()
    log.add(NoticeReceived(source=source, notice="rebalance", action="save"), node=1)
    assert "preempted" not in moments(log)
    log.add(NoticeReceived(source=source, notice="end", action="save_and_end", text="at 12:00"), node=1)
    assert ("preempted" in moments(log)) == reported
    if reported:
        assert moments(log)["preempted"].cause == f"node 1 had a notice ({source}): at 12:00"


def test_budget_and_stall_have_sources_of_their_own() -> None:
    log = begun()
    log.add(Stopping(step=3, reason="requested"), rank=0)
    assert set(moments(log)) == {"started"}
    log.add(Stopping(step=3, reason="max_hours", detail="1 h"), rank=0)
    assert moments(log)["budget"].cause == "the limit budget.max_hours was reached: 1 h"
    fail(log, action="restart", cause="hung")
    assert moments(log)["stalled"].cause == "rank 1 on node 1 hung: MemoryError: no"


def test_only_the_first_of_each_kind_counts_and_nothing_from_before_notifications_began() -> None:
    log = begun()
    for generation in (2, 3):
        fail(log, action="restart")
        log.form(generation, parent=2)
        log.add(ScriptStep(step=3, seconds=1), rank=0)
    assert moments(log)["resumed"].generation == 2
    assert moments(log, since=3)["resumed"].generation == 3
    assert "started" not in moments(log, since=3)


def test_of_the_steps_of_a_generation_the_first_is_kept() -> None:
    kept = MomentLog()
    assert kept.add(begun().events)
    assert sum(isinstance(e, StepDone) for e in kept.events) == 1
    assert not kept.add(begun().events[2:])


def test_a_message_names_cause_step_cost_and_the_command_that_continues() -> None:
    report = fold([]).model_copy(update={"step": 1200, "target_steps": 5000, "wall_seconds": 5400.0})
    message = message_for(
        "failed", "blue", "rank 1\nfailed", report, Commands("convoy run f.py --job blue", "http://ui")
    )
    assert message.title == "Convoy: blue has failed"
    assert message.body.splitlines() == [
        "First cause: rank 1 failed", "Step: 1,200 of 5,000", "Cost so far: 1 h 30 m of the gang; no price is known",
        "Continue: convoy run f.py --job blue", "Card: http://ui",
    ]  # fmt: skip
