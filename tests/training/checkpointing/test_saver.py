"""What a commit and the log say of a save, and that a job refuses a commit of another."""

from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.checkpoint.messages import PartVerified
from convoy.config.run import config_hash
from convoy.data.manifest import DataDamaged
from convoy.job.events.registry import CheckpointDamaged, CheckpointMisread, CheckpointVerified, Event
from convoy.job.lineage import CommitRef, parse_commits
from convoy.job.record import RECORD
from convoy.training.checkpointing.save_events import SaveEvents
from tests.ranks import RankFailedError
from tests.training.faults import at_step
from tests.training.job import GPT, Job, tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Job:
    made = Job(str(tmp_path_factory.mktemp("trained")), tiny(train={"steps": 2}))
    made.run(2)
    return made


@pytest.fixture
def job(trained: Job, tmp_path: Path) -> Job:
    """Two steps of a job on two ranks."""
    return trained.copied(tmp_path / "job")


def test_a_commit_tells_where_the_job_stands_and_with_what(job: Job) -> None:
    commit = job.commit()
    config = job.config
    assert (commit.generation, commit.step, commit.parent, commit.world_size) == (1, 2, None, 2)
    assert (commit.sampler.seed, commit.sampler.next_sample) == (3, 16)
    assert (commit.fingerprint, commit.data_id) == (job.fingerprint, job.data_id)
    assert commit.config_hash == config_hash(config)
    assert commit.mesh == {"shard": 2}
    assert commit.bytes > 3 * 4 * 257 * 48  # weights and two moments of the embedding alone


@pytest.mark.parametrize(
    ("train", "data", "message"),
    [
        ({"seed": 4}, {}, "train.seed = 4: the job was started with 3"),
        ({"global_batch": 9}, {}, "train.global_batch = 9: the job consumed 16 samples in 2 steps"),
        ({}, {"data_id": "0" * 16}, f"{DataDamaged.__name__}.*prepared data 0000000000000000 is gone"),
        ({}, {"fingerprint": "other"}, r"has fingerprint .*, not other"),
    ],
)
def test_a_commit_of_another_seed_or_batch_or_data_that_is_gone_or_was_swapped_is_refused(
    job: Job, train: dict[str, int], data: dict[str, str], message: str
) -> None:
    """Though the record, which tells it before, is gone."""
    job.store.delete(RECORD)
    vars(job).update(data)

    with pytest.raises(RankFailedError, match=message):
        job.run(1, train={"steps": 4, **train})


def test_on_resume_the_optimizers_values_are_the_configurations(tmp_path: Path) -> None:
    """At lr 0 only decay could move weights; with what the checkpoint was saved with it would."""
    decaying = tiny(train={"steps": 4}, optimizer={"weight_decay": 0.5})
    job = Job(str(tmp_path), decaying)
    job.run(1)
    kept = dict(job.state())

    job.run(1, train={"steps": 8}, optimizer={"weight_decay": 0.0, "lr": 1e-12, "decay_embeddings": False})

    after = job.state()
    assert job.commit().step == 8
    for name in [n for n in kept if n.startswith("model.")]:
        torch.testing.assert_close(after[name], kept[name], rtol=0, atol=1e-9)


def test_a_checkpoint_of_a_deeper_model_is_refused_and_not_cut_to_fit(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 2}, model={**GPT, "n_layers": 2}))
    job.run(1)

    with pytest.raises(RankFailedError, match=r"model: blocks\.1\..* is absent in this configuration, and \("):
        job.run(1, train={"steps": 4}, model={"n_layers": 1})


def test_a_superseded_gang_stops_at_its_next_save_and_commits_nothing(tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 4}, checkpoint={"every_steps": 2}))
    job.run(1)

    def be_superseded(_: object) -> None:
        """Another run takes the job over."""
        job.form(job.config, 1, 1)

    with pytest.raises(RankFailedError, match="generation 2 is superseded"):
        job.run(1, at_step(4, [0], be_superseded), train={"steps": 8})

    assert [ref.generation for ref in parse_commits(job.store.sizes("commits/"))] == [1, 1]


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({}, CheckpointVerified),
        ({"error": "away"}, CheckpointVerified),
        ({"error": "a flipped bit", "damaged": True}, CheckpointDamaged),
        ({"error": "a reads it wrongly", "misread_by": "a"}, CheckpointMisread),
    ],
)
def test_what_was_read_back_is_one_event(told: dict[str, Any], kind: type[Event]) -> None:
    events = list[Event]()
    observer = SaveEvents(_Events(events), ["/fsx"], parts=2, first=False, alert_after=3)  # type: ignore[arg-type]
    ref = CommitRef(generation=1, step=10)
    observer.report(PartVerified(ref=ref, tier="/fsx", part=1, seconds=0.5, **told))
    (event,) = events
    assert type(event) is kind
    shown = event.model_dump()
    assert (shown["from_generation"], shown["step"], shown["tier"]) == (1, 10, "/fsx")
    assert shown["error"] == told.get("error")
    assert shown.get("host", "a") == "a"


class _Events:
    def __init__(self, kept: list[Event]) -> None:
        self.append = kept.append
