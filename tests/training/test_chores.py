"""What is done between saves when it takes longer than the time between them: all ranks do it for the same commits."""

import time
from collections import defaultdict
from pathlib import Path

import pytest

from convoy.checkpoint.verify.marks import verified
from convoy.job.events.types import CheckpointCopied, CheckpointSaved, CheckpointsPruned, CheckpointVerified
from convoy.job.lineage import parse_commits
from convoy.storage import open_store
from tests.training.faults import before_step, copies_hang, slow_chores
from tests.training.job import Job, tiny

STEPS = 60


def unequal(rank: int) -> None:
    slow_chores((0.06, 0.1)[rank])


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


def test_ranks_of_unequal_speed_read_back_the_same_commits_and_old_ones_go(tmp_path: Path) -> None:
    kept = {"every_steps": 1, "retention": {"keep_last": 1}}
    job = Job(str(tmp_path), tiny(train={"steps": STEPS}, checkpoint=kept))

    job.run(2, unequal)

    read = parts_read(job, job.store.uri)
    assert read == {step: [0, 1] for step in read}
    assert 2 < len(read) < len(job.events(CheckpointSaved))
    assert STEPS in read
    removed = {step for e in job.events(CheckpointsPruned) for _, step in e.commits}
    assert removed
    assert job.steps_committed()[-1] == STEPS
    assert STEPS in {ref.step for ref in verified(job.store)}


def test_ranks_of_unequal_speed_copy_the_same_commits_and_the_last_one(tmp_path: Path) -> None:
    second = tmp_path / "second"
    job = Job(
        str(tmp_path / "root"), tiny(train={"steps": STEPS}, checkpoint={"every_steps": 1, "tiers": [str(second)]})
    )

    job.run(2, unequal)

    there = copies(job, f"{second}/job")
    assert 2 < len(there) < len(job.events(CheckpointSaved))
    assert there[-1] == STEPS
    assert parts_read(job, f"{second}/job") == {step: [0, 1] for step in there}


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
