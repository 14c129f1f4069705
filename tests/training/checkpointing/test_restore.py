"""Where a generation starts when a commit is damaged, or when a host reads it wrongly."""

import re
from pathlib import Path

import pytest

from convoy.checkpoint.verify.marks import damaged_in, read_damage, verified_in
from convoy.job.events.registry import CheckpointDamaged, CheckpointMisread, CheckpointVerified, Restored, StepDone
from convoy.job.generations import CommitsLostError
from convoy.job.lineage import CommitRef, counted_commits, read_history
from convoy.storage import Store, open_store
from tests.ranks import RankFailedError
from tests.training.faults import host, spoil_state
from tests.training.job import Job, differing, tiny


def a_job(root: Path, *tiers: str) -> Job:
    return Job(str(root), tiny(train={"steps": 6}, checkpoint={"every_steps": 2, "tiers": list(tiers)}))


def flip(store: Store, step: int, generation: int = 1) -> None:
    """One bit in the middle of the first file of a commit."""
    folder = f"shards/{generation:06d}-{step:09d}/"
    path = Path(store.uri) / next(name for name in store.sizes(folder) if name.endswith(".bin"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def test_a_damaged_commit_is_marked_and_told_and_the_one_before_it_leads_to_the_same_bits(tmp_path: Path) -> None:
    job, still = a_job(tmp_path / "job"), a_job(tmp_path / "still")
    still.run(2, train={"steps": 8})
    job.run(2)
    flip(job.store, 6)

    job.run(2, train={"steps": 8})

    (damaged,) = job.events(CheckpointDamaged)
    assert (damaged.from_generation, damaged.step, damaged.tier) == (1, 6, job.store.uri)
    assert ".bin" in damaged.error
    evidence = read_damage(job.store, CommitRef(generation=1, step=6))
    assert evidence is not None
    assert evidence.error == damaged.error
    assert [(e.from_generation, e.step) for e in job.events(Restored)] == [(1, 4)]
    assert [e.step for e in job.events(StepDone, generation=2)] == [5, 6, 7, 8]
    assert [(ref.generation, ref.step) for ref in counted_commits(read_history(job.store))] == [
        (1, 2),
        (1, 4),
        (2, 6),
        (2, 8),
    ]
    assert job.commit().parent == CommitRef(generation=1, step=4)
    assert differing(job.state(), still.state()) == []


def test_a_copy_on_another_tier_stands_in_for_a_damaged_one(tmp_path: Path) -> None:
    second = str(tmp_path / "second")
    job = a_job(tmp_path / "root", second)
    job.run(1)
    flip(job.store, 6)

    job.run(2, train={"steps": 8})

    assert [e.tier for e in job.events(CheckpointDamaged)] == [job.store.uri]
    assert [(e.step, e.tier) for e in job.events(Restored)] == [(6, f"{second}/job")]
    assert [e.step for e in job.events(StepDone, generation=2)] == [7, 8]
    assert read_damage(open_store(f"{second}/job"), CommitRef(generation=1, step=6)) is None


def test_where_no_commit_is_whole_nothing_starts_from_the_beginning(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    job.run(1)
    for step in (2, 4, 6):
        flip(job.store, step)

    with pytest.raises(RankFailedError, match="CheckpointError: none of 3 commits can be read"):
        job.run(2, train={"steps": 8})

    assert [e.step for e in job.events(CheckpointDamaged)] == [6, 4, 2]
    assert job.events(StepDone, generation=2) == []
    with pytest.raises(CommitsLostError):
        job.run(1, train={"steps": 8})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", ["weights", "optimizer"])
def test_a_commit_of_a_state_that_is_not_finite_is_passed_over_and_not_marked(tmp_path: Path, where: str) -> None:
    job, still = a_job(tmp_path / "job"), a_job(tmp_path / "still")
    still.run(2, train={"steps": 8})

    outcomes = job.run(2, spoil_state(where, step=4, rank=1), train={"steps": 8, "max_nonfinite_steps": 2})
    failed_at = {"weights": 6, "optimizer": 7}[where]  # a step later the optimizer has spoiled the weights
    assert [str(outcome)[:7] for outcome in outcomes] == [f"step {failed_at}:"] * 2
    assert job.steps_committed() == [2, 4]

    job.run(2, train={"steps": 8})

    (damaged,) = job.events(CheckpointDamaged)
    assert (damaged.from_generation, damaged.step, damaged.tier) == (1, 4, job.store.uri)
    assert re.fullmatch(r"commits/000001-000000004\.json: .* of .* hold values that are not finite", damaged.error)
    assert [(e.from_generation, e.step) for e in job.events(Restored)] == [(1, 2)]
    assert [(ref.generation, ref.step) for ref in counted_commits(read_history(job.store))] == [
        (1, 2),
        (2, 4),
        (2, 6),
        (2, 8),
    ]
    assert read_damage(job.store, CommitRef(generation=1, step=4)) is None
    assert differing(job.state(), still.state()) == []


def test_where_no_commit_is_finite_the_job_says_so(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    job.run(1, spoil_state("weights", step=2, rank=0), train={"max_nonfinite_steps": 2})

    with pytest.raises(RankFailedError, match="hold values that are not finite"):
        job.run(1, train={"steps": 8})

    assert job.steps_committed() == [2]


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
    assert (damaged_in(job.store), job.events(CheckpointDamaged)) == (frozenset(), [])
    settled = {e.step for e in told}
    assert settled <= {ref.step for ref in verified_in(job.store)}
    assert job.steps_committed() == [2, 4, 6, 8]


def test_a_restore_fails_naming_the_host_and_another_host_goes_on_from_the_newest_commit(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 4}, checkpoint={"every_steps": 2}))
    job.run(2, good)

    with pytest.raises(
        RankFailedError, match=r"host1 reads part [01] of commits/.*-000000004\.json otherwise than host0"
    ):
        job.run(2, second_is_bad, train={"steps": 6})
    assert damaged_in(job.store) == frozenset()

    job.run(2, good, train={"steps": 6})

    assert [(e.step, e.from_generation) for e in job.events(Restored)] == [(4, 1)]
    assert job.steps_committed()[-1] == 6
