"""Gangs that were superseded and do not know it, as real processes, in a folder and on S3."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from convoy.checkpoint.verify.commit import verify_commit
from convoy.checkpoint.writer.prune import prune
from convoy.config.checkpoint import RetentionConfig
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef, counted_commits, parse_commits, read_history
from convoy.storage import Store, open_store
from tests.checkpoint.test_protocol import GangState
from tests.checkpoint.torchless import commit_when_complete, form, restored
from tests.checkpoint.writers import wait_for

POLICY = RetentionConfig(keep_last=1)


@contextmanager
def process(function: Callable[..., None], *args: Any) -> Iterator[BaseProcess]:
    """A fork that runs the function; dead afterwards."""
    child = multiprocessing.get_context("fork").Process(target=function, args=args, daemon=True)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


def zombie(uri: str, saves: int) -> None:
    """Forms a generation and goes on saving and pruning, whoever else has formed another one."""
    store = open_store(uri)
    generation = form(store)
    for step in range(10, 10 * saves + 1, 10):
        save_unasked(store, generation, step)
        verify_commit(store, CommitRef(generation=generation, step=step))
        prune(store, generation, POLICY)


def save_unasked(store: Store, generation: int, step: int) -> None:
    """A save that does not look for a newer generation, as where the root does not answer."""
    state = GangState(generation=generation)
    requests = [state.request(store.uri, w, step, generation=generation, attempt=f"z{step}") for w in range(2)]
    for request in requests:
        state.write(store, request)
    commit_when_complete(store, None, requests[0])


def save(store: Store, generation: int, step: int) -> None:
    GangState(generation=generation).save(store, step, generation=generation, attempt=f"s{step}")
    verify_commit(store, CommitRef(generation=generation, step=step))
    assert prune(store, generation, POLICY).error is None


def restore_newest(store: Store) -> CommitRef:
    """What a new gang goes on from; its content must be what its own generation saved."""
    ref = counted_commits(read_history(store))[-1]
    with lease(store, ref):
        state = GangState(generation=ref.generation)
        assert restored(store, ref) == [state.data(writer, ref.step) for writer in range(2)]
    return ref


def commits_of(store: Store, generation: int) -> list[int]:
    return sorted(ref.step for ref in parse_commits(store.sizes("commits/")) if ref.generation == generation)


@pytest.mark.sampled(2)
def test_a_superseded_gang_that_goes_on_saving_and_pruning_is_never_read_and_deletes_nothing(store_uri: str) -> None:
    store = open_store(store_uri)
    with process(zombie, store_uri, 1000) as old:
        wait_for(lambda: any(step >= 30 for step in commits_of(store, 1)))
        assert form(store) == 2
        parent = read_history(store).generations[2].parent
        assert parent is not None
        begun = restore_newest(store)
        assert begun == parent
        for step in range(begun.step + 10, begun.step + 21, 10):
            save(store, 2, step)
            assert restore_newest(store) == CommitRef(generation=2, step=step)
        wait_for(lambda: commits_of(store, 1)[-1] > parent.step + 30)
        assert old.pid is not None
        os.kill(old.pid, signal.SIGKILL)  # wherever it is just now
    assert form(store) == 3
    newest = restore_newest(store)
    assert newest == CommitRef(generation=2, step=begun.step + 20)
    assert prune(store, 3, POLICY).error is None  # what it made is not old enough
    assert commits_of(store, 1)[-1] > newest.step
    for name in store.sizes("leases/"):  # of what was killed; they would expire
        store.delete(name)
    assert prune(store, 3, POLICY, grace_seconds=-5).error is None
    assert set(parse_commits(store.sizes("commits/"))) == {newest}
    assert {name.split("/")[1] for name in store.sizes("shards/")} == {newest.stem}
    assert restore_newest(store) == newest


def prune_at(uri: str, moment: float) -> None:
    store = open_store(uri)
    time.sleep(max(0.0, moment - time.monotonic()))
    assert prune(store, 1, POLICY).error is None


@pytest.mark.sampled(2)
def test_of_several_that_prune_the_same_commits_at_once_none_undoes_what_another_does(store_uri: str) -> None:
    """A writer that hung, and the one that replaced it, may come to it at the same time."""
    store = open_store(store_uri)
    form(store)
    state = GangState(generation=1)
    for step in range(10, 61, 10):
        state.save(store, step)
    verify_commit(store, CommitRef(generation=1, step=60))
    moment = time.monotonic() + 0.3
    with process(prune_at, store_uri, moment) as a, process(prune_at, store_uri, moment) as b:
        with process(prune_at, store_uri, moment) as c:
            for child in (a, b, c):
                child.join(30)
                assert child.exitcode == 0
    prune(store, 1, POLICY)  # a commit that two came to at once is left by one of them
    assert commits_of(store, 1) == [60]
    assert store.sizes("removing/") == {}
    assert {name.split("/")[1] for name in store.sizes("shards/")} == {CommitRef(generation=1, step=60).stem}
    assert restore_newest(store).step == 60
