"""Marks of messages: each is sent once, and once more only where nobody can know whether it was."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convoy.job.notified import Claim, begin, claim, give_back, mark_sent
from convoy.storage.posix import PosixStore

LEASE = 40.0


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path)


def age(store: PosixStore, claimed: object) -> None:
    """As if the claim had been made long ago."""
    assert isinstance(claimed, Claim)
    then = time.time() - 2 * LEASE
    os.utime(Path(store.uri) / claimed.name, (then, then))


def test_a_sent_message_is_never_claimed_again(store: PosixStore) -> None:
    assert claim(store, "failed", LEASE) == Claim("failed", 1)
    assert claim(store, "failed", LEASE) == "claimed"
    mark_sent(store, "failed")
    assert claim(store, "failed", LEASE) == "sent"
    assert claim(store, "finished", LEASE) == Claim("finished", 1)


def test_a_sender_that_died_before_its_mark_may_repeat_the_message_once(store: PosixStore) -> None:
    age(store, claim(store, "failed", LEASE))
    second = claim(store, "failed", LEASE)
    assert second == Claim("failed", 2)
    assert claim(store, "failed", LEASE) == "claimed"
    age(store, second)
    assert claim(store, "failed", LEASE) == "sent"


def test_a_message_that_its_target_refused_can_be_claimed_at_once(store: PosixStore) -> None:
    first = claim(store, "failed", LEASE)
    assert isinstance(first, Claim)
    give_back(store, first)
    assert claim(store, "failed", LEASE) == first


def test_of_many_at_once_one_gets_the_claim(store: PosixStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: claim(store, "failed", LEASE), range(32)))
    assert sorted(map(str, got)) == sorted(["claimed"] * 31 + [str(Claim("failed", 1))])


def test_notifications_begin_once(store: PosixStore) -> None:
    assert begin(store, lambda: 3) == 3
    assert begin(store, lambda: 7) == 3
