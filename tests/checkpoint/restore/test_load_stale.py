"""A rank that sees an older state of the store than rank 0, such as through another mount, takes nobody back."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from convoy.checkpoint.api import Checkpoints
from convoy.checkpoint.restore.load import Damage, restore
from convoy.job.lineage import read_history, restore_candidates
from convoy.storage import StoreUnavailable, open_store
from tests.ranks import in_a_group


def restored(rank: int, folder: Path, heals: bool) -> tuple[str, int, list[Damage]]:
    """Rank 1 sees the store as it was before step 2. heals: only until the restore is tried again."""
    seen, store, damages = folder / f"seen by {rank}, {heals}", open_store(str(folder / "job")), list[Damage]()
    shutil.copytree(folder / ("stale" if rank else "job"), seen)
    state = {"w": torch.zeros(5000), "step": 0}

    def sleep(seconds: float) -> None:
        if heals:
            shutil.copytree(folder / "job", seen, dirs_exist_ok=True)

    told, tried = "restored", restore_candidates(read_history(store))
    try:
        restore([open_store(str(seen))], tried, state, group=dist.group.WORLD, on_damage=damages.append, sleep=sleep)
    except StoreUnavailable as error:
        told = str(error)
    return told, state["step"], damages


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with Checkpoints(str(folder / "job"), verify=False) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"w": torch.full((5000,), float(step)), "step": step}).wait()
    shutil.copytree(folder / "job", folder / "stale")
    for path in [*folder.glob("stale/commits/*-000000002.json"), *folder.glob("stale/shards/*-000000002")]:
        path.unlink() if path.is_file() else shutil.rmtree(path)
    return folder


def test_a_commit_that_rank_0_has_read_and_another_rank_does_not_see_is_an_outage(saved: Path) -> None:
    first, second = in_a_group(2, restored, saved, False)
    assert first == second
    assert "rank 1 does not see what rank 0 sees" in first[0]
    assert first[0].endswith("the state is not usable")
    assert first[1:] == (0, [])


def test_a_rank_that_comes_to_see_it_restores_the_newest_commit_with_the_others(saved: Path) -> None:
    assert in_a_group(2, restored, saved, True) == [("restored", 2, []), ("restored", 2, [])]
