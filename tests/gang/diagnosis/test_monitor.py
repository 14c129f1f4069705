"""What an agent knows of its gang."""

from dataclasses import replace

import pytest

from convoy.gang.diagnosis.hang_detector import HangDetector
from convoy.gang.diagnosis.monitor import FRESH_SECONDS, GangMonitor
from convoy.gang.messages import Evidence
from convoy.gang.network.formation import PeerGone, PeerLeft, PeerReportedSilent, PeersFailed, PeerSilent
from convoy.gang.task import STOPPED, Node
from convoy.gang.workers.board import Mark, Phase
from tests.gang.tasks import a_node

LEADER = a_node(nproc=1, nodes=2)


def watch(node: Node = LEADER) -> GangMonitor:
    return GangMonitor(node, HangDetector())


def training(step: int, at: float, count: int = 1, phase: Phase = "step", advances: int = 0) -> Mark:
    return Mark(phase, step, count, at, step_seconds=0.1, own_seconds=0.1, beat_at=at, waiting_at=at, advances=advances)


def trained(seen: GangMonitor, steps: int) -> float:
    """Both ranks have done so many steps, one each 0.1 s; the time then."""
    now = 0.0
    for step in range(1, steps + 1):
        now = step * 0.1
        seen.update_marks({0: training(step, now), 1: training(step, now)}, now)
        seen.look_for_hangs(now)
    return now


def frozen(seen: GangMonitor, now: float, seconds: float, step: int, jitter: float = 0.0) -> float:
    """Both ranks stay where they are, as node 1 tells with delays that vary; the time then."""
    began, until = now, now + seconds
    while now < until:
        now += 0.1
        late = jitter * (round(now * 10) % 3)
        marks = {0: training(step, began), 1: training(step, began + late)}
        seen.update_marks(marks, now)
        seen.look_for_hangs(now)
    return now


def test_a_gang_that_stands_still_hangs_and_it_is_told_once() -> None:
    seen = watch()
    now = trained(seen, 10)
    now = frozen(seen, now, 2.5, step=10)
    assert seen.evidence == []
    frozen(seen, now, 2.0, step=10)
    (sign,) = seen.evidence
    assert (sign.kind, sign.step, sign.node) == ("hung", 10, sign.rank)
    assert "has shown no progress in step 11" in sign.reason


def test_a_point_that_is_told_of_again_was_passed_when_it_was_first_told() -> None:
    seen = watch()
    now = trained(seen, 10)
    frozen(seen, now, 3.5, step=10, jitter=0.5)
    assert [sign.kind for sign in seen.evidence] == ["hung"]


def test_who_goes_on_between_two_points_does_not_hang() -> None:
    seen = watch()
    now = trained(seen, 10)
    for i in range(60):
        now += 0.1
        seen.update_marks({rank: training(10, now - 0.05, advances=i // 5) for rank in (0, 1)}, now)
        seen.look_for_hangs(now)
    assert seen.evidence == []
    frozen(seen, now, 4.0, step=10)
    assert [sign.kind for sign in seen.evidence] == ["hung"]


def test_nothing_hangs_while_a_node_does_not_tell_where_its_workers_are() -> None:
    seen = watch()
    now = trained(seen, 10)
    for _ in range(100):
        now += 0.1
        seen.update_marks({0: training(10, 1.0)}, now)
        seen.look_for_hangs(now)
    assert now - 1.0 > FRESH_SECONDS
    assert seen.evidence == []


def test_new_workers_have_no_signs_yet_but_lost_nodes_stay_lost() -> None:
    seen = watch()
    seen.add_own([Evidence(kind="exited", node=0, by=0, at=1.0, noticed=1.0, rank=0, signal="SIGKILL")])
    seen.add_peer_event(PeerGone(1, "closed"))
    seen.begin_generation()
    assert [sign.kind for sign in seen.evidence] == ["gone"]
    assert [sign.kind for sign in seen.take_unsent()] == ["gone"]
    assert seen.take_unsent() == []


def at_its_end(at: float, earned: int | None, advances: int = 0) -> Mark:
    return replace(training(3, at, phase="script", advances=advances), earned=earned)


@pytest.mark.parametrize("earned", [0, STOPPED])
def test_scripts_that_make_no_progress_after_their_last_lines_have_ended_with_their_own_exit_codes(earned: int) -> None:
    seen = GangMonitor(LEADER, HangDetector(script_seconds=600.0), exit_seconds=35.0)
    seen.update_marks({0: at_its_end(100.0, earned), 1: at_its_end(100.0, earned)}, 134.0)
    seen.look_for_hangs(134.0)
    assert seen.evidence == []
    seen.update_marks({0: at_its_end(100.0, earned), 1: at_its_end(120.0, earned, advances=1)}, 136.0)
    seen.look_for_hangs(136.0)
    assert seen.evidence == []  # rank 0 may wait for rank 1
    seen.update_marks({0: at_its_end(100.0, earned), 1: at_its_end(120.0, earned, advances=1)}, 156.0)
    for now in (156.0, 156.1):
        seen.look_for_hangs(now)
    assert [(s.kind, s.rank, s.node, s.exit_code, s.is_success) for s in seen.evidence] == [
        ("exited", rank, rank, earned, True) for rank in (0, 1)
    ]


def test_a_rank_at_its_end_may_wait_for_one_whose_script_still_runs() -> None:
    seen = GangMonitor(LEADER, HangDetector(script_seconds=600.0), exit_seconds=35.0)
    seen.update_marks({0: at_its_end(100.0, 0), 1: at_its_end(100.0, None)}, 5000.0)
    seen.look_for_hangs(5000.0)
    assert seen.evidence == []


def test_what_others_told_is_not_told_again() -> None:
    seen = watch()
    seen.add_received([Evidence(kind="exited", node=1, by=1, at=1.0, noticed=1.0, rank=1, exit_code=1)])
    assert (len(seen.evidence), seen.take_unsent()) == (1, [])


def test_who_is_lost_decides_nothing_that_comes_here() -> None:
    member = a_node(nproc=1, index=2, nodes=3)
    for event in (PeerGone(0, "closed"), PeerLeft(0), PeerSilent(0, 1.5, 9.0)):
        seen = watch(member)
        assert not seen.has_lost(0)
        seen.add_peer_event(event)
        assert seen.has_lost(0)
        assert not seen.has_lost(1)
    seen = watch(member)
    seen.add_peer_event(PeerReportedSilent(0, by=1, seconds=1.5))
    assert not seen.has_lost(0)  # this node hears it


def test_an_agent_that_sees_nobody_any_more_cannot_go_on() -> None:
    seen = watch()
    seen.add_peer_event(PeersFailed("the thread of the peers failed"))
    (sign,) = seen.take_unsent()
    assert (sign.kind, sign.node, sign.reason) == ("agent", 0, "the thread of the peers failed")
