"""What some drills must show beyond what all must: each check reports what is wrong, and nothing of a right trial."""

import math
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.format import shards_prefix
from convoy.drills import checks
from convoy.drills.checks import (
    incomplete_log_problems,
    late_save_problems,
    late_stop_problems,
    leftover_file_problems,
    leftover_memory_problems,
    leftover_process_problems,
    next_tier_save_problems,
    notice_problems,
    prune_and_find_orphans,
    recompute_problems,
    stall_problems,
    wrong_restore_problems,
)
from convoy.drills.observe import Observation
from convoy.job.events.registry import (
    CheckpointAlert,
    CheckpointSaved,
    Event,
    EventsDropped,
    GangStopped,
    NoticeReceived,
    Restored,
    StepDone,
    Stopping,
)
from convoy.storage import open_store
from tests.drills.trials import STEPS, TOKENS, at, failed, generation, history, killed_worker, started

BEGAN = 1000.0
"""Wall time of the injection; events are given in seconds from it on."""


def trial(*events: Event, **changed: Any) -> Observation:
    """A trial of nothing but these events."""
    return killed_worker(**{"injected": [BEGAN], "history": history(), "results": (), "commit": None, **changed},
                         events=sorted(events, key=lambda e: e.t))  # fmt: skip


def formed(number: int, t: float, parent: tuple[int, int] | None = None) -> Event:
    return started(BEGAN + t, number, parent)[0]


def step(number: int, t: float, generation: int = 1) -> Event:
    return at(BEGAN + t, StepDone(step=number, loss=1.0, grad_norm=1.0, lr=1.0, tokens=TOKENS, seconds=1.0), generation)


def stopped(node: int, t: float, generation: int = 1) -> Event:
    return at(BEGAN + t, GangStopped(seconds=0.1), generation, node)


def saved(number: int, t: float, tier: str = "/root/job") -> Event:
    return at(BEGAN + t, CheckpointSaved(step=number, attempt="a", bytes=1, tier=tier, seconds=0.1))


def notice(node: int, source: str = "spot", action: Any = "save_and_end") -> Event:
    return at(BEGAN + 1, NoticeReceived(source=source, notice="end", action=action), node=node)


def agreed(number: int, reason: Any = "preempted") -> Event:
    return at(BEGAN + 2, Stopping(step=number, reason=reason))


def restored(number: int, maker: int) -> Event:
    return at(BEGAN + 3, Restored(from_generation=maker, step=number, seconds=0.1), 2)


FORMED = formed(1, -9)
RESUMED = history(None, (1, 4))
SIX_STEPS = [FORMED, *(step(number, number - 7) for number in range(1, 7))]
DONE_AGAIN = [formed(2, 5, (1, 4)), step(5, 6, 2), step(6, 7, 2), step(7, 8, 2)]
ALL_STEPS = [FORMED, *(step(number, number) for number in range(1, STEPS + 1))]
ALERT = at(BEGAN + 2, CheckpointAlert(step=4, failures=3, newest=None, error="full"))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # Workers that are stopped in time.
        (late_stop_problems(trial(FORMED, stopped(0, 1), stopped(2, 2)), {0, 2}), []),
        (
            late_stop_problems(trial(FORMED, stopped(0, 1)), {0, 2}),
            ["node 2 never reported that its workers had stopped"],
        ),
        (
            late_stop_problems(trial(FORMED, stopped(0, 9.5)), {0}),
            ["the workers of node 0 were stopped after 9.50 s, more than 3 times 3 s"],
        ),
        (
            late_stop_problems(trial(FORMED, formed(2, 1), stopped(0, 2, generation=2)), {0}),
            ["node 0 never reported that its workers had stopped"],
        ),
        # Commits that are read.
        (wrong_restore_problems(trial(restored(4, 1), history=RESUMED)), []),
        (
            wrong_restore_problems(trial(restored(6, 1), history=RESUMED)),
            ["generation 2 read step 6 of 1, not generation=1 step=4"],
        ),
        (
            wrong_restore_problems(trial(restored(4, 1), restored(4, 2), history=RESUMED)),
            ["generation 2 read step 4 of 2, not generation=1 step=4", "two commits of step 4 were read"],
        ),
        # Saves for a notice.
        (late_save_problems(trial(agreed(6), saved(6, 3)), at_end=True), []),
        (late_save_problems(trial(agreed(6), saved(4, 1)), at_end=True), ["nothing was saved after the notice"]),
        (
            late_save_problems(trial(agreed(6), saved(6, 31)), at_end=True),
            ["the save was committed 31.00 s after the notice, more than 3 times 10 s"],
        ),
        (
            late_save_problems(trial(agreed(6, "preempted_unsaved"), saved(6, 3)), at_end=True),
            ["the gang did not agree to save and end"],
        ),
        (late_save_problems(trial(agreed(6), saved(6, 3)), at_end=False), ["the gang agreed to end at steps [6]"]),
        (late_save_problems(trial(saved(6, 3)), at_end=False), []),
        # Steps that are done again.
        (recompute_problems(trial(*SIX_STEPS, failed(BEGAN + 1, 1, step=6), *DONE_AGAIN)), ["2 steps were done again"]),
        (recompute_problems(trial(*SIX_STEPS)), []),
        # Storage that fails; a save that was under way then may still come.
        (next_tier_save_problems(trial(saved(2, 1.5), saved(4, 5, "/next/job"), saved(6, 9)), "/next", BEGAN + 1), []),
        (
            next_tier_save_problems(trial(saved(4, 5)), "/next", BEGAN + 1),
            ["the next save, of step 4, is on /root/job, not below /next"],
        ),
        (
            next_tier_save_problems(trial(ALERT), "/next", BEGAN + 1),
            ["3 saves in a row were abandoned", "nothing was saved after the root had failed"],
        ),
        (stall_problems(trial(*(step(n, n - 3) for n in range(1, 9))), 4.0), []),
        (
            stall_problems(trial(step(1, -1), step(2, 1), step(3, 7)), 4.0),
            ["training stood still for 6.00 s after step 2"],
        ),
        # After the fault is over nothing is reported of it.
        (stall_problems(trial(step(1, -1), step(2, 2), step(3, 3), step(4, 9)), 2.5), []),
        (stall_problems(trial(step(1, -1)), 4.0), ["no step was done after the injection"]),
        (incomplete_log_problems(trial(*ALL_STEPS)), []),
        (incomplete_log_problems(trial(*ALL_STEPS[:3], *ALL_STEPS[5:])), ["the log lacks steps [3, 4]"]),
        (incomplete_log_problems(trial(*ALL_STEPS, at(BEGAN, EventsDropped(events=7)))), ["7 events were lost"]),
    ],
)
def test_a_check_reports_what_is_wrong(found: list[str], expected: list[str]) -> None:
    assert found == expected


@pytest.mark.parametrize(
    "notices", [[], [notice(0)], [notice(1), notice(0)], [notice(1, "rebalance")], [notice(1, action="end")]]
)
def test_a_notice_is_to_be_seen_once_by_its_node_and_to_lead_to_its_action(notices: list[Event]) -> None:
    assert notice_problems(trial(notice(1)), 1, "spot", "save_and_end") == []
    assert len(notice_problems(trial(*notices), 1, "spot", "save_and_end")) == 1


@pytest.mark.parametrize("events", [[], [formed(1, 0), step(1, 1)]])
def test_without_an_injection_every_check_still_reports(events: Sequence[Event]) -> None:
    uninjected = trial(*events, injected=())
    for lines in (
        late_stop_problems(uninjected, {0}),
        notice_problems(uninjected, 1, "spot", "save"),
        late_save_problems(uninjected, at_end=True),
        next_tier_save_problems(uninjected, "/next", math.inf),
        stall_problems(uninjected, 4.0),
    ):
        assert len(lines) == 1


@pytest.mark.parametrize(
    ("generation_of_save", "lines"), [(1, []), (7, ["5 bytes of a save of step 20 stay, which has no commit"])]
)
def test_only_files_of_a_generation_that_was_never_formed_stay(
    generation_of_save: int, lines: list[str], tmp_path: Path
) -> None:
    store = open_store(str(tmp_path))
    for made in (generation(1, None), generation(2, None)):
        store.create(made.name, made.model_dump_json().encode())
    store.write(shards_prefix(generation_of_save, 20, "attempt") + "00001.000.bin", b"bytes")
    assert prune_and_find_orphans(store) == lines
    assert bool(store.sizes("shards/")) == bool(lines)


def test_a_process_that_goes_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "GRACE_SECONDS", 0.3)
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        assert leftover_process_problems(lambda: {sleeper.pid}) == [f"process {sleeper.pid} is left: sleep 600"]
    finally:
        sleeper.kill()
        sleeper.wait()


def test_processes_that_are_just_ending_get_a_moment() -> None:
    until = time.monotonic() + 0.3
    assert leftover_process_problems(lambda: {1} if time.monotonic() < until else set()) == []


def test_only_the_gang_s_own_shared_memory_counts(tmp_path: Path) -> None:
    for name in ("convoy-17-99-abc", "convoy-18-99-abc", "another-17-99-abc"):
        (tmp_path / name).mkdir()
    assert leftover_memory_problems({17, 19}, tmp_path) == [f"{tmp_path}/convoy-17-99-abc is left"]


def test_temporary_files_are_named(tmp_path: Path) -> None:
    assert leftover_file_problems(tmp_path) == []
    assert leftover_file_problems(tmp_path / "nowhere") == []
    (tmp_path / "convoy-x").mkdir()
    assert leftover_file_problems(tmp_path) == ["temporary file convoy-x is left"]
