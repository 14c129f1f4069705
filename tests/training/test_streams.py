"""A user's stream: each rank takes its own samples in order, and a restart continues where the checkpoint was."""

from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.job.events.registry import StepDone
from convoy.training.data import DATA_STATE_KEY
from tests.ranks import RankFailedError
from tests.training.faults import die_at
from tests.training.job import Job, differing
from tests.training.test_tasks import OWN, STEPS, a_job, note_indices


def streaming(root: Path, workers: int = 0, size: int = 20, **train: int) -> Job:
    data = {"build": OWN + ":stream", "args": {"size": size}, "workers": workers}
    return a_job(root, data=data, **{"global_batch": 7, "micro_batch": 2, **train})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("killed_before", [3, 5])
def test_a_job_that_is_killed_takes_the_same_samples_and_ends_in_the_same_state(
    tmp_path: Path, workers: int, killed_before: int
) -> None:
    """Within an epoch and after its end: each rank's 10 samples are 3 steps."""
    whole, cut = (streaming(tmp_path / each, workers) for each in ("whole", "cut"))
    noted = {each: note_indices(tmp_path / f"{each} indices") for each in ("whole", "cut")}
    whole.run(2, noted["whole"])
    dying = die_at(killed_before, ranks=[0, 1])
    cut.run(2, lambda rank: (noted["cut"](rank), dying(rank)), may_die=True)
    cut.run(2, noted["cut"])
    assert {f.name: f.read_text() for f in (tmp_path / "cut indices").iterdir()} == {
        f.name: f.read_text() for f in (tmp_path / "whole indices").iterdir()
    }
    # The same position may be written otherwise: as so many samples after the one from which the loader was restored.
    assert set(differing(whole.state(), cut.state())) <= {DATA_STATE_KEY}


def test_a_stream_that_is_its_own_iterator_continues_where_the_checkpoint_was(tmp_path: Path) -> None:
    data = {"build": OWN + ":own_iterator", "workers": 1}
    whole, cut = (a_job(tmp_path / each, data=data, global_batch=6, micro_batch=3) for each in ("whole", "cut"))
    whole.run(2)
    cut.run(2, die_at(5, ranks=[0, 1]), may_die=True)
    cut.run(2)
    assert set(differing(whole.state(), cut.state())) <= {DATA_STATE_KEY}


@pytest.mark.parametrize("workers", [0, 2])
def test_each_rank_takes_the_samples_of_its_own_stream_and_begins_again_at_its_end(
    tmp_path: Path, workers: int
) -> None:
    job = streaming(tmp_path / "job", workers, size=8)
    assert job.run(2, note_indices(tmp_path / "indices")) == [False, False]
    for rank, each in ((0, 4), (1, 3)):  # of a global batch of 7
        taken = [
            int(index)
            for step in range(STEPS)
            for index in (tmp_path / "indices" / f"{step}-{rank}").read_text().split()
        ]
        assert len(taken) == STEPS * each
        own = [range(rank, 8, 2), range(2 * rank, 8, 4)][workers > 0]
        if workers:
            assert set(taken) == {*own, *range(2 * rank + 1, 8, 4)}
        else:
            assert taken == [list(own)[i % 4] for i in range(len(taken))]


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (3, 0), (2, 1)])
def test_a_stream_continues_only_as_it_was_divided(tmp_path: Path, world: int, workers: int) -> None:
    job = streaming(tmp_path)
    job.run(2, train={"steps": 2})
    message = f"position of 2 streams with data.workers = 0, and this run has {world} ranks with {workers}"
    with pytest.raises(RankFailedError, match=f"ConfigError: data.build = .*:stream: .*{message}"):
        job.run(world, data={"workers": workers})
    assert len(job.events(StepDone)) == 2


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        ("stream_without_state", {}, "returned a _Stream for train, without state_dict and load_state_dict"),
        ("stream", {"held_out": True}, "returned a Numbers for validation: must be a Dataset with __getitem__"),
        ("stream", {"size": 0}, "returned a stream without samples on rank 0"),
        ("stream_with_an_object_in_its_state", {}, "the stream's state_dict.*object"),
        ("stream_on_rank_1", {}, "returned 20 samples .* on rank 0, and a stream and 20 on rank 1"),
    ],
)
def test_what_is_no_stream_is_refused_in_one_line(
    tmp_path: Path, build: str, arguments: dict[str, object], message: str
) -> None:
    job = a_job(tmp_path, data={"build": f"{OWN}:{build}", "args": arguments})
    with pytest.raises(RankFailedError, match=f"{ConfigError.__name__}: data.build = .*{message}"):
        job.run(2 if build == "stream_on_rank_1" else 1)
