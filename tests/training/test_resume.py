"""A job that is interrupted, moved or rewound goes on as if nothing had been."""

from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.commits import read_commit
from convoy.checkpoint.format import Commit
from convoy.job.events.registry import Evaluated, Restored, StepDone, WorkerReady
from convoy.job.generations import rewind
from convoy.job.lineage import CommitRef
from tests.ranks import KILLED
from tests.training.faults import die_at, note_samples, noted_samples
from tests.training.job import GPT, PEER_LOST, Job, differing, tiny

STEPS = 9


def a_job(root: Path, dropout: float = 0.2, param_dtype: str = "bf16") -> Job:
    """9 steps, saved after 3, 6 and 9; the batch is no multiple of any number of ranks."""
    return Job(
        str(root),
        tiny(
            model=GPT | {"dropout": dropout},
            train={"steps": STEPS, "param_dtype": param_dtype, "global_batch": 7, "micro_batch": 2},
            schedule={"warmup_steps": 3, "decay_steps": STEPS},
            checkpoint={"every_steps": 3},
        ),
    )


def fp32_job(root: Path) -> Job:
    """Two runs of it on different ranks agree to rounding: no dropout."""
    return a_job(root, dropout=0.0, param_dtype="fp32")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Job]:
    """The same job on 1, 2 and 3 ranks, without any interruption."""
    jobs = {world: a_job(tmp_path_factory.mktemp("undisturbed")) for world in (1, 2, 3)}
    for world, job in jobs.items():
        job.run(world)
    assert differing(jobs[1].state(), jobs[2].state()) != [], "dropout and rounding make comparisons sharp"
    return jobs


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_interrupted_job_ends_with_the_same_bits(world: int, undisturbed: dict[int, Job], tmp_path: Path) -> None:
    job, reference = a_job(tmp_path), undisturbed[world]

    first = job.run(world, die_at(4, ranks=[world - 1]), may_die=True)
    job.run(world)

    assert first == [PEER_LOST] * (world - 1) + [KILLED]
    assert [e.step for e in job.events(Restored)] == [3]
    assert [e.step for e in job.events(StepDone, generation=2)] == list(range(4, STEPS + 1))
    assert job.losses(generation=2) == reference.losses()[3:]
    assert differing(job.state(), reference.state()) == []
    assert _counters(job.commit()) == _counters(reference.commit())


def test_interrupted_before_the_first_commit_it_starts_from_the_beginning(
    undisturbed: dict[int, Job], tmp_path: Path
) -> None:
    job = a_job(tmp_path)

    job.run(2, die_at(2, ranks=[0, 1]), may_die=True)
    job.run(2)

    assert job.events(Restored) == []
    assert [e.step for e in job.events(Evaluated, generation=2)] == [0, STEPS]
    assert differing(job.state(), undisturbed[2].state()) == []


def test_interrupted_again_and_again_it_goes_on_from_each_commit(undisturbed: dict[int, Job], tmp_path: Path) -> None:
    job = a_job(tmp_path)

    for step in (4, 7, 8):
        job.run(2, die_at(step, ranks=[0, 1]), may_die=True)
    job.run(2)

    assert [(e.from_generation, e.step) for e in job.events(Restored)] == [(1, 3), (2, 6), (2, 6)]
    assert job.steps_committed() == [3, 6, 9]
    assert differing(job.state(), undisturbed[2].state()) == []


def test_resumed_with_one_step_left_it_starts_up_and_ends_in_that_step(
    undisturbed: dict[int, Job], tmp_path: Path
) -> None:
    job = a_job(tmp_path)
    job.run(2, die_at(8, ranks=[0]), may_die=True, checkpoint={"every_steps": 1})

    job.run(2, checkpoint={"every_steps": 1})

    assert [e.step for e in job.events(StepDone, generation=2)] == [9]
    assert sum(e.phase == "first_step" for e in job.events(WorkerReady, generation=2)) == 2
    assert differing(job.state(), undisturbed[2].state()) == []


def test_a_finished_job_does_nothing_until_steps_are_added(undisturbed: dict[int, Job], tmp_path: Path) -> None:
    job = a_job(tmp_path)
    job.run(2, train={"steps": 6})

    assert job.run(2, train={"steps": 6}) == [False, False]
    assert job.events(StepDone, generation=2) == []
    assert job.newest() == CommitRef(generation=1, step=6)
    job.run(2)

    assert job.newest() == CommitRef(generation=3, step=STEPS)
    assert differing(job.state(), undisturbed[2].state()) == []


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The fp32 job on one rank; in `samples` below its root, what each step took."""
    job = fp32_job(tmp_path_factory.mktemp("still"))
    job.run(1, note_samples(Path(job.root) / "samples"))
    return job


def test_on_other_numbers_of_ranks_the_samples_of_each_step_are_the_same(still: Job, tmp_path: Path) -> None:
    moved = fp32_job(tmp_path / "moved")
    for world, until in ((3, 3), (2, 6), (4, 9)):
        moved.run(world, note_samples(tmp_path / "moved-samples"), train={"steps": until})

    assert noted_samples(tmp_path / "moved-samples") == noted_samples(Path(still.root) / "samples")
    assert sorted(noted_samples(tmp_path / "moved-samples")) == list(range(STEPS))
    assert moved.losses() == pytest.approx(still.losses(), abs=1e-5)
    assert _counters(moved.commit()) == _counters(still.commit())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("world", "changed"),
    [
        (4, {"parallel": {"strategy": "hsdp", "shard_size": 2}}),
        (2, {"parallel": {"strategy": "ddp"}}),
        (3, {"parallel": {"wrap": "linear", "reshard_after_forward": False}}),
        (2, {"train": {"activation_checkpointing": "full"}}),
    ],
    ids=["hsdp", "ddp", "by linear", "recomputed"],
)
def test_it_may_go_on_with_another_way_of_sharding(
    world: int, changed: dict[str, Any], still: Job, tmp_path: Path
) -> None:
    moved = still.copied(tmp_path / "moved")
    assert rewind(moved.store, 3) == CommitRef(generation=1, step=3)

    moved.run(world, **{**changed, "train": {"steps": 6} | changed.get("train", {})})
    moved.run(1)

    assert [e.step for e in moved.events(Restored)] == [3, 6]
    losses = [loss for generation in (3, 4) for loss in moved.losses(generation)]
    assert losses == pytest.approx(still.losses()[3:], abs=1e-5)


def test_a_rewound_job_never_reads_the_branch_it_left(undisturbed: dict[int, Job], tmp_path: Path) -> None:
    job = undisturbed[2].copied(tmp_path / "job")
    assert rewind(job.store, 4) == CommitRef(generation=1, step=3)
    _poison(job, CommitRef(generation=1, step=6), delete=False)
    _poison(job, CommitRef(generation=1, step=9), delete=True)

    job.run(2)

    assert [(e.from_generation, e.step) for e in job.events(Restored)] == [(1, 3)]
    assert job.newest() == CommitRef(generation=3, step=9)
    assert differing(job.state(), undisturbed[2].state()) == []


def _counters(commit: Commit) -> tuple[Any, ...]:
    return commit.step, commit.progress.tokens, commit.progress.skipped, commit.sampler, commit.fingerprint


def _poison(job: Job, ref: CommitRef, *, delete: bool) -> None:
    """Make a commit's shards useless."""
    for name in job.store.sizes(read_commit(job.store, ref).prefix):
        path = Path(job.store.uri) / name
        path.unlink() if delete else path.write_bytes(b"\xff" * path.stat().st_size)
