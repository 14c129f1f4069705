"""Leases, by the clock of a real store."""

import os
import time
from pathlib import Path

import pytest

from convoy.job.leases import FORGOTTEN_SECONDS, lease, leased_commits
from convoy.job.lineage import CommitRef
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.writers import wait_for
from tests.conftest import S3Server

REF, OTHER = CommitRef(generation=1, step=10), CommitRef(generation=1, step=20)


def only_lease(store: Store) -> Path:
    (name,) = store.sizes("leases/")
    return Path(store.uri) / name


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_commit_is_held_for_as_long_as_any_reader_holds_it(store_uri: str) -> None:
    store = open_store(store_uri)
    with lease(store, REF):
        with lease(store, REF), lease(store, OTHER):
            assert leased_commits(store) == {REF, OTHER}
        assert leased_commits(store) == {REF}
    assert (leased_commits(store), store.sizes("leases/")) == (frozenset(), {})


def test_a_lease_outlives_its_term_because_it_is_renewed(local: Store) -> None:
    with lease(local, REF, term_seconds=0.3):
        first = only_lease(local).stat().st_mtime
        wait_for(lambda: only_lease(local).stat().st_mtime > first + 0.3)
        assert leased_commits(local) == {REF}


def test_a_dead_readers_lease_expires_by_the_stores_clock_and_is_removed_much_later(local: Store) -> None:
    with lease(local, REF, term_seconds=60):
        path = only_lease(local)
        age(path, 61)
        assert (leased_commits(local), path.exists()) == (frozenset(), True)
        age(path, 61 + FORGOTTEN_SECONDS)
        assert (leased_commits(local), path.exists()) == (frozenset(), False)


def test_what_is_no_lease_holds_nothing(local: Store) -> None:
    local.write("leases/x.json", b"{}")
    assert leased_commits(local) == frozenset()


def test_a_reader_that_loses_its_store_ends_without_an_error_of_its_lease(s3_uri: str, s3_server: S3Server) -> None:
    store = open_store(s3_uri)
    with lease(store, REF):
        s3_server.stop()
    with pytest.raises(StoreUnavailable):
        leased_commits(store)
