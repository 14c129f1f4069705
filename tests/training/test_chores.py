"""What is done between saves when it takes longer than the time between them: all ranks do it for the same commits."""

from collections import defaultdict
from pathlib import Path

import pytest

from convoy.checkpoint.marks import verified
from convoy.events.types import (
    CheckpointCopied,
    CheckpointSaved,
    CheckpointsPruned,
    CheckpointVerified,
)
from convoy.job.lineage import parse_commits
from convoy.storage import open_store
from tests.training.faults import slow_chores
from tests.training.job import Job, tiny

STEPS = 60


def unequal(rank: int) -> None:
    slow_chores((0.15, 0.25)[rank])


def parts_read(job: Job, tier: str) -> dict[int, list[int]]:
    """By step."""
    found: dict[int, list[int]] = defaultdict(list)
    for event in job.events(CheckpointVerified):
        assert event.error is None
        if event.tier == tier:
            found[event.step].append(event.part)
    return {step: sorted(parts) for step, parts in found.items()}


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

    tier = open_store(f"{second}/job")
    copied = job.events(CheckpointCopied)
    there = sorted(ref.step for ref in parse_commits(tier.sizes("commits/")))
    assert [e.error for e in copied] == [None] * len(copied)
    assert sorted(e.step for e in copied) == there
    assert 2 < len(there) < len(job.events(CheckpointSaved))
    assert there[-1] == STEPS
    assert parts_read(job, tier.uri) == {step: [0, 1] for step in there}


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
