"""A job whose root is in a bucket: saved by two ranks, gone on with by one."""

import pytest

from convoy.checkpoint.commits import read_commit
from convoy.checkpoint.verify.marks import verified
from convoy.job.events.types import Restored, StepDone
from convoy.job.lineage import CommitRef
from convoy.job.record import job_store
from tests.gang.tasks import a_node, a_task, events_of, run_gang


@pytest.mark.slow
def test_a_job_in_a_bucket_goes_on_with_fewer_ranks(s3_uri: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = {"cache": str(tmp_path_factory.mktemp("cache"))}
    first = a_task(s3_uri, train={"steps": 3, "threads_per_rank": 1}, data=data)
    second = a_task(s3_uri, train={"steps": 5, "threads_per_rank": 1}, data=data)

    assert run_gang(first, a_node(nproc=2)).outcome == "finished"
    assert run_gang(second, a_node(nproc=1, attempt=1)).outcome == "finished"

    store = job_store(s3_uri, "job")
    commits = [read_commit(store, CommitRef(generation=g, step=s)) for g, s in ((1, 3), (2, 5))]
    assert [c.world_size for c in commits] == [2, 1]
    assert verified(store) == {commit.ref for commit in commits}  # by another rank each, before the gangs ended
    events = events_of(second)
    assert [(e.from_generation, e.step) for e in events if isinstance(e, Restored)] == [(1, 3)]
    assert [e.step for e in events if isinstance(e, StepDone)] == [1, 2, 3, 4, 5]
    assert len(store.sizes("logs/")) == 3
