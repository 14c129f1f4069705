"""The first cause, and what is done about it, whatever comes when."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.diagnosis.verdict import (
    MAX_WITHOUT_PROGRESS,
    PEERS_SECONDS,
    REPEATS,
    SETTLE_SECONDS,
    FailureHistory,
    cause_message,
    failures_without_progress,
    judge,
    read_earlier_failures,
    repeat_count,
)
from convoy.gang.messages import (
    EndAttempt,
    Evidence,
    EvidenceKind,
    Finished,
    Preempted,
    Restart,
    Stopped,
    Verdict,
    Wait,
)
from convoy.gang.task import EXPECTED, STOPPED, Node
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import OUTAGE, PEER_LOST, UNFIT, Event, FailureDetected, FailureKind, GenerationStarted
from convoy.storage import Store, open_store
from tests.campaign import examples
from tests.gang.tasks import a_node, wait_for

pytestmark = pytest.mark.campaign

LEADER = a_node(nproc=1, nodes=3)
FAR = 1e6


def sign(kind: EvidenceKind, node: int = 1, at: float = 0.0, **facts: Any) -> Evidence:
    by = 0 if kind in ("gone", "silent", "left") else node
    rank = node if kind in ("exited", "stopped", "hung") else None
    own = {"kind": kind, "node": node, "by": by, "rank": rank, "at": at, "noticed": at}
    return Evidence.model_validate(own | facts)


def killed(node: int = 1, at: float = 0.0, **facts: Any) -> Evidence:
    return sign("exited", node, at, signal="SIGKILL", **facts)


def exited(code: int, node: int = 1, at: float = 0.0, **facts: Any) -> Evidence:
    return sign("exited", node, at, exit_code=code, **facts)


def ended(node: int, code: int = 0, finishing: bool | None = True) -> Evidence:
    return exited(code, node, finishing=finishing)


def settled(signs: Sequence[Evidence], here: Node = LEADER, history: Sequence[FailureDetected] = ()) -> Verdict:
    return judge(signs, FAR, here, history)


def cause_of(verdict: Verdict) -> FailureDetected:
    assert isinstance(verdict, Restart | EndAttempt), verdict
    return verdict.cause


def failed(step: int = 0, cause: FailureKind = "exited", reason: str = "", code: int | None = 1) -> FailureDetected:
    return FailureDetected(cause=cause, failed_node=1, worker=1, exit_code=code, reason=reason, step=step)


def test_a_killed_worker_restarts_the_gang_once_earlier_causes_had_their_time() -> None:
    seen = [killed(at=10.0, step=41)]
    assert judge(seen, 10.1, LEADER) == Wait(10.0 + SETTLE_SECONDS)
    verdict = judge(seen, 10.0 + SETTLE_SECONDS, LEADER)
    assert isinstance(verdict, Restart)
    assert verdict.cause.action == "restart"
    assert (verdict.cause.cause, verdict.cause.failed_node, verdict.cause.worker) == ("exited", 1, 1)
    assert (verdict.cause.signal, verdict.cause.step) == ("SIGKILL", 41)
    assert verdict.cause.silent_seconds == pytest.approx(SETTLE_SECONDS)
    assert cause_message(verdict.cause) == "rank 1 on node 1 was killed by SIGKILL"


def test_workers_that_lost_their_peer_are_not_the_cause_though_they_are_seen_first() -> None:
    early = [exited(PEER_LOST, 0, 9.9), exited(PEER_LOST, 2, 9.95)]
    assert judge(early, 11.0, LEADER) == Wait(9.9 + PEERS_SECONDS)
    cause = cause_of(settled([*early, killed(1, 10.0, noticed=11.0)]))
    assert (cause.cause, cause.worker) == ("exited", 1)


def test_workers_that_lost_a_peer_while_none_had_failed_say_so() -> None:
    verdict = judge([exited(PEER_LOST, 2, 10.0, reason="RuntimeError: read")], 10.0 + PEERS_SECONDS, LEADER)
    assert isinstance(verdict, Restart)
    assert cause_message(verdict.cause) == (
        "rank 2 on node 2 lost its connection, though no peer had failed: RuntimeError: read"
    )


def test_what_we_killed_is_no_failure() -> None:
    assert settled([killed(1, by_us=True), exited(1, 2, by_us=True)]) == Wait()


@pytest.mark.parametrize("soft", [exited(1, 0, 9.95), sign("exited", 0, 9.95, signal="SIGABRT")])
def test_a_signal_or_a_lost_node_comes_before_an_error_that_was_seen_a_moment_earlier(soft: Evidence) -> None:
    assert cause_of(settled([soft, killed(1, 10.0)])).signal == "SIGKILL"
    assert cause_of(settled([soft, sign("gone", 2, 10.0)])).cause == "node_gone"
    assert cause_of(settled([soft, killed(1, 10.2)])).worker == 0


@pytest.mark.parametrize("how", ["gone", "silent", "left"])
@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_node_ends_the_attempt_of_every_other_one(how: EvidenceKind, lost: int) -> None:
    for node in {0, 1, 2} - {lost}:
        verdict = settled([sign(how, lost)], a_node(nproc=1, index=node, nodes=3))
        assert isinstance(verdict, EndAttempt)
        assert verdict.cause.retryable
        assert (verdict.cause.failed_node, verdict.cause.worker, verdict.cause.action) == (lost, None, "end")


def test_a_node_that_left_after_its_workers_were_done_is_not_lost() -> None:
    seen = [ended(1), sign("left", 1), ended(0)]
    assert settled(seen) == Wait()
    assert settled([*seen, ended(2)]) == Finished()


def test_a_node_that_says_why_it_leaves_is_believed() -> None:
    told = sign("agent", 2, 10.0, reason="port 4000 is taken", lasting=True)
    verdict = settled([sign("left", 2, 9.99), told])
    assert isinstance(verdict, EndAttempt)
    assert not verdict.cause.retryable
    assert cause_message(verdict.cause) == "node 2 could not continue: port 4000 is taken"


def test_a_node_that_hears_no_other_one_is_cut_off() -> None:
    silence = [sign("silent", 1, by=0), sign("silent", 0, by=2)]
    cause = cause_of(settled(silence))
    assert (cause.cause, cause.failed_node) == ("cut_off", 0)
    assert cause_message(cause) == "node 0 was cut off, it heard no other node any more"
    assert cause_of(settled(silence[:1])).cause == "node_silent"
    assert cause_of(settled([sign("silent", 1, by=0)], a_node(nproc=1, nodes=2))).failed_node == 1


@pytest.mark.parametrize("cut_off", [0, 1, 2])
@pytest.mark.parametrize("node", [0, 1, 2])
def test_when_both_sides_of_a_partition_tell_of_it_all_name_the_node_that_was_cut_off(cut_off: int, node: int) -> None:
    others = {0, 1, 2} - {cut_off}
    silence = [sign("silent", cut_off, 1.0, by=other) for other in others]
    silence += [sign("silent", other, 0.9, by=cut_off) for other in others]
    cause = cause_of(settled(silence, a_node(nproc=1, index=node, nodes=3)))
    assert (cause.cause, cause.failed_node) == ("cut_off" if node == cut_off else "node_silent", cut_off)


def test_other_nodes_leave_what_agents_can_mend_to_node_0() -> None:
    member = a_node(nproc=1, index=1, nodes=3)
    assert settled([killed(1), exited(EXPECTED, 2), sign("hung", 1), sign("stopped", 1)], member) == Wait()
    assert settled([ended(0), ended(1), ended(2)], member) == Wait()
    assert settled([sign("agent", 2)], member) == Wait()
    assert isinstance(settled([sign("agent", 1)], member), EndAttempt)
    own = settled([killed(1, 5.0), sign("gone", 0, 5.5)], member)
    assert isinstance(own, EndAttempt)
    assert own.cause.signal == "SIGKILL"  # what came first, also where a lost node ends the attempt


def test_all_ended_is_finished_and_stopped_where_they_agreed_to_stop() -> None:
    assert settled([ended(0), ended(1)]) == Wait()
    assert settled([ended(0), ended(1), ended(2)]) == Finished()
    assert settled([ended(0, STOPPED), ended(1, STOPPED), ended(2, STOPPED)]) == Stopped()
    assert settled([ended(0), ended(1, 0, None), ended(2)]) == Finished()


def test_a_worker_that_ends_with_success_before_its_end_has_failed() -> None:
    cause = cause_of(settled([ended(1, 0, finishing=False)]))
    assert cause_message(cause) == "rank 1 on node 1 ended too early, with success, while the others continued"


def test_without_a_progress_board_an_early_end_shows_by_what_the_others_do() -> None:
    early = ended(1, 0, finishing=None)
    assert settled([early]) == Wait()
    assert cause_of(settled([early, exited(PEER_LOST, 2, 0.5)])).cause == "exited_early"
    assert cause_of(settled([early, sign("hung", 2, 0.5)])).cause == "exited_early"
    assert cause_of(settled([early, killed(2, 0.5)])).worker == 2
    at_its_end = ended(1, 0, finishing=True)
    assert cause_of(settled([at_its_end, sign("hung", 2, 0.5)])).cause == "hung"


def test_of_ranks_that_hang_the_one_that_came_least_far_is_the_cause() -> None:
    waits = [sign("hung", node, at=1.0, progress=(41, 5, 0)) for node in (0, 2)]
    culprit = sign(
        "hung", 1, at=1.4, progress=(40, 5, 0), reason="rank 1 has been in step 40 for 3.1 s; the limit is 3 s"
    )
    cause = cause_of(settled([*waits, culprit]))
    assert (cause.cause, cause.worker) == ("hung", 1)
    assert isinstance(settled([*waits, culprit]), Restart)


def test_a_stopped_worker_is_the_cause_of_those_that_hang() -> None:
    cause = cause_of(settled([sign("hung", 0, at=1.0), sign("stopped", 1, at=1.2)]))
    assert (cause.cause, cause.worker) == ("stopped", 1)


@pytest.mark.parametrize(("code", "retryable"), [(EXPECTED, False), (OUTAGE, True)])
def test_what_one_line_tells_in_full_is_not_tried_again_in_place(code: int, retryable: bool) -> None:
    verdict = settled([exited(code, reason="data.path = /x: does not exist")])
    assert isinstance(verdict, EndAttempt)
    assert verdict.cause.retryable == retryable
    assert cause_message(verdict.cause) == "data.path = /x: does not exist"


@pytest.mark.parametrize("sees", ["worker", "agent"])
def test_a_machine_that_is_not_fit_ends_the_attempt_by_its_name_and_another_may_do_better(sees: str) -> None:
    reason = "a matrix product takes 8.0 times as long as on the other ranks"
    found = sign("exited" if sees == "worker" else "agent", 2, 1.0, exit_code=UNFIT, reason=reason)
    verdict = settled([exited(PEER_LOST, 0, 0.9), found, exited(PEER_LOST, 1, 1.1)])
    assert isinstance(verdict, EndAttempt)
    assert (verdict.cause.cause, verdict.cause.failed_node, verdict.cause.retryable) == ("unfit", 2, True)
    who = "rank 2 on node 2" if sees == "worker" else "node 2"
    assert cause_message(verdict.cause) == f"{who} is not fit to train, another machine may be: {reason}"


def test_without_the_store_no_generation_is_formed() -> None:
    away = sign("store", 2, at=1.0, ok=False)
    verdict = settled([away, killed(1, 2.0)])
    assert isinstance(verdict, EndAttempt)
    assert verdict.cause.retryable
    assert cause_message(verdict.cause).endswith(
        "\nnode 2 does not reach the store, without which no generation can be formed"
    )
    assert isinstance(settled([away, sign("store", 2, at=1.5), killed(1, 2.0)]), Restart)
    assert settled([away]) == Wait()  # training goes on without it


def test_the_same_failure_at_the_same_step_three_times_is_a_bug() -> None:
    bug = exited(1, reason="IndexError: index 7 is out of bounds", step=41)
    once = failed(41, reason="IndexError: index 9 is out of bounds")
    assert isinstance(settled([bug], history=[once, failed(40), failed(41, reason="KeyError: 'x'")]), Restart)
    verdict = settled([bug], history=[once, failed(60), once])
    assert isinstance(verdict, EndAttempt)
    assert not verdict.cause.retryable
    assert repeat_count([once, once], verdict.cause) == REPEATS
    assert "the same failure at step 41, 3 times" in cause_message(verdict.cause)


@pytest.mark.parametrize("kind", ["stopped", "node_gone", "link_lost"])
def test_what_is_no_fault_of_the_program_does_not_repeat(kind: FailureKind) -> None:
    assert repeat_count([failed(41, kind)] * 5, failed(41, kind)) == 0


def test_a_gang_that_gets_nowhere_ends_and_may_be_tried_elsewhere() -> None:
    nowhere = [failed(41, "stopped"), *[failed(40, "stopped")] * (MAX_WITHOUT_PROGRESS - 1)]
    assert failures_without_progress(nowhere, failed(42)) == 0
    assert failures_without_progress(nowhere, failed(41)) == MAX_WITHOUT_PROGRESS
    assert isinstance(settled([sign("stopped", step=42)], history=nowhere), Restart)
    verdict = settled([sign("stopped", step=41)], history=nowhere)
    assert isinstance(verdict, EndAttempt)
    assert verdict.cause.retryable


def test_a_notice_ends_the_attempt_when_all_have_ended_or_one_fails_or_the_time_is_over() -> None:
    notice = sign("notice", 2, at=1.0, deadline=100.0)
    assert judge([notice], 50.0, LEADER) == Wait(100.0)
    assert judge([notice], 100.0, LEADER) == Preempted(notice)
    assert judge([notice, *(ended(n, STOPPED) for n in range(3))], 50.0, LEADER) == Preempted(notice)
    assert judge([notice, *(ended(n) for n in range(3))], 50.0, LEADER) == Finished()
    lost = judge([notice, sign("gone", 2, at=40.0)], 50.0, LEADER)
    assert isinstance(lost, Preempted)
    assert lost.cause is not None
    assert lost.cause.failed_node == 2
    assert judge([notice, killed(1, at=49.9)], 50.0, LEADER) == Wait(49.9 + SETTLE_SECONDS)


def test_of_several_notices_the_first_is_named_and_the_one_that_is_over_first_ends_the_attempt() -> None:
    first, second = sign("notice", 1, at=1.0), sign("notice", 2, at=2.0, deadline=30.0)
    assert judge([second, first], 3.0, LEADER) == Wait(30.0)
    assert judge([second, first], 30.0, LEADER) == Preempted(first)


# Random schedules.


@dataclass(frozen=True)
class Scene:
    """A fault, what follows from it, and when the leader learns of each."""

    here: Node
    signs: tuple[Evidence, ...]
    """By arrival."""
    cause: FailureKind
    node: int
    rank: int | None

    def verdict(self) -> tuple[Verdict, float]:
        """What a leader does that judges at each arrival and when it was told to, and when."""
        waiting = list(self.signs)
        known: list[Evidence] = []
        now = 0.0
        for _ in range(100):
            verdict = judge(known, now, self.here)
            if not isinstance(verdict, Wait):
                return verdict, now
            times = [t for t in (verdict.until, waiting[0].noticed if waiting else None) if t is not None]
            assert times, "it waits for ever"
            assert verdict.until is None or verdict.until > now
            now = min(times)
            known += [s for s in waiting if s.noticed <= now]
            waiting = [s for s in waiting if s.noticed > now]
        raise AssertionError("no verdict")


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    nodes, per_node = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    here = a_node(nproc=per_node, nodes=nodes)
    faults: list[FailureKind] = ["exited", "stopped", "hung", "exited_early"]
    cause = draw(st.sampled_from([*faults, "node_gone"] if nodes > 1 else faults))
    rank = draw(st.integers(per_node if cause == "node_gone" else 0, here.world_size - 1))
    node, at = rank // per_node, draw(st.floats(1.0, 2.0))
    delay = st.floats(0.0, 0.7 * SETTLE_SECONDS)

    def seen(of: int, kind: EvidenceKind, happened: float, **facts: Any) -> Evidence:
        late = happened + draw(delay)
        where = {"node": of // per_node, "by": of // per_node}
        return Evidence(**{"kind": kind, "rank": of, "at": happened, "noticed": late, **where, **facts})

    failing = range(node * per_node, (node + 1) * per_node) if cause == "node_gone" else [rank]
    others = [r for r in range(here.world_size) if r not in failing]
    hard = draw(st.booleans())
    match cause:
        case "exited":
            facts: dict[str, Any] = {"signal": "SIGKILL"} if hard else {"exit_code": 1}
            signs = [seen(rank, "exited", at, **facts)]
        case "exited_early":
            signs = [seen(rank, "exited", at, exit_code=0, finishing=False)]
        case "stopped":
            signs = [seen(rank, "stopped", at)]
        case "hung":
            signs = [seen(rank, "hung", at, progress=(4, 5, 0))]
        case _:
            signs = [seen(rank, "gone", at, rank=None, by=0)]
    # Others may be seen to fail a moment before what was killed, for ends are seen in any order.
    early = -0.05 if (hard and cause == "exited") or cause == "node_gone" else 0.001
    for other in others:
        follows = draw(st.sampled_from(["lost its peer", "fails", "hangs", "goes on"]))
        then = at + draw(st.floats(early, 0.1))
        if follows == "lost its peer":
            signs.append(seen(other, "exited", then, exit_code=PEER_LOST))
        elif follows == "fails" and cause != "hung":
            signs.append(seen(other, "exited", then, exit_code=1))
        elif follows == "hangs" and cause in ("hung", "stopped"):
            signs.append(seen(other, "hung", draw(st.floats(0.0, at)), progress=(5, 5, 0), noticed=then + draw(delay)))
    ordered = tuple(sorted(signs, key=lambda s: s.noticed))
    return Scene(here, ordered, cause, node, None if cause == "node_gone" else rank)


@pytest.mark.processes
@given(scenes())
@examples(300)
def test_the_true_cause_is_found_whatever_comes_first(scene: Scene) -> None:
    verdict, now = scene.verdict()
    cause = cause_of(verdict)
    assert (cause.cause, cause.failed_node, cause.worker) == (scene.cause, scene.node, scene.rank)
    assert isinstance(verdict, EndAttempt if scene.cause == "node_gone" else Restart)
    true = next(s for s in scene.signs if (s.node, s.rank) == (scene.node, scene.rank))
    assert now <= true.noticed + SETTLE_SECONDS + 1e-9


KINDS: tuple[EvidenceKind, ...] = ("exited", "stopped", "hung", "gone", "silent", "left", "agent", "store", "notice")


@st.composite
def any_sign(draw: st.DrawFn) -> Evidence:
    kind, node, at = draw(st.sampled_from(KINDS)), draw(st.integers(0, 2)), draw(st.floats(0, 10))
    facts: dict[str, Any] = {}
    if kind == "exited":
        facts["exit_code"] = draw(st.sampled_from([None, 0, 1, EXPECTED, STOPPED, PEER_LOST, OUTAGE]))
        facts["signal"] = "SIGKILL" if facts["exit_code"] is None else None
        facts["finishing"] = draw(st.sampled_from([None, True, False]))
        facts["by_us"] = draw(st.booleans())
    if kind == "notice":
        facts["deadline"] = draw(st.none() | st.floats(0, 50))
    return sign(kind, node, at, noticed=at + draw(st.floats(0, 3)), ok=draw(st.booleans()), **facts)


@given(st.lists(any_sign(), max_size=8), st.randoms(use_true_random=False), st.floats(0, 20), st.integers(0, 2))
@examples(300)
def test_whatever_was_seen_some_things_never_happen(signs: list[Evidence], random: Any, now: float, node: int) -> None:
    here = a_node(nproc=1, index=node, nodes=3)
    verdict = judge(signs, now, here)
    shuffled = signs.copy()
    random.shuffle(shuffled)
    assert judge(shuffled, now, here) == verdict or len({(s.at, s.node, s.rank) for s in signs}) < len(signs)
    if isinstance(verdict, Wait):
        assert verdict.until is None or verdict.until > now
        if verdict.until is not None:
            assert not isinstance(judge(signs, verdict.until, here), Wait)
    if node != 0:
        assert isinstance(verdict, Wait | EndAttempt | Preempted)
    if any(s.kind == "notice" for s in signs):
        assert not isinstance(verdict, Restart | EndAttempt | Stopped)
    if isinstance(verdict, Restart):
        done = {n for n in range(3) if any(s.is_success and s.node == n for s in signs)}
        assert not any(s.kind in ("silent", "agent") for s in signs)
        assert all(s.node in done for s in signs if s.kind in ("gone", "left"))
    if isinstance(verdict, Restart | EndAttempt) and verdict.cause.worker is not None:
        seen = [s for s in signs if s.rank == verdict.cause.worker and not s.by_us]
        assert seen
        if verdict.cause.exit_code == PEER_LOST:
            assert verdict.cause.cause == "link_lost"
            assert all(s.is_lost_peer or s.by_us or s.is_success or s.kind in ("store", "gone", "left") for s in signs)


def log_events(store: Store, generation: int, *events: Event, node: int = 0, rank: int | None = None) -> None:
    writer = EventWriter(store, generation, node, rank)
    for event in events:
        writer.append(event)
    writer.close()


def test_they_are_those_that_node_0_told_oldest_first(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for generation in (1, 2, 3):
        for node, rank in ((0, None), (0, 0), (1, None)):
            step = generation if (node, rank) == (0, None) else 99
            log_events(store, generation, GenerationStarted(), failed(step), node=node, rank=rank)
    assert [cause.step for cause in read_earlier_failures(store, 3)] == [1, 2]


def test_no_more_are_read_than_a_verdict_looks_at(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for generation in range(1, MAX_WITHOUT_PROGRESS + 3):
        log_events(store, generation, failed(generation))
    steps = [cause.step for cause in read_earlier_failures(store, MAX_WITHOUT_PROGRESS + 3)]
    assert steps == list(range(3, MAX_WITHOUT_PROGRESS + 3))


def test_this_attempt_s_follow_and_what_is_no_event_is_passed_over(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    folder = tmp_path / "events/000001/00000"
    folder.mkdir(parents=True)
    (folder / "agent.jsonl").write_bytes(b'half a li\n{"kind": "of a later version"}\n')
    with open(folder / "agent.jsonl", "ab") as log:
        log.write(failed(5).model_dump_json().encode() + b"\n")
    past = FailureHistory(store, 2)
    past.add(failed(6))
    wait_for("the earlier ones", lambda: len(past.failures()) == 2)
    assert [cause.step for cause in past.failures()] == [5, 6]


def test_a_store_that_does_not_answer_has_no_past(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("in the way")
    past = FailureHistory(open_store(str(tmp_path)), 2)
    past.add(failed(6))
    assert [cause.step for cause in past.failures()] == [6]
