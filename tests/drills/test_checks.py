"""What some drills must show beyond what all must: each check tells what is wrong, and of a right trial nothing."""

import math
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from convoy.checkpoint.format import shards_prefix
from convoy.config.run import RunConfig
from convoy.drills import checks
from convoy.drills.checks import (
    all_logged,
    files_left,
    left_behind,
    lost_steps,
    memory_left,
    notice_problems,
    processes_left,
    read_otherwise,
    saved_elsewhere,
    saved_late,
    stood_still,
    stopped_late,
)
from convoy.drills.fault import GangSize
from convoy.drills.faults.node import NodeKill
from convoy.drills.observe import Observation
from convoy.job.events.types import (
    CheckpointAlert,
    CheckpointSaved,
    Event,
    EventsDropped,
    FailureDetected,
    GangStopped,
    GenerationStarted,
    NoticeReceived,
    Restored,
    StepDone,
    Stopping,
)
from convoy.job.lineage import CommitRef, Generation, History
from convoy.storage import open_store

BEGAN = 1000.0
STEPS = 8


def a_trial(
    events: Sequence[Event], injected: Sequence[float] = (BEGAN,), history: History | None = None
) -> Observation:
    fault = NodeKill(GangSize(3, 1), Random(0), Path("/nowhere"))
    config = RunConfig()
    config = config.model_copy(update={"train": config.train.model_copy(update={"steps": STEPS})})
    return Observation(
        fault=fault,
        config=config,
        injected=injected,
        events=sorted(events, key=lambda e: e.t),
        history=history or History({}, frozenset()),
        results=(),
    )


def a_step(step: int, t: float, generation: int = 1) -> StepDone:
    return StepDone(
        step=step, t=t, generation=generation, rank=0, loss=1.0, grad_norm=1.0, lr=1.0, tokens=8, seconds=1.0
    )


def started(generation: int, t: float, parent: tuple[int, int] | None = None) -> GenerationStarted:
    number, step = parent or (None, None)
    return GenerationStarted(generation=generation, t=t, parent_generation=number, parent_step=step)


def stopped(node: int, t: float, generation: int = 1) -> GangStopped:
    return GangStopped(node=node, t=t, generation=generation, seconds=0.1)


def saved(step: int, t: float, tier: str = "/root/job") -> CheckpointSaved:
    return CheckpointSaved(step=step, t=t, generation=1, attempt="a", bytes=1, tier=tier, seconds=0.1)


def a_notice(node: int, source: str = "spot", action: str = "save_and_end", t: float = BEGAN + 1) -> NoticeReceived:
    told: Any = {"node": node, "t": t, "generation": 1, "source": source, "notice": "end", "action": action}
    return NoticeReceived.model_validate(told)


def agreed(step: int, t: float = BEGAN + 2, reason: str = "preempted") -> Stopping:
    return Stopping.model_validate({"step": step, "t": t, "generation": 1, "reason": reason})


# Workers that are stopped in time.


def test_nodes_that_tell_in_time_are_fine() -> None:
    trial = a_trial([started(1, BEGAN - 9), stopped(0, BEGAN + 1), stopped(2, BEGAN + 2)])
    assert stopped_late(trial, {0, 2}) == []


def test_a_node_that_never_tells_is_named() -> None:
    trial = a_trial([started(1, BEGAN - 9), stopped(0, BEGAN + 1)])
    assert stopped_late(trial, {0, 2}) == ["node 2 never reported that its workers had stopped"]


def test_a_node_that_is_late_is_named() -> None:
    trial = a_trial([started(1, BEGAN - 9), stopped(0, BEGAN + 9.5)])
    assert stopped_late(trial, {0}) == ["the workers of node 0 were stopped after 9.50 s, more than 3 times 3 s"]


def test_what_the_next_attempt_tells_does_not_count() -> None:
    trial = a_trial([started(1, BEGAN - 9), started(2, BEGAN + 1), stopped(0, BEGAN + 2, generation=2)])
    assert stopped_late(trial, {0}) != []


# What is read.


def a_history(parent: CommitRef | None, commits: set[CommitRef]) -> History:
    def formed(number: int, parent: CommitRef | None) -> Generation:
        return Generation(
            generation=number, parent=parent, formation="f", nodes=3, world_size=3, config_hash="", created=0.0
        )

    return History({1: formed(1, None), 2: formed(2, parent)}, frozenset(commits))


def restored(step: int, maker: int, generation: int = 2) -> Restored:
    return Restored(from_generation=maker, step=step, seconds=0.1, generation=generation, t=BEGAN + 3)


def test_a_generation_that_goes_on_from_its_parent_is_fine() -> None:
    ref = CommitRef(generation=1, step=4)
    assert read_otherwise(a_trial([restored(4, 1)], history=a_history(ref, {ref}))) == []


def test_a_generation_that_reads_another_commit_is_told() -> None:
    ref = CommitRef(generation=1, step=4)
    (line,) = read_otherwise(a_trial([restored(6, 1)], history=a_history(ref, {ref})))
    assert line.startswith("generation 2 read step 6 of 1, not ")


def test_two_commits_of_one_step_that_are_both_read_are_told() -> None:
    ref = CommitRef(generation=1, step=4)
    trial = a_trial([restored(4, 1), restored(4, 2)], history=a_history(ref, {ref}))
    assert "two commits of step 4 were read" in read_otherwise(trial)


# Notices.


def test_a_notice_that_one_node_sees_is_fine() -> None:
    assert notice_problems(a_trial([a_notice(1)]), 1, "spot", "save_and_end") == []


@pytest.mark.parametrize(
    "notices",
    [[], [a_notice(0)], [a_notice(1), a_notice(0)], [a_notice(1, source="rebalance")], [a_notice(1, action="end")]],
)
def test_a_notice_that_is_not_seen_as_it_should_be_is_told(notices: list[NoticeReceived]) -> None:
    assert len(notice_problems(a_trial(notices), 1, "spot", "save_and_end")) == 1


def test_where_all_nodes_have_the_notice_any_may_see_it() -> None:
    assert notice_problems(a_trial([a_notice(0), a_notice(2)]), None, "spot", "save_and_end") == []
    assert notice_problems(a_trial([]), None, "spot", "save_and_end") == ["no notice was received"]


def test_a_save_that_is_committed_in_time_is_fine() -> None:
    assert saved_late(a_trial([agreed(6), saved(6, BEGAN + 3)]), ends=True) == []


def test_a_save_of_another_step_is_not_the_one_that_was_agreed() -> None:
    trial = a_trial([agreed(6), saved(4, BEGAN + 1)])
    assert saved_late(trial, ends=True) == ["nothing was saved after the notice"]


def test_a_late_save_is_told() -> None:
    (line,) = saved_late(a_trial([agreed(6), saved(6, BEGAN + 31)]), ends=True)
    assert line == "the save was committed 31.00 s after the notice, more than 3 times 10 s"


def test_a_gang_that_ends_without_the_save_is_told() -> None:
    trial = a_trial([agreed(6, reason="preempted_unsaved"), saved(6, BEGAN + 3)])
    assert saved_late(trial, ends=True) == ["the gang did not agree to save and end"]


def test_a_gang_that_ends_though_it_was_to_go_on_is_told() -> None:
    trial = a_trial([agreed(6), saved(6, BEGAN + 3)])
    assert saved_late(trial, ends=False) == ["the gang agreed to end at steps [6]"]
    assert saved_late(a_trial([saved(6, BEGAN + 3)]), ends=False) == []


def test_steps_that_are_done_again_are_told() -> None:
    failed = FailureDetected(t=BEGAN + 1, generation=1, cause="node_gone", failed_node=1, step=6)
    lost = [started(1, BEGAN - 9), *(a_step(step, BEGAN - 7 + step) for step in range(1, 7)), failed]
    on = [started(2, BEGAN + 5, (1, 4)), a_step(5, BEGAN + 6, 2), a_step(6, BEGAN + 7, 2), a_step(7, BEGAN + 8, 2)]
    assert lost_steps(a_trial([*lost, *on])) == ["2 steps were done again"]
    assert lost_steps(a_trial(lost[:5])) == []


# Storage.


def test_a_save_on_the_next_tier_is_fine_and_so_is_one_that_was_under_way() -> None:
    trial = a_trial([saved(2, BEGAN + 1.5), saved(4, BEGAN + 5, tier="/next/job"), saved(6, BEGAN + 9)])
    assert saved_elsewhere(trial, "/next", BEGAN + 1) == []


def test_a_save_on_the_root_that_failed_is_told() -> None:
    assert saved_elsewhere(a_trial([saved(4, BEGAN + 5)]), "/next", BEGAN + 1) == [
        "the next save, of step 4, is on /root/job, not below /next"
    ]


def test_saves_that_were_given_up_are_told() -> None:
    alert = CheckpointAlert(step=4, failures=3, newest=None, error="full", t=BEGAN + 2)
    assert saved_elsewhere(a_trial([alert]), "/next", BEGAN + 1) == [
        "3 saves in a row were abandoned",
        "nothing was saved after the root had failed",
    ]


def test_training_that_goes_on_is_fine() -> None:
    assert stood_still(a_trial([a_step(step, BEGAN - 3 + step) for step in range(1, 9)]), 4.0) == []


def test_training_that_stands_still_is_told() -> None:
    trial = a_trial([a_step(1, BEGAN - 1), a_step(2, BEGAN + 1), a_step(3, BEGAN + 7)])
    assert stood_still(trial, 4.0) == ["training stood still for 6.00 s after step 2"]


def test_what_happens_when_the_fault_is_over_is_not_told_of_it() -> None:
    trial = a_trial([a_step(1, BEGAN - 1), a_step(2, BEGAN + 2), a_step(3, BEGAN + 3), a_step(4, BEGAN + 9)])
    assert stood_still(trial, 2.5) == []


def test_training_that_does_nothing_more_is_told() -> None:
    assert stood_still(a_trial([a_step(1, BEGAN - 1)]), 4.0) == ["no step was done after the injection"]


def test_a_log_with_every_step_is_fine_and_a_gap_is_told() -> None:
    steps = [started(1, BEGAN - 9), *(a_step(step, BEGAN + step) for step in range(1, STEPS + 1))]
    assert all_logged(a_trial(steps)) == []
    assert all_logged(a_trial([*steps[:3], *steps[5:]])) == ["the log lacks steps [3, 4]"]
    assert all_logged(a_trial([*steps, EventsDropped(events=7, t=BEGAN)])) == ["7 events were lost"]


# What stays.


def job_with(root: Path, *names: str) -> Path:
    store = open_store(str(root))
    made = a_history(None, set())
    for generation in made.generations.values():
        store.create(generation.name, generation.model_dump_json().encode())
    for name in names:
        store.write(name, b"bytes")
    return root


def test_what_a_save_that_was_cut_short_has_left_is_removed_and_nothing_stays(tmp_path: Path) -> None:
    cut_short = shards_prefix(1, 20, "attempt") + "00001.000.bin"
    store = open_store(str(job_with(tmp_path, cut_short)))
    assert left_behind(store) == []
    assert store.sizes("shards/") == {}


def test_what_nothing_would_remove_is_told(tmp_path: Path) -> None:
    """Files of a generation that was never formed: not even one that comes later knows them to be over."""
    stray = shards_prefix(7, 20, "attempt") + "00001.000.bin"
    store = open_store(str(job_with(tmp_path, stray)))
    assert left_behind(store) == ["5 bytes of a save of step 20 stay, which has no commit"]


# A trial in which the fault was never put in.


@pytest.mark.parametrize("events", [[], [started(1, BEGAN), a_step(1, BEGAN + 1)]])
def test_without_an_injection_every_check_still_says_something_or_nothing(events: list[Event]) -> None:
    trial = a_trial(events, injected=())
    for lines in (
        stopped_late(trial, {0}),
        notice_problems(trial, 1, "spot", "save"),
        saved_late(trial, ends=True),
        saved_elsewhere(trial, "/next", math.inf),
        stood_still(trial, 4.0),
    ):
        assert len(lines) == 1


def test_a_process_that_goes_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "GRACE_SECONDS", 0.3)
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        assert processes_left(lambda: {sleeper.pid}) == [f"process {sleeper.pid} is left: sleep 600"]
    finally:
        sleeper.kill()
        sleeper.wait()


def test_processes_that_are_just_ending_get_a_moment() -> None:
    until = time.monotonic() + 0.3
    assert processes_left(lambda: {1} if time.monotonic() < until else set()) == []


def test_only_the_gang_s_own_shared_memory_counts(tmp_path: Path) -> None:
    for name in ("convoy-17-99-abc", "convoy-18-99-abc", "another-17-99-abc"):
        (tmp_path / name).mkdir()
    assert memory_left({17, 19}, tmp_path) == [f"{tmp_path}/convoy-17-99-abc is left"]


def test_temporary_files_are_named(tmp_path: Path) -> None:
    assert files_left(tmp_path) == []
    assert files_left(tmp_path / "nowhere") == []
    (tmp_path / "convoy-x").mkdir()
    assert files_left(tmp_path) == ["temporary file convoy-x is left"]
