"""Saving and restoring over ranks: all or nothing, and no rank left behind."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from convoy.checkpoint.commit import Commit, DamagedCommitError, read_commit
from convoy.checkpoint.files import ShardsError
from convoy.checkpoint.restore import restore
from convoy.checkpoint.save import Saved, save
from convoy.storage import Store, open_store
from tests.checkpoint.test_commit import commit
from tests.ranks import on_ranks

ROWS = 11


def on_a_gang(world: int, folder: Path, function: Callable[..., Any], *args: Any) -> list[Any]:
    """`function(rank, store, group, *args)` on each rank of a gloo group, with a store below `folder`."""
    return on_ranks(world, _in_gang, world, folder, function, args)


def _in_gang(rank: int, world: int, folder: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    rendezvous = folder / f"rendezvous-{world}-{function.__name__}"
    dist.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=world)
    return function(rank, open_store(str(folder / "store")), dist.group.WORLD, *args)


def state(fill: float | None = None) -> dict[str, Any]:
    """A sharded tensor of uneven rows and a number."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(ROWS * 1000.0).reshape(ROWS, 1000) if fill is None else torch.full((ROWS, 1000), fill)
    return {"model": {"w": distribute_tensor(whole, mesh, [Shard(0)])}, "step": 7 if fill is None else 0}


def whole(tensors: dict[str, Any]) -> torch.Tensor:
    w = tensors["model"]["w"]
    return w.full_tensor() if isinstance(w, DTensor) else w


def save_whole(rank: int, store: Store, group: Any) -> Saved:
    return save(store, state(), commit(), group)


def restore_whole(rank: int, store: Store, group: Any) -> tuple[Commit, torch.Tensor, int]:
    tensors = state(fill=-1.0)
    found = restore(store, commit().ref, tensors, group)
    return found, whole(tensors), tensors["step"]


def save_with_limit(rank: int, store: Store, group: Any, limited: int) -> Saved:
    """One rank may write files of at most 2,000 bytes."""
    if rank == limited:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    return save(store, state(), commit(), group)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_was_saved_is_restored_on_any_number_of_ranks(world: int, tmp_path: Path) -> None:
    saved = on_a_gang(2, tmp_path, save_whole)

    restored = on_a_gang(world, tmp_path, restore_whole)

    assert {(s.attempt, s.bytes, s.error) for s in saved} == {(saved[0].attempt, saved[0].bytes, None)}
    for found, tensor, step in restored:
        assert (found.attempt, sum(found.files.values()), step) == (saved[0].attempt, saved[0].bytes, 7)
        assert torch.equal(tensor, torch.arange(ROWS * 1000.0).reshape(ROWS, 1000))


@pytest.mark.parametrize("limited", [0, 1])
def test_one_rank_that_cannot_write_fails_the_save_on_all(limited: int, tmp_path: Path) -> None:
    saved = on_a_gang(2, tmp_path, save_with_limit, limited)

    errors = {s.error for s in saved}
    assert len(errors) == 1
    assert "File too large" in str(errors) or "unexpected pos" in str(errors)
    store = open_store(str(tmp_path / "store"))
    assert store.sizes("commits/") == {}
    assert store.sizes("shards/") == {}  # the space is given back


def test_a_commit_by_another_save_fails_ours_and_stands(tmp_path: Path) -> None:
    first = on_a_gang(2, tmp_path, save_whole)[0]
    second = on_a_gang(1, tmp_path, save_whole)[0]

    assert second.error is not None
    assert second.error.startswith("FileExistsError")
    assert read_commit(open_store(str(tmp_path / "store")), commit().ref).attempt == first.attempt


def test_a_file_in_the_way_of_commits_fails_the_save_but_keeps_the_shards(tmp_path: Path) -> None:
    """Whether a creation that failed did happen is not known: the shards may be a commit's."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "commits").write_text("in the way")

    saved = on_a_gang(2, tmp_path, save_whole)

    assert [str(s.error)[:16] for s in saved] == ["StoreUnavailable"] * 2
    assert open_store(str(tmp_path / "store")).sizes("shards/")


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 100)], ids=["gone", "cut"])
def test_a_damaged_shard_is_refused_by_all_ranks(damage: Callable[[str], None], tmp_path: Path) -> None:
    on_a_gang(2, tmp_path, save_whole)
    name = max(open_store(str(tmp_path / "store")).sizes("shards/"))
    damage(str(tmp_path / "store" / name))

    assert on_a_gang(2, tmp_path, refuses, DamagedCommitError) == [True, True]


def test_what_torch_cannot_read_is_an_ordinary_error(tmp_path: Path) -> None:
    """torch raises a BaseException, which no handler of errors would see."""
    on_a_gang(2, tmp_path, save_whole)
    store = open_store(str(tmp_path / "store"))
    metadata = next(name for name in store.sizes("shards/") if name.endswith(".metadata"))
    store.write(metadata, b"x" * store.sizes(metadata)[metadata])

    assert on_a_gang(2, tmp_path, refuses, ShardsError) == [True, True]


def refuses(rank: int, store: Store, group: Any, kind: type[Exception]) -> bool:
    try:
        restore(store, commit().ref, state(), group)
    except kind:
        return True
    return False
