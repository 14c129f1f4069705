"""What was restored is what the first save goes on from, whatever others do in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from convoy.checkpoint import CheckpointError, Checkpoints
from convoy.job.generations import CommitsLostError, RestoreOrigin, form_generation
from convoy.job.leases import leased_commits
from convoy.job.lineage import CommitRef, parse_commits
from convoy.storage import StoreUnavailable, open_store
from tests.checkpoint.test_api import gang, sharded
from tests.checkpoint.torchless import form

RESTORED = CommitRef(generation=1, step=5)


def state(fill: float = 0.0) -> dict[str, Any]:
    return {"t": torch.full((10,), fill)}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "job")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", [6, 7])
def test_what_another_run_commits_after_the_restore_neither_blocks_nor_counts(uri: str, step: int) -> None:
    with Checkpoints(uri) as old, Checkpoints(uri) as new:
        old.save(5, state(5.0)).wait()
        assert new.restore(state()) is not None
        old.save(6, state(6.0)).wait()
        assert new.save(step, state(60.0)).wait().parent == RESTORED
        with pytest.raises(CheckpointError, match="superseded"):
            old.save(8, state(8.0)).wait()
        assert new.commits() == [RESTORED, CommitRef(generation=2, step=step)]
    with Checkpoints(uri) as third:
        found = state()
        third.restore(found)
        assert float(found["t"][0]) == 60.0


def test_without_a_restore_the_newest_commit_is_gone_on_from(uri: str) -> None:
    with Checkpoints(uri) as old, Checkpoints(uri) as new:
        old.save(5, state()).wait()
        old.save(6, state()).wait()
        assert new.save(7, state()).wait().parent == CommitRef(generation=1, step=6)


def test_what_was_restored_as_nothing_goes_on_from_nothing(uri: str) -> None:
    form(open_store(uri))  # of a run that has made no commit yet
    with Checkpoints(uri) as ckpt:
        assert ckpt.restore(state()) is None
        assert open_store(uri).create(RESTORED.name, b"{}")
        assert ckpt.save(1, state()).wait().parent is None
        assert [ref.step for ref in ckpt.commits()] == [1]


def take_over(uri: str) -> None:
    with Checkpoints(uri) as other:
        other.save(6, state()).wait()


def go_back(uri: str) -> None:
    with Checkpoints(uri) as other:
        other.rewind(4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("meanwhile", [take_over, go_back])
def test_who_took_over_or_rewound_since_the_restore_stands(uri: str, meanwhile: Callable[[str], None]) -> None:
    with Checkpoints(uri) as ckpt:
        ckpt.save(4, state()).wait()
        ckpt.save(5, state()).wait()
    with Checkpoints(uri) as ckpt:
        ckpt.restore(state())
        meanwhile(uri)
        counted = ckpt.commits()
        with pytest.raises(CheckpointError, match="formed generation 2 since this one restored; restore again"):
            ckpt.save(7, state())
        assert ckpt.commits() == counted
        ckpt.restore(state())
        assert ckpt.save(7, state()).wait().parent == counted[-1]


def test_what_was_restored_is_not_pruned_before_the_first_save(uri: str) -> None:
    store = open_store(uri)
    with Checkpoints(uri, keep_last=1) as old, Checkpoints(uri) as new:
        old.save(5, state()).wait()
        new.restore(state())
        new.restore(state())
        old.save(6, state()).wait()
        old.verify(6)
        old.prune()
        assert RESTORED in parse_commits(store.sizes("commits/"))
        assert new.save(6, state()).wait().parent == RESTORED
        assert not leased_commits(store)


def test_a_store_that_is_closed_without_a_save_holds_nothing(uri: str) -> None:
    with Checkpoints(uri) as ckpt:
        ckpt.save(5, state()).wait()
    with Checkpoints(uri) as ckpt:
        ckpt.restore(state())
        assert leased_commits(open_store(uri)) == {RESTORED}
    assert not leased_commits(open_store(uri))


def test_who_rewinds_after_a_restore_goes_on_from_there(uri: str) -> None:
    with Checkpoints(uri) as ckpt:
        for step in (4, 5):
            ckpt.save(step, state()).wait()
    with Checkpoints(uri) as ckpt:
        ckpt.restore(state())
        ckpt.rewind(4)
        assert not leased_commits(open_store(uri))
        assert ckpt.save(5, state()).wait().parent == CommitRef(generation=1, step=4)


def test_who_restores_after_a_save_of_its_own_goes_on_in_its_generation(uri: str) -> None:
    with Checkpoints(uri) as ckpt:
        ckpt.save(5, state()).wait()
        ckpt.restore(state())
        assert not leased_commits(open_store(uri))
        commit = ckpt.save(6, state()).wait()
        assert (commit.generation, commit.parent) == (1, None)


def test_a_commit_that_is_gone_becomes_no_parent(uri: str) -> None:
    store = open_store(uri)
    form(store)
    named: dict[str, Any] = {"formation": "f", "nodes": 1, "world_size": 1, "config_hash": "", "rendezvous": ""}
    with pytest.raises(CommitsLostError, match="step 5, which was restored, is damaged or gone"):
        form_generation(store, **named, origin=RestoreOrigin(RESTORED, 1))
    with pytest.raises(StoreUnavailable, match="lacks generation 2"):
        form_generation(store, **named, origin=RestoreOrigin(RESTORED, 2))


def save_after_a_restore(rank: int, uri: str) -> tuple[CommitRef | None, int]:
    with Checkpoints(uri) as ckpt:
        ckpt.restore(sharded())
        if rank == 0:
            assert open_store(uri).create(CommitRef(generation=1, step=6).name, b"{}")
        dist.barrier()
        commit = ckpt.save(6, sharded()).wait()
        return commit.parent, commit.generation


def save_first(rank: int, uri: str) -> int:
    with Checkpoints(uri) as ckpt:
        return ckpt.save(5, sharded()).wait().step


def test_all_ranks_go_on_from_what_they_restored(tmp_path: Path) -> None:
    assert gang(2, tmp_path, save_first) == [5, 5]
    assert gang(2, tmp_path, save_after_a_restore) == [(RESTORED, 2)] * 2
