"""What an agent knows of its gang."""

from dataclasses import replace

import pytest

from convoy.gang.assignment import STOPPED
from convoy.gang.diagnosis.first_cause import Seat
from convoy.gang.diagnosis.hang_detector import Patience
from convoy.gang.diagnosis.monitor import FRESH_SECONDS, Watch
from convoy.gang.evidence import Sign
from convoy.gang.network.peer_events import Failed, Gone, Left, Silent, Unheard
from convoy.gang.workers.board import Mark

LEADER = Seat(0, 2, 2)


def watch(seat: Seat = LEADER) -> Watch:
    return Watch(seat, Patience())


def training(step: int, at: float, count: int = 1, phase: str = "step", went_on: int = 0) -> Mark:
    return Mark.from_wire(
        {
            "phase": phase, "step": step, "count": count, "at": 0.0, "step_seconds": 0.1, "own_seconds": 0.1,
            "save_seconds": 0.0, "beat_at": 0.0, "waiting_at": 0.0, "went_on": went_on,
        },
        at,
    )  # fmt: skip


def trained(seen: Watch, steps: int) -> float:
    """Both ranks have done so many steps, one each 0.1 s; the time then."""
    now = 0.0
    for step in range(1, steps + 1):
        now = step * 0.1
        seen.placed({0: training(step, now), 1: training(step, now)}, now)
        seen.look_for_hangs(now)
    return now


def frozen(seen: Watch, now: float, seconds: float, step: int, jitter: float = 0.0) -> float:
    """Both ranks stay where they are, as node 1 tells with delays that vary; the time then."""
    began, until = now, now + seconds
    while now < until:
        now += 0.1
        late = jitter * (round(now * 10) % 3)
        marks = {0: training(step, began), 1: training(step, began + late)}
        seen.placed(marks, now)
        seen.look_for_hangs(now)
    return now


def test_a_gang_that_stands_still_hangs_and_it_is_told_once() -> None:
    seen = watch()
    now = trained(seen, 10)
    now = frozen(seen, now, 2.5, step=10)
    assert seen.signs == []
    frozen(seen, now, 2.0, step=10)
    (sign,) = seen.signs
    assert (sign.kind, sign.step, sign.node) == ("hung", 10, sign.rank)
    assert "has shown no progress in step 11" in sign.reason


def test_a_point_that_is_told_of_again_was_passed_when_it_was_first_told() -> None:
    seen = watch()
    now = trained(seen, 10)
    frozen(seen, now, 3.5, step=10, jitter=0.5)
    assert [sign.kind for sign in seen.signs] == ["hung"]


def test_who_goes_on_between_two_points_does_not_hang() -> None:
    seen = watch()
    now = trained(seen, 10)
    for i in range(60):
        now += 0.1
        seen.placed({rank: training(10, now - 0.05, went_on=i // 5) for rank in (0, 1)}, now)
        seen.look_for_hangs(now)
    assert seen.signs == []
    frozen(seen, now, 4.0, step=10)
    assert [sign.kind for sign in seen.signs] == ["hung"]


def test_nothing_hangs_while_a_node_does_not_tell_where_its_workers_are() -> None:
    seen = watch()
    now = trained(seen, 10)
    for _ in range(100):
        now += 0.1
        seen.placed({0: training(10, 1.0)}, now)
        seen.look_for_hangs(now)
    assert now - 1.0 > FRESH_SECONDS
    assert seen.signs == []


def test_new_workers_have_no_signs_yet_but_lost_nodes_stay_lost() -> None:
    seen = watch()
    seen.saw([Sign(kind="exited", node=0, by=0, at=1.0, seen=1.0, rank=0, signal="SIGKILL")])
    seen.met(Gone(1, "closed"))
    seen.begin()
    assert [sign.kind for sign in seen.signs] == ["gone"]
    assert [sign.kind for sign in seen.untold()] == ["gone"]
    assert seen.untold() == []


def at_its_end(at: float, earned: int | None, went_on: int = 0) -> Mark:
    return replace(training(3, at, phase="script", went_on=went_on), earned=earned)


@pytest.mark.parametrize("earned", [0, STOPPED])
def test_scripts_that_make_no_progress_after_their_last_lines_have_ended_with_their_own_exit_codes(earned: int) -> None:
    seen = Watch(LEADER, Patience(script_seconds=600.0), exit_seconds=35.0)
    seen.placed({0: at_its_end(100.0, earned), 1: at_its_end(100.0, earned)}, 134.0)
    seen.look_for_hangs(134.0)
    assert seen.signs == []
    seen.placed({0: at_its_end(100.0, earned), 1: at_its_end(120.0, earned, went_on=1)}, 136.0)
    seen.look_for_hangs(136.0)
    assert seen.signs == []  # rank 0 may wait for rank 1
    seen.placed({0: at_its_end(100.0, earned), 1: at_its_end(120.0, earned, went_on=1)}, 156.0)
    for now in (156.0, 156.1):
        seen.look_for_hangs(now)
    assert [(s.kind, s.rank, s.node, s.exit_code, s.well) for s in seen.signs] == [
        ("exited", rank, rank, earned, True) for rank in (0, 1)
    ]


def test_a_rank_at_its_end_may_wait_for_one_whose_script_still_runs() -> None:
    seen = Watch(LEADER, Patience(script_seconds=600.0), exit_seconds=35.0)
    seen.placed({0: at_its_end(100.0, 0), 1: at_its_end(100.0, None)}, 5000.0)
    seen.look_for_hangs(5000.0)
    assert seen.signs == []


def test_what_others_told_is_not_told_again() -> None:
    seen = watch()
    seen.heard([Sign(kind="exited", node=1, by=1, at=1.0, seen=1.0, rank=1, exit_code=1)])
    assert (len(seen.signs), seen.untold()) == (1, [])


def test_who_is_lost_decides_nothing_that_comes_here() -> None:
    member = Seat(2, 3, 3)
    for event in (Gone(0, "closed"), Left(0), Silent(0, 1.5, 9.0)):
        seen = watch(member)
        assert not seen.lost(0)
        seen.met(event)
        assert seen.lost(0)
        assert not seen.lost(1)
    seen = watch(member)
    seen.met(Unheard(0, by=1, seconds=1.5))
    assert not seen.lost(0)  # this node hears it


def test_an_agent_that_sees_nobody_any_more_cannot_go_on() -> None:
    seen = watch()
    seen.met(Failed(None, "the thread of the peers failed"))
    (sign,) = seen.untold()
    assert (sign.kind, sign.node, sign.reason) == ("agent", 0, "the thread of the peers failed")
