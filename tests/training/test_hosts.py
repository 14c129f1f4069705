"""Jobs on two hosts of which one reads checkpoints wrongly: it is named, and takes nobody back."""

from pathlib import Path

import pytest

from convoy.checkpoint.verify.marks import damaged, verified
from convoy.job.events.types import CheckpointDamaged, CheckpointMisread, CheckpointVerified, Restored
from tests.ranks import RankFailedError
from tests.training.faults import host
from tests.training.job import Job, tiny


def good(rank: int) -> None:
    host(f"host{rank}")


def second_is_bad(rank: int) -> None:
    host(f"host{rank}", misreads=rank == 1)


def test_between_saves_a_host_that_misreads_is_named_and_marks_nothing(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 8}, checkpoint={"every_steps": 2}))

    job.run(2, second_is_bad)

    told = job.events(CheckpointMisread)
    assert {(e.host, e.part, e.rank) for e in told} == {("host1", 0, 0)}
    assert "host1 reads part 0 of commits/" in told[0].error
    assert "otherwise than host0, which finds it whole" in told[0].error
    assert any((e.error or "").endswith("only host1 finds it so yet") for e in job.events(CheckpointVerified))
    assert (damaged(job.store), job.events(CheckpointDamaged)) == (frozenset(), [])
    settled = {e.step for e in told}
    assert settled <= {ref.step for ref in verified(job.store)}
    assert job.steps_committed() == [2, 4, 6, 8]


def test_a_restore_fails_naming_the_host_and_another_host_goes_on_from_the_newest_commit(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 4}, checkpoint={"every_steps": 2}))
    job.run(2, good)

    with pytest.raises(
        RankFailedError, match=r"host1 reads part [01] of commits/.*-000000004\.json otherwise than host0"
    ):
        job.run(2, second_is_bad, train={"steps": 6})
    assert damaged(job.store) == frozenset()

    job.run(2, good, train={"steps": 6})

    assert [(e.step, e.from_generation) for e in job.events(Restored)] == [(4, 1)]
    assert job.steps_committed()[-1] == 6
