"""Saves next to training: what they hold, what is skipped, what fails, and what is done between them."""

import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from convoy.checkpoint.verify.marks import verified_in
from convoy.gang.workers.board import Board
from convoy.job.events.registry import (
    CheckpointAlert,
    CheckpointCopied,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    CheckpointsPruned,
    CheckpointVerified,
    Restored,
    StepDone,
)
from convoy.job.lineage import CommitRef, counted_commits, intact_tiers, parse_commits, read_history
from convoy.report.analysis.checkpoints import current_save_alert
from convoy.storage import open_store
from tests.training.faults import (
    NO_MEMORY,
    before_step,
    copies_fail,
    copies_hang,
    copy_late,
    know_nothing_of_saves,
    settle_before_each_save,
    slow_post_commit_work,
)
from tests.training.job import GPT, Job, differing, tiny

pytestmark = pytest.mark.slow

WIDE = GPT | {"d_model": 192, "dropout": 0.1}
"""Shards of two ranks large enough to be copied beside training."""


def block_saves(job: Job, steps: Iterable[int]) -> None:
    """In the first generation, files stand where the shards' folders of these steps should be."""
    for step in steps:
        job.store.write(f"shards/000001-{step:09d}", b"in the way")


def test_a_commit_holds_the_state_of_its_step_though_training_continues_meanwhile(tmp_path: Path) -> None:
    config = tiny(model=WIDE, train={"steps": 12}, checkpoint={"every_steps": 1})
    late, free, waited = (Job(str(tmp_path / name), config) for name in ("late", "free", "waited"))
    waited.run(2)

    late.run(2, lambda rank: copy_late(), prompt=False, checkpoint={"every_steps": 2})
    assert free.run(2, prompt=False) == [False, False]

    assert late.steps_committed() == list(range(2, 13, 2))
    assert all(e.staged_seconds <= e.committed_seconds for e in late.events(CheckpointSaved))
    assert free.steps_committed()[-1] == 12
    taken = [*free.steps_committed(), *(e.step for e in free.events(CheckpointSkipped))]
    assert sorted(taken) == list(range(1, 13))
    for job in (late, free):
        for step in job.steps_committed():
            assert differing(job.state(job.commit_of(step)), waited.state(waited.commit_of(step))) == []


def test_a_save_that_another_waits_behind_is_not_held_back(tmp_path: Path) -> None:
    slow = {"every_steps": 1, "write_mb_per_second": 0.001}  # 30 s for each part
    job = Job(str(tmp_path), tiny(model=WIDE, train={"steps": 100}, checkpoint=slow))

    job.run(1, prompt=False)

    taken = [e.step for e in job.events(CheckpointSaved)]
    assert len(taken) > 3, "the first two, and the last one that is waited for"


def test_while_two_saves_are_under_way_later_ones_are_skipped_and_counted(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 10}, checkpoint={"every_steps": 2}))

    job.run(2, lambda rank: know_nothing_of_saves(), prompt=False)

    assert [(e.step, e.under_way) for e in job.events(CheckpointSkipped)] == [(6, [2, 4]), (8, [2, 4])]
    assert [e.step for e in job.events(CheckpointSaved)] == job.steps_committed() == [2, 4, 10]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("error", "reason"), [(NO_MEMORY, "Cannot allocate memory"), (ValueError("a bug of ours"), "a bug of ours")]
)
def test_a_rank_that_cannot_take_part_aborts_the_save_for_all_and_says_why(
    tmp_path: Path, error: Exception, reason: str
) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 6}, checkpoint={"every_steps": 2}))

    def fault(rank: int) -> None:
        settle_before_each_save()
        copies_fail(1 if rank == 1 else 0, error)

    job.run(2, fault, prompt=False)

    (failed,) = job.events(CheckpointFailed)
    assert failed.step == 2
    assert "rank 1: " in failed.error
    assert reason in failed.error
    assert job.steps_committed() == [3, 4, 6]
    assert len(job.events(StepDone)) == 6


def test_after_a_failed_save_training_continues_to_the_next_try_and_only_the_last_one_may_not_fail(
    tmp_path: Path,
) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 50}, checkpoint={"every_steps": 20}))
    block_saves(job, [40, 41, 42, 43, 50])

    outcomes = job.run(2)

    assert len(set(outcomes)) == 1
    # Both ranks fail to write; the coordinator names the one that it hears of first.
    assert re.match(r"the last checkpoint, of step 50, was not saved: rank [01]: ", str(outcomes[0]))
    *failed, last = job.events(CheckpointFailed)
    assert [e.step for e in failed] == [40, 42]
    assert all(e.error.startswith("rank 0: ") and "File exists" in e.error for e in failed)
    assert {(e.tier, e.retried_on) for e in (*failed, last)} == {(job.store.uri, None)}
    assert job.steps_committed() == [20, 44]


def test_while_the_root_takes_nothing_few_saves_are_tried_there_at_all(tmp_path: Path) -> None:
    second = tmp_path / "second"
    job = Job(str(tmp_path / "root"), tiny(train={"steps": 8}, checkpoint={"every_steps": 1, "tiers": [str(second)]}))
    block_saves(job, range(1, 8))

    job.run(2, lambda rank: settle_before_each_save(), prompt=False)

    root, tier = job.store.uri, f"{second}/job"
    assert [(e.step, e.tier, e.retried_on) for e in job.events(CheckpointFailed)] == [(1, root, tier), (6, root, tier)]
    assert [(e.step, e.tier) for e in job.events(CheckpointSaved)] == [(step, tier) for step in range(1, 9)]


def test_saves_pass_over_a_tier_that_an_agent_finds_away(tmp_path: Path) -> None:
    second = tmp_path / "second"
    job = Job(str(tmp_path / "root"), tiny(train={"steps": 8}, checkpoint={"every_steps": 2, "tiers": [str(second)]}))

    with contextlib.closing(Board.create(1)) as well, contextlib.closing(Board.create(2)) as board:
        board.set_unusable_tiers({0})
        job.run(2, boards=[well, board])

    assert job.events(CheckpointFailed) == []
    assert {(e.step, e.tier) for e in job.events(CheckpointSaved)} == {(step, f"{second}/job") for step in (2, 4, 6, 8)}


def test_a_save_that_the_root_does_not_take_goes_to_the_next_tier_and_the_job_goes_on_from_there(
    tmp_path: Path,
) -> None:
    second = tmp_path / "second"
    config = tiny(train={"steps": 4}, checkpoint={"every_steps": 2, "tiers": [str(second)]})
    job, still = Job(str(tmp_path / "root"), config), Job(str(tmp_path / "still"), tiny(train={"steps": 6}))
    still.run(2, checkpoint={"every_steps": 2})
    block_saves(job, [4])

    job.run(2)

    root, tier = job.store.uri, f"{second}/job"
    assert [(e.step, e.tier, e.retried_on) for e in job.events(CheckpointFailed)] == [(4, root, tier)]
    assert [(e.step, e.tier) for e in job.events(CheckpointSaved)] == [(2, root), (4, tier)]
    history = read_history(job.store, [open_store(tier)])
    assert [(ref.step, intact_tiers(history, ref)) for ref in counted_commits(history)] == [
        (2, [0, 1]),
        (4, [1]),
    ]
    copied = job.events(CheckpointCopied)
    assert {(e.step, e.tier): e.error is None for e in copied} == {(2, tier): True, (4, root): False}

    job.run(2, train={"steps": 6})

    assert [(e.step, e.tier) for e in job.events(Restored)] == [(4, tier)]
    assert differing(job.state(), still.state()) == []


def test_saves_that_fail_one_after_the_other_are_an_alert_until_one_is_committed(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 7}, checkpoint={"every_steps": 2, "alert_after_failures": 2}))
    block_saves(job, [2, 3, 4, 5, 6])

    job.run(2)

    assert [e.step for e in job.events(CheckpointFailed)] == [2, 3, 4, 5, 6]
    alerts = job.events(CheckpointAlert)
    assert [(e.failures, e.newest) for e in alerts] == [(2, None), (4, None)]
    assert all("File exists" in e.error for e in alerts)
    assert current_save_alert([*alerts]) is not None
    assert current_save_alert([*alerts, *job.events(CheckpointSaved)]) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", [1, 2])
def test_every_commit_is_read_back_by_another_rank_where_there_is_one(world: int, tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 4}, checkpoint={"every_steps": 4}))

    job.run(world)

    told = job.events(CheckpointVerified)
    assert sorted(e.part for e in told) == list(range(world))
    assert all((e.rank != e.part or world == 1) and e.parts == world and e.error is None for e in told)
    assert verified_in(job.store) == {CommitRef(generation=1, step=4)}


STEPS = 32


def unequal(rank: int) -> None:
    slow_post_commit_work((0.06, 0.1)[rank])


def unequal_until(done: Callable[[], bool]) -> Callable[[int], None]:
    """Ranks of unequal speed that train the second half slowly until so much of the work after commits is done."""

    def wait(_: object, step: int, __: object) -> None:
        if STEPS / 2 <= step < STEPS - 1 and not done():
            time.sleep(0.1)

    def fault(rank: int) -> None:
        unequal(rank)
        before_step(wait)

    return fault


def parts_read(job: Job, tier: str) -> dict[int, list[int]]:
    """By step."""
    found: dict[int, list[int]] = defaultdict(list)
    for event in job.events(CheckpointVerified):
        assert event.error is None
        if event.tier == tier:
            found[event.step].append(event.part)
    return {step: sorted(parts) for step, parts in found.items()}


def copies(job: Job, tier: str) -> list[int]:
    """Steps of the commits that are on a further tier; each was told once, and no failure."""
    told = [event for event in job.events(CheckpointCopied) if event.tier == tier]
    assert [event.error for event in told] == [None] * len(told)
    assert sorted(event.step for event in told) == steps_at(tier)
    return steps_at(tier)


def steps_at(tier: str) -> list[int]:
    return sorted(ref.step for ref in parse_commits(open_store(tier).sizes("commits/")))


def test_ranks_of_unequal_speed_read_back_and_copy_the_same_commits_and_the_last_one(tmp_path: Path) -> None:
    second = f"{tmp_path}/second"
    job = Job(str(tmp_path / "root"), tiny(train={"steps": STEPS}, checkpoint={"every_steps": 1, "tiers": [second]}))
    root, tier = job.store.uri, f"{second}/job"

    job.run(2, unequal_until(lambda: min(len(verified_in(job.store)), len(steps_at(tier))) >= 2))

    read, there = parts_read(job, root), copies(job, tier)
    assert read == {step: [0, 1] for step in read}
    assert parts_read(job, tier) == {step: [0, 1] for step in there}
    for steps in (sorted(read), there):
        assert 2 < len(steps) < len(job.events(CheckpointSaved))
        assert steps[-1] == STEPS
    assert STEPS in {ref.step for ref in verified_in(job.store)}


def test_old_checkpoints_go_from_every_tier_once_newer_ones_were_read_back(tmp_path: Path) -> None:
    second = f"{tmp_path}/second"
    kept = {"every_steps": 1, "tiers": [second], "retention": {"keep_last": 1}}
    job = Job(str(tmp_path / "root"), tiny(train={"steps": STEPS}, checkpoint=kept))
    root, tier = job.store.uri, f"{second}/job"

    def removed_from(where: str) -> set[int]:
        return {step for e in job.events(CheckpointsPruned) if e.tier == where for _, step in e.commits}

    job.run(2, unequal_until(lambda: removed_from(tier) != set()))

    here, there, copied = steps_at(root), steps_at(tier), {e.step for e in job.events(CheckpointCopied)}
    assert here[-1] == there[-1] == STEPS
    assert removed_from(root) == set(range(1, STEPS + 1)) - set(here) != set()
    assert removed_from(tier) == copied - set(there) != set()
    assert {int(name.split("/")[1].split("-")[1]) for name in job.store.sizes("shards/")} == set(here)
    assert {e.step for e in job.events(CheckpointVerified) if e.tier == tier} <= copied


def test_a_further_tier_that_hangs_holds_up_only_the_copies_to_itself(tmp_path: Path) -> None:
    hangs, good, over = (tmp_path / name for name in ("hangs", "good", "over"))
    kept = {"every_steps": 1, "tiers": [str(hangs), str(good)]}
    job = Job(str(tmp_path / "root"), tiny(train={"steps": STEPS}, checkpoint=kept))

    def fault(rank: int) -> None:
        if rank == 1:
            copies_hang(f"{hangs}/job", over)
            before_step(lambda stepper, step, batches: over.touch() if step == STEPS - 1 else None)

    job.run(2, fault)

    there = {tier: copies(job, f"{tier}/job") for tier in (hangs, good)}
    assert len(there[hangs]) <= 3 < len(there[good])  # the first, the last, and perhaps one while the training ends
    assert (there[hangs][0], there[hangs][-1], there[good][-1]) == (1, STEPS, STEPS)
    assert parts_read(job, f"{good}/job") == {step: [0, 1] for step in there[good]}


def test_what_was_left_out_for_the_newest_commit_is_made_up_for_as_soon_as_the_gang_has_time(tmp_path: Path) -> None:
    second, over, early = (tmp_path / name for name in ("second", "over", "early"))
    kept = {"every_steps": 20, "tiers": [str(second)]}
    job = Job(str(tmp_path / "root"), tiny(train={"steps": 60}, checkpoint=kept))

    def fault(rank: int) -> None:
        if rank == 1:
            copies_hang(f"{second}/job", over)
            before_step(act)

    def act(_: object, step: int, __: object) -> None:
        if step == 43:
            over.touch()
        if 43 <= step < 59 and 40 not in steps_at(f"{second}/job"):
            time.sleep(0.4)
        if step == 59 and 40 in steps_at(f"{second}/job"):
            early.touch()

    job.run(2, fault)

    assert job.steps_committed() == [20, 40, 60]
    assert early.exists()
    assert copies(job, f"{second}/job") == [20, 40, 60]
    assert parts_read(job, f"{second}/job") == {step: [0, 1] for step in (20, 40, 60)}


@pytest.mark.parametrize("verify", [True, False])
def test_one_rank_reads_back_and_copies_its_last_commit_whatever_was_under_way(tmp_path: Path, verify: bool) -> None:
    second = tmp_path / "second"
    kept = {"every_steps": 1, "tiers": [str(second)], "verify": verify}
    job = Job(str(tmp_path / "root"), tiny(train={"steps": 5}, checkpoint=kept))

    job.run(1, unequal)

    tier = open_store(f"{second}/job")
    assert 5 in {ref.step for ref in parse_commits(tier.sizes("commits/"))}
    for uri in (job.store.uri, tier.uri):
        assert parts_read(job, uri).get(5) == ([0] if verify else None)
