"""Tiers are opened side by side: each is proven, unfit, out of reach or silent by itself."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.writer import tiers as module
from convoy.checkpoint.writer.tiers import Tiers, with_timeout
from convoy.config.checkpoint import StoreConfig
from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store
from convoy.storage.base import StoreUnfit
from tests.checkpoint.shims import Faulty
from tests.checkpoint.writers import wait_for

FIT, UNFIT, DOWN, SILENT = "fit", "unfit", "down", "silent"


class Places:
    """Stores by name, each with its own way to prove itself."""

    def __init__(self, folder: Path) -> None:
        self.down = True
        self.released = threading.Event()
        self.opened: list[str] = []
        self._folder = folder

    def open(self, uri: str, config: StoreConfig) -> Store:
        self.opened.append(uri)
        store: Any = open_store(str(self._folder / uri), config)
        store.prove = lambda: self._prove(uri)
        return store

    def _prove(self, uri: str) -> None:
        if uri == UNFIT:
            raise StoreUnfit("unfit: replaces objects")
        if uri == DOWN and self.down:
            raise StoreUnavailable("down")
        if uri == SILENT:
            self.released.wait()


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    places = Places(tmp_path)
    monkeypatch.setattr(module, "open_store", places.open)
    yield places
    places.released.set()


def test_each_tier_is_as_it_has_proven_itself(places: Places, tmp_path: Path) -> None:
    tiers = Tiers([FIT, UNFIT, DOWN, SILENT], StoreConfig())
    assert tiers.store(FIT, 30.0).uri == str(tmp_path / FIT)
    with pytest.raises(StoreUnfit, match="replaces objects"):
        tiers.store(UNFIT, 30.0)
    with pytest.raises(StoreUnavailable, match="down"):
        tiers.store(DOWN, 30.0)
    with pytest.raises(StoreUnavailable, match="silent: did not answer"):
        tiers.store(SILENT, 0.01)


def test_one_that_was_down_is_asked_again_and_one_that_is_fit_is_not(places: Places) -> None:
    tiers = Tiers([FIT, DOWN], StoreConfig())
    with pytest.raises(StoreUnavailable):
        tiers.store(DOWN, 30.0)
    places.down = False
    assert tiers.store(DOWN, 30.0) is tiers.store(DOWN, 30.0)
    assert tiers.store(FIT, 30.0) is tiers.store(FIT, 30.0)
    assert places.opened.count(FIT) == 1
    assert places.opened.count(DOWN) > 1


def test_one_that_is_silent_is_asked_only_once(places: Places) -> None:
    tiers = Tiers([SILENT], StoreConfig())
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            tiers.store(SILENT, 0.01)
    assert places.opened == [SILENT]
    places.released.set()
    assert tiers.store(SILENT, 30.0)


def test_the_root_is_given_only_once_it_has_proven_itself(places: Places) -> None:
    silent = Tiers([SILENT], StoreConfig())
    assert silent.root() is None
    places.released.set()
    assert silent.store(SILENT, 30.0).uri == uri_of(silent.root())
    down = Tiers([DOWN], StoreConfig())
    with pytest.raises(StoreUnavailable):
        down.store(DOWN, 30.0)
    places.down = False
    assert down.store(DOWN, 30.0).uri == uri_of(down.root())


def uri_of(store: Store | None) -> str | None:
    return None if store is None else store.uri


def test_another_place_is_opened_when_it_is_first_asked_for(places: Places) -> None:
    tiers = Tiers([FIT], StoreConfig())
    assert tiers.store("elsewhere", 30.0) is tiers.store("elsewhere", 30.0)


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
    asked = with_timeout(store, 30.0)
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
    asked = with_timeout(seen, 0.2)  # type: ignore[arg-type]
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
    asked = with_timeout(seen, 0.05)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        asked.sizes("generations/")
    released.set()

    def answers() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return bool(asked.sizes("generations/") == {"generations/000001.json": 2})
        return False

    wait_for(answers)
