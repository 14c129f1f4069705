"""What a trial shows: the figures, and what is found to be wrong."""

from typing import Any

import pytest

from convoy.drills.faults.worker import NoFault, RandomFaults, WorkerHang
from convoy.drills.observe import Observation, trial_problems
from convoy.gang.local_node import NodeResult
from convoy.gang.messages import GangOutcome
from convoy.job.events.registry import NoticeReceived, PeerSuspected, StepDone
from tests.drills.trials import (
    BATCH,
    STEPS,
    TOKENS,
    a_fault,
    at,
    commit,
    ended,
    failed,
    history,
    killed_worker,
    started,
    steps,
    told,
)


def rank_of(trial: Observation) -> int:
    return int(getattr(trial.fault, "rank"))  # noqa: B009 - of this fault's own


def with_event(trial: Observation, event: Any) -> Observation:
    return killed_worker(events=sorted([*trial.events, event], key=lambda e: e.t))


def test_a_trial_that_went_as_it_should_has_no_problem() -> None:
    assert trial_problems(killed_worker()) == []


def test_its_figures_count_from_the_injection() -> None:
    trial = killed_worker()
    assert trial.detected_s == pytest.approx(0.2)
    assert trial.recovered_s == pytest.approx(2.0)
    assert trial.new_progress_s == pytest.approx(2.5)  # step 26, five after the first one
    assert trial.steps_recomputed == 5
    assert trial.samples_lost_and_repeated() == (0, 0)


def test_a_failure_before_the_injection_is_a_false_alarm_and_no_detection() -> None:
    trial = killed_worker(injected=[103.85])
    assert trial.detected_s is None
    assert any(line.startswith("a false alarm: failure_detected") for line in trial_problems(trial))


@pytest.mark.parametrize(
    "event", [PeerSuspected(peer=1, seconds=2.0, phi=9.0), NoticeReceived(source="spot", notice="end", action="end")]
)
def test_a_suspicion_or_a_notice_before_the_injection_is_a_false_alarm(event: Any) -> None:
    trial = with_event(killed_worker(), at(102.0, event))
    (line,) = trial_problems(trial)
    assert line.startswith("a false alarm:")


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ({"cause": "hung"}, "the first cause is hung, not exited"),
        ({"failed_node": 9}, "the first cause names node 9"),
        ({"worker": 9}, "the first cause names rank 9"),
    ],
)
def test_another_first_cause_is_wrong(cause: dict[str, Any], says: str) -> None:
    trial = killed_worker()
    events = [failed(e.t, rank_of(trial), **cause) if e.kind == "failure_detected" else e for e in trial.events]
    (line,) = trial_problems(killed_worker(events=events))
    assert line.startswith(says)


def test_the_cause_that_node_0_told_counts_and_not_what_another_node_saw_before() -> None:
    trial = killed_worker()
    other = failed(103.7, rank_of(trial), cause="link_lost").model_copy(update={"node": 2})
    assert trial_problems(with_event(trial, other)) == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"results": told("failed", "finished")}, "2 attempts, not 1"),
        ({"results": told("failed")}, "node 0 of attempt 0: failed, not finished"),
        ({"history": history(None)}, "1 generations were formed, not 2"),
        ({"history": history(None, (1, 20), (2, 30))}, "3 generations were formed, not 2"),
        ({"commit": None}, "the job has no commit"),
        ({"commit": commit(2, step=30)}, f"the newest commit is of step 30, not {STEPS}"),
    ],
)
def test_an_end_that_is_not_the_expected_one_is_wrong(changed: dict[str, Any], says: str) -> None:
    assert any(line.startswith(says) for line in trial_problems(killed_worker(**changed)))


@pytest.mark.parametrize("killed", [False, True])
def test_a_node_without_an_outcome_at_the_last_attempt_is_wrong(killed: bool) -> None:
    outcome = [NodeResult(outcome=GangOutcome(outcome="finished"))] * 2
    trial = killed_worker(results=[[*outcome, NodeResult(error="OSError: no space", was_killed=killed)]])
    assert trial_problems(trial) == ["node 2 of attempt 0: OSError: no space, not finished"]


@pytest.mark.parametrize(
    ("commit", "lost_and_repeated"),
    [
        (commit(2, tokens=(STEPS - 1) * TOKENS), (BATCH, 0)),
        (commit(2, tokens=(STEPS + 2) * TOKENS), (0, 2 * BATCH)),
        (commit(2, skipped=1), (BATCH, 0)),
    ],
)
def test_the_commit_says_which_samples_are_lost_or_repeated(commit: Any, lost_and_repeated: tuple[int, int]) -> None:
    trial = killed_worker(commit=commit)
    assert trial.samples_lost_and_repeated() == lost_and_repeated
    assert len(trial_problems(trial)) == 1


def test_a_step_twice_on_the_branch_is_repeated() -> None:
    again = at(106.0, StepDone(step=20, loss=1, grad_norm=1, lr=1, tokens=TOKENS, seconds=0.1), generation=2)
    assert with_event(killed_worker(), again).samples_lost_and_repeated() == (0, BATCH)


def test_a_trial_that_takes_three_times_the_target_is_wrong() -> None:
    late = killed_worker(injected=[103.6 - 0.75])
    assert trial_problems(late) == ["detected after 0.95 s, more than 3 times 0.3 s"]


def test_a_fault_that_is_never_detected_is_wrong() -> None:
    trial = killed_worker()
    silent = killed_worker(events=[e for e in trial.events if e.kind != "failure_detected"])
    assert "never detected" in trial_problems(silent)


def test_the_limit_of_a_hang_follows_the_steps_before_it() -> None:
    trial = killed_worker(fault=a_fault(WorkerHang))
    assert trial.fault.detection_target_seconds(trial) == 3.0
    slow = [e.model_copy(update={"seconds": 2.0}) if isinstance(e, StepDone) else e for e in trial.events]
    trial = killed_worker(fault=a_fault(WorkerHang), events=slow)
    assert trial.fault.detection_target_seconds(trial) == pytest.approx(10.0)
    assert trial.fault.recovery_target_seconds(trial) == pytest.approx(14.0)


def quiet(**changed: Any) -> Observation:
    events = [*started(100.0, 1), *steps(1, STEPS, 101.0, 1), *ended(106.0, 1, "finished")]
    facts: dict[str, Any] = {
        "fault": a_fault(NoFault),
        "injected": [],
        "events": events,
        "history": history(None),
        "commit": commit(1),
    }
    return killed_worker(**facts | changed)


def test_a_gang_to_which_nothing_happens_has_no_figures_and_no_problem() -> None:
    trial = quiet()
    assert trial_problems(trial) == []
    assert (trial.detected_s, trial.recovered_s, trial.new_progress_s, trial.steps_recomputed) == (None, None, None, 0)


def test_any_alarm_in_a_gang_to_which_nothing_happens_is_false() -> None:
    events = [*quiet().events, at(105.5, PeerSuspected(peer=1, seconds=2.0, phi=9.0))]
    (line,) = trial_problems(quiet(events=events))
    assert line.startswith("a false alarm: peer_suspected")


def test_the_drain_by_which_the_drill_ends_a_gang_is_no_alarm() -> None:
    drain = at(105.5, NoticeReceived(source="drain", notice="end", action="save_and_end"))
    trial = quiet(events=[*quiet().events, drain], results=told("preempted"), commit=commit(1, step=33), drained=True)
    assert trial_problems(trial) == []


def test_an_attempt_that_ended_well_where_the_drill_had_to_end_it_is_wrong() -> None:
    trial = quiet(results=told("finished"), drained=True)
    assert any("not preempted" in line for line in trial_problems(trial))


def test_random_faults_may_end_any_attempt_but_the_last_in_any_way() -> None:
    outcomes = told("failed", "preempted")
    trial = killed_worker(
        fault=a_fault(RandomFaults), results=outcomes, drained=True, history=history(None, None, None)
    )
    assert trial_problems(trial) == []
    undrained = killed_worker(fault=a_fault(RandomFaults), results=outcomes)
    assert any("attempt 1" in line for line in trial_problems(undrained))
