"""A store that is only looked at in passing does not hold up whoever looks."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from convoy.checkpoint.writer.tiers import bounded
from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store
from tests.checkpoint.shims import Faulty


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path))
    made.create("generations/000001.json", b"{}")
    return made


def test_it_answers_and_fails_as_the_store_does(store: Store) -> None:
    asked = bounded(store, 30.0)
    assert asked.uri == store.uri
    assert asked.sizes("generations/") == {"generations/000001.json": 2}
    assert asked.read("generations/000001.json") == b"{}"
    with pytest.raises(ObjectMissing):
        asked.read("generations/000002.json")


def test_a_call_that_hangs_is_an_outage_and_only_one_thread_is_left_behind(
    store: Store, released: threading.Event
) -> None:
    seen = Faulty(store)
    seen.hang("generations/", released)
    asked = bounded(seen, 0.2)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0.2 s"):
        asked.sizes("generations/")
    threads, began = threading.active_count(), time.monotonic()
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            asked.sizes("generations/")
    assert time.monotonic() - began < 20 * 0.2 / 2
    assert threading.active_count() <= threads


def test_when_it_has_answered_at_last_it_is_asked_again(store: Store, released: threading.Event) -> None:
    seen = Faulty(store)
    seen.hang("generations/", released)
    asked = bounded(seen, 0.05)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        asked.sizes("generations/")
    released.set()
    until = time.monotonic() + 30.0
    while True:
        try:
            assert asked.sizes("generations/") == {"generations/000001.json": 2}
            return
        except StoreUnavailable:
            assert time.monotonic() < until
            time.sleep(0.01)
