"""Two jobs' states are told apart by a single bit, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from convoy.checkpoint.format import DamagedCommitError
from convoy.drills.compare_state import differing, final_state
from convoy.storage import Store, open_store
from tests.training.job import Job, tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = Job(str(tmp_path_factory.mktemp("job")), tiny(train={"steps": 6}, checkpoint={"every_steps": 3}))
    job.run(2)
    return job


def test_a_job_that_took_another_way_to_the_same_end_has_the_same_state(trained: Job, tmp_path: Path) -> None:
    other = Job(str(tmp_path), trained.config)
    other.run(2, train={"steps": 3})
    other.run(2)
    one, another = final_state([trained.store]), final_state([other.store])
    assert one[0] is not None
    assert another[0] is not None
    assert (one[0].step, one[0].generation) == (6, 1)
    assert (another[0].step, another[0].generation) == (6, 2)
    assert len(one[1]) > 10
    assert differing(one[1], another[1]) == []


def test_a_job_with_another_seed_differs_in_every_weight(trained: Job, tmp_path: Path) -> None:
    other = Job(str(tmp_path), tiny(train={"steps": 6, "seed": 4}, checkpoint={"every_steps": 3}))
    other.run(2)
    different = differing(final_state([trained.store])[1], final_state([other.store])[1])
    assert any(name.startswith("model.") for name in different)


def test_a_commit_that_is_not_what_was_written_is_not_compared(trained: Job, tmp_path: Path) -> None:
    other = Job(str(tmp_path), trained.config)
    other.run(2)
    spoil(other.store)
    with pytest.raises(DamagedCommitError, match="not what was written"):
        final_state([other.store])


def test_a_job_without_a_commit_has_no_state(tmp_path: Path) -> None:
    assert final_state([open_store(str(tmp_path))]) == (None, {})


def test_it_needs_no_torch() -> None:
    script = "import sys, convoy.drills.compare_state; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def spoil(store: Store) -> None:
    """One bit of the newest commit's first file."""
    commit, _ = final_state([store])
    assert commit is not None
    file = Path(store.uri) / commit.shards / sorted(commit.files)[0]
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(bytes(data))
