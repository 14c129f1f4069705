"""What a commit says of the job, and that a job refuses a commit of another."""

from pathlib import Path
from typing import Any

import pytest

from convoy.config.run import config_hash
from convoy.data.local import DataDamaged
from convoy.job.record import RECORD
from tests.ranks import RankFailedError
from tests.training.job import Job, tiny


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Two steps of a job on two ranks."""
    made = Job(str(tmp_path), tiny(train={"steps": 2}))
    made.run(2)
    return made


def test_a_commit_tells_where_the_job_stands_and_with_what(job: Job) -> None:
    commit = job.commit()
    config = job.config
    assert (commit.generation, commit.step, commit.parent, commit.world_size) == (1, 2, None, 2)
    assert (commit.sampler.seed, commit.sampler.next_sample) == (3, 16)
    assert (commit.fingerprint, commit.data_id) == (job.fingerprint, job.data_id)
    assert commit.config_hash == config_hash(config)
    assert commit.mesh == {"shard": 2}
    assert sum(commit.files.values()) > 3 * 4 * 257 * 48  # weights and two moments of the embedding alone


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": {"steps": 4, "seed": 4}}, "train.seed = 4: the job was started with 3"),
        ({"train": {"steps": 4, "global_batch": 9}}, "train.global_batch = 9: the job consumed 16 samples in 2 steps"),
    ],
)
def test_a_commit_of_another_seed_or_batch_is_refused(job: Job, changed: dict[str, Any], message: str) -> None:
    """Though the record, which tells it before, is gone."""
    job.store.delete(RECORD)

    with pytest.raises(RankFailedError, match=message):
        job.run(1, **changed)


def test_data_that_is_gone_is_told(job: Job) -> None:
    job.data_id = "0" * 16

    with pytest.raises(RankFailedError, match=f"{DataDamaged.__name__}.*prepared data 0000000000000000 is gone"):
        job.run(1, train={"steps": 4})


def test_data_that_was_swapped_is_told(job: Job) -> None:
    job.store.delete(RECORD)
    job.fingerprint = "other"

    with pytest.raises(RankFailedError, match=r"has fingerprint .*, not other"):
        job.run(1, train={"steps": 4})
