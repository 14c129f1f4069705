"""What went wrong, how soon it was seen, and how the job got on."""

from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from convoy.display.page import Callout, Heading, Table, Text
from convoy.display.terminal import show
from convoy.job.events.registry import (
    CheckpointSaved,
    Environment,
    Evaluated,
    Event,
    FailureDetected,
    GangStopped,
    GenerationEnded,
    GenerationStarted,
    NoticeReceived,
    NoticeSources,
    PeerSuspected,
    RankThroughput,
    StepDone,
    Stopping,
    WorkerReady,
)
from convoy.report.fold import fold
from convoy.report.pages.train import final_page, live_page
from convoy.report.train_report import Incident
from tests.campaign import examples
from tests.report import naive
from tests.report.synthetic import (
    CONFIG,
    STEP_SECONDS,
    Log,
    blocks,
    failed_job,
    finished_job,
    log_of_steps,
    restarted_job,
    resumed_job,
    running_job,
)

pytestmark = pytest.mark.campaign


def only(events: list[Event]) -> Incident:
    (incident,) = fold(events, 170).incidents
    return incident


def test_a_job_that_was_not_disturbed_has_no_incident() -> None:
    assert fold(finished_job(), 170).incidents == ()
    assert "Incidents" not in [h.text for h in blocks(final_page(fold(finished_job(), 170), CONFIG), Heading)]


def test_a_restart_in_place_is_measured_from_the_last_sign_of_life() -> None:
    incident = only(restarted_job())
    assert (incident.kind, incident.node, incident.rank, incident.generation) == ("exited", 1, 1, 0)
    assert incident.what == "rank 1 on node 1 was killed by SIGKILL: MemoryError: <no room> for `x`"
    assert (incident.step, incident.steps_recomputed, incident.then) == (120, 35, "restarted in place")
    assert incident.detected_s == pytest.approx(0.2)
    assert incident.stopped_s == pytest.approx(0.3)
    # Formed 0.4 s after the kill, built 1.5 s later; the first step is slower by half.
    assert incident.recovered_s == pytest.approx(0.4 + 1.5 + 1.5 * STEP_SECONDS)
    assert incident.beyond_s == pytest.approx(0.4 + 1.5 + (36 + 5 * 0.5) * STEP_SECONDS)


def test_while_the_gang_restarts_it_is_running_and_says_why() -> None:
    log = Log(events=running_job(90))
    log.restart(90, parent=(0, 85))
    whole = log.events
    formed = next(i for i, e in enumerate(whole) if isinstance(e, GenerationStarted) and e.generation == 1)
    report = fold(whole[:formed], 170)
    assert report.outcome.state == "running"
    assert report.generations[0].outcome == "failed"
    (callout,) = blocks(live_page(report, CONFIG), Callout)
    assert (callout.title, callout.tone) == ("Restarting in place", "warning")
    assert callout.text.endswith("The newest checkpoint holds step 85.")
    assert blocks(live_page(report, CONFIG), Text)[0].text.startswith("Restarting")
    assert not blocks(live_page(fold(whole, 170), CONFIG), Callout)


def test_a_gang_that_was_to_restart_and_could_not_has_failed() -> None:
    log = log_of_steps(1)
    killed = FailureDetected(cause="exited", failed_node=1, worker=1, signal="SIGKILL", action="restart")
    log.add(killed, node=0)
    assert fold(log.events).outcome.state == "running"
    log.wait(1)
    log.add(FailureDetected(cause="agent_failed", failed_node=0, reason="another run goes on"), node=0)
    outcome = fold(log.events).outcome
    assert outcome.state == "failed"
    assert outcome.cause is not None
    assert outcome.cause.signal == "SIGKILL"
    assert only(log.events).then == "not gone on"


def test_an_incident_that_was_not_gone_on_from_has_no_recovery() -> None:
    incident = only(failed_job())
    assert (incident.recovered_s, incident.beyond_s, incident.steps_recomputed) == (None, None, None)
    assert incident.then == "not gone on"


def test_a_log_of_before_first_causes_were_told_has_its_incidents() -> None:
    incident = only(resumed_job())
    assert (incident.kind, incident.node, incident.rank, incident.detected_s) == ("exited", 1, 1, None)
    assert (incident.steps_recomputed, incident.then) == (35, "next attempt")
    assert incident.recovered_s == pytest.approx(0.1 + 100 + 1.5 + 1.5 * STEP_SECONDS)


def test_a_lost_node_is_one_incident_though_every_other_node_tells_it() -> None:
    log = log_of_steps(1)
    log.wait(1.5)
    for node, silent in ((1, 1.3), (0, 1.5)):
        log.add(PeerSuspected(peer=2, seconds=silent, phi=9.0), node=node)
        told = FailureDetected(cause="node_silent", failed_node=2, step=1, silent_seconds=silent)
        log.add(told, node=node)
        log.add(GangStopped(seconds=0.2), node=node)
        log.add(GenerationEnded(outcome="failed"), node=node)
    lost = only(log.events)
    assert (lost.kind, lost.node, lost.rank, lost.detected_s) == ("node_silent", 2, None, 1.5)
    (callout,) = blocks(live_page(fold(log.events, 170), CONFIG), Callout)
    assert callout.title == "Node 2 was lost at step 1"
    assert callout.text == "Nothing more was heard of it. No checkpoint exists yet."
    assert any(m.text == "Node 1 heard nothing of node 2 for 1.3 s" for m in fold(log.events).timeline)


@pytest.mark.parametrize(
    ("run", "attempt", "then"),
    [("TrainFlow/7", 0, "restarted in place"), ("TrainFlow/7", 1, "next attempt"), ("TrainFlow/8", 0, "next run")],
)
def test_how_the_job_went_on(run: str, attempt: int, then: str) -> None:
    log = log_of_steps(1)
    log.add(FailureDetected(cause="hung", failed_node=0, worker=0, step=1, silent_seconds=3.0), node=0)
    log.form(1, run, attempt)
    assert only(log.events).then == then


def test_two_failures_in_a_row_recover_with_the_same_step() -> None:
    log = log_of_steps(2)
    for generation in (1, 2):
        log.wait(1)
        log.add(FailureDetected(cause="exited", failed_node=1, worker=1, exit_code=1, action="restart"), node=0)
        log.form(generation)
    log.step(1)
    log.step(2)
    log.step(3)
    first, second = fold(log.events).incidents
    assert (first.recovered_s, second.recovered_s) == (2.0, 1.0)
    assert (first.beyond_s, second.beyond_s) == (4.0, 1.0)
    assert (first.steps_recomputed, second.steps_recomputed) == (2, 0)


def test_a_job_has_recovered_with_the_earliest_first_step_of_any_later_generation() -> None:
    """The second generation was superseded before its first step, and takes one after the third did."""
    log = log_of_steps(1)
    log.add(FailureDetected(cause="exited", failed_node=1, worker=1, exit_code=1), node=0)
    log.form(1, attempt=1)
    log.form(2, attempt=2)
    log.step(1)
    log.generation = 1
    log.step(1)
    assert fold(log.events).incidents[0].recovered_s == pytest.approx(1.0)


def test_a_generation_of_which_nothing_more_was_heard_is_an_incident() -> None:
    log = log_of_steps(1)
    assert fold(log.events).incidents == ()
    log.form(1, attempt=1)
    incident = only(log.events)
    assert (incident.kind, incident.node, incident.what) == ("unknown", None, "generation 0 ended without a word")


def test_a_preemption_is_an_incident_that_loses_nothing() -> None:
    log = log_of_steps(1)
    notice = NoticeReceived(
        source="spot/instance-action", notice="end", action="save_and_end", deadline=log.t + 119, text="terminate"
    )  # fmt: skip
    log.add(notice, node=1)
    log.step(2)
    log.add(Stopping(step=2, reason="preempted"), rank=0)
    log.add(GenerationEnded(outcome="preempted", step=2), node=1)
    log.add(GenerationEnded(outcome="preempted", step=2), node=0)
    report = fold(log.events, 170)
    words = "node 1 had a notice (spot/instance-action): terminate"
    assert (report.outcome.state, report.outcome.reason) == ("preempted", words)
    (callout,) = blocks(live_page(report, CONFIG), Callout)
    assert (callout.title, callout.tone) == ("Preempted at step 2", "warning")
    assert any(
        m.text == "Notice on node 1 (spot/instance-action, 1 m 59 s ahead): terminate; the gang saves and ends"
        for m in report.timeline
    )
    log.form(1, attempt=1, parent=2)
    log.step(3)
    incident = only(log.events)
    assert (incident.kind, incident.node, incident.what) == ("preempted", 1, words)
    assert (incident.steps_recomputed, incident.recovered_s, incident.beyond_s) == (0, 2.0, 2.0)
    assert fold(log.events).generations[1].why == f"continues after a preemption: {words}"


def test_a_stop_that_all_agreed_on_is_no_incident() -> None:
    log = log_of_steps(1)
    log.add(Stopping(step=1, reason="requested"), rank=0)
    log.add(GenerationEnded(outcome="stopped", step=1), node=0)
    assert fold(log.events).incidents == ()


def test_what_a_superseded_generation_still_wrote_is_not_counted_as_lost() -> None:
    events = restarted_job()
    zombie = Log(t=events[-1].t + 5)
    zombie.step(500)
    assert only(events + zombie.events).steps_recomputed == 35


def test_pages_terminal_and_client_api_tell_the_incidents() -> None:
    report = fold(restarted_job(), 170)
    table = next(t for t in blocks(live_page(report, CONFIG), Table) if "Recovered" in t.headers)
    assert table.rows[0][2:] == ("200 ms", "300 ms", "2.5 s", "17.3 s", "35", "restarted in place")
    assert Heading("Incidents") in final_page(report, CONFIG).blocks
    out = StringIO()
    show(final_page(report, CONFIG), Console(file=out, width=160))
    assert "1 incident, detected after 200 ms (median, n = 1)" in out.getvalue()
    (plain,) = [incident.model_dump(mode="json") for incident in report.incidents]
    assert (plain["kind"], plain["rank"], plain["steps_recomputed"]) == ("exited", 1, 35)
    assert set(plain) == set(Incident.model_fields)


def test_nodes_without_a_notice_source_are_named() -> None:
    log = Log(events=running_job())
    log.add(NoticeSources(answering=["spot/instance-action"]), node=0)
    assert "no notice source" not in blocks(live_page(fold(log.events), CONFIG), Text)[0].text
    log.add(NoticeSources(answering=[]), node=1)
    assert blocks(live_page(fold(log.events), CONFIG), Text)[0].text.endswith("no notice source on node 1")
    log.add(NoticeSources(answering=[]), node=0)
    assert blocks(live_page(fold(log.events), CONFIG), Text)[0].text.endswith("· no notice source")


WORK = ["steps", "steps", "unlogged steps", "evaluation", "save", "waits", "nothing"]
ENDS = ["restart", "retry", "rewind", "preempted", "finished", "lost host", "superseded step"]
HAPPENINGS = st.lists(st.tuples(st.sampled_from(WORK + ENDS), st.integers(1, 9)), max_size=12)


@given(HAPPENINGS)
@examples(60)
def test_any_history_has_incidents_that_end_when_a_naive_fold_says_so(happenings: list[tuple[str, int]]) -> None:
    events = disturbed(happenings).events
    report = fold(events, 1000)
    ended = [g for g in report.generations if g.outcome in ("failed", "preempted", "ended without a word")]
    assert [i.generation for i in report.incidents] == [g.number for g in ended]
    for incident in report.incidents:
        times = (incident.detected_s, incident.recovered_s, incident.beyond_s)
        known = [t for t in times if t is not None]
        assert known == sorted(known)
        assert (incident.steps_recomputed or 0) >= 0
        assert (incident.steps_recomputed is None) == (incident.then == "not gone on")
        told = naive.incident_times(events, incident.generation)
        assert (incident.recovered_s, incident.beyond_s) == pytest.approx(told)
    final_page(report, CONFIG)
    live_page(report, CONFIG)


def disturbed(happenings: list[tuple[str, int]]) -> Log:
    """A log in which these things come one after the other, the number telling how many steps, or which is gone to."""
    log, at = log_of_steps(0), 0
    for what, n in happenings:
        if what == "steps":
            for _ in range(n):
                at += 1
                log.step(at)
                ready(log)
        elif what in WORK:
            at += n + 1 if what == "unlogged steps" else 0
            work(log, what, n, at)
        elif what == "superseded step":
            if log.generation:
                late = StepDone(step=500, loss=1, grad_norm=1, lr=1, tokens=1, seconds=1)
                log.add(late, rank=0)
                log.events[-1] = log.events[-1].model_copy(update={"generation": log.generation - 1})
        elif what == "lost host":
            log.form(log.generation + 1, attempt=log.generation + 1, parent=at or None)
        elif what == "finished":
            log.add(GenerationEnded(outcome="finished"), node=0)
            log.form(log.generation + 1, attempt=log.generation + 1, parent=at or None)
        elif what == "preempted":
            log.add(NoticeReceived(source="s", notice="end", action="save_and_end"), node=1)
            log.wait(n)
            log.add(GenerationEnded(outcome="preempted"), node=0)
            log.form(log.generation + 1, attempt=log.generation + 1, parent=at)
        else:
            log.wait(n)
            action: Any = "restart" if what == "restart" else "end"
            log.add(FailureDetected(cause="hung", failed_node=1, worker=1, silent_seconds=n, action=action), node=0)
            at = max(at - n, 0) if what == "rewind" else at - at % 5
            attempt = 0 if what == "restart" else log.generation + 1
            log.form(log.generation + 1, attempt=attempt, parent=at or None)
        log.wait(0.5)
    return log


def ready(log: Log) -> None:
    """After the first step of a generation rank 0 reports that it is ready, and then what its machine can do."""
    own = [e for e in log.events if e.generation == log.generation]
    if not any(isinstance(e, WorkerReady) for e in own):
        log.add(WorkerReady(phase="first_step", seconds=1.0), rank=0)
        log.wait(0.3)
        log.add(Environment(versions={}, device="cpu", threads=1), rank=0)


def work(log: Log, what: str, n: int, at: int) -> None:
    """What happens besides a step that is logged. at: the last step that is done then."""
    stepped = any(isinstance(e, StepDone) and e.generation == log.generation for e in log.events)
    if what == "unlogged steps":  # between two that are
        log.step(at - n)
        ready(log)
        log.wait(n - 1)
        log.step(at)
    elif what == "evaluation" and (stepped or at == 0):
        log.wait(n / 10)
        log.add(Evaluated(step=at, loss=1, bits_per_byte=None, tokens=1, seconds=n / 10), rank=0)
    elif what == "save" and stepped:
        log.wait(n / 10)
        log.add(CheckpointSaved(step=at, attempt="a", bytes=1, seconds=n / 10), rank=0)
    elif what == "waits" and stepped:
        log.add(RankThroughput(step=at, tokens=1, seconds=1, waited_seconds=n / 10), rank=n % 2)
