"""Looks at a store that hangs, answers late, or raises what it should not."""

import threading
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.format import Commit
from convoy.checkpoint.save.commit_lookup import CommitLookup
from convoy.job.lineage import CommitRef
from convoy.storage import open_store
from tests.checkpoint.shims import Faulty
from tests.checkpoint.torchless import TinyState, form

REF = CommitRef(generation=1, step=10)
WAIT_SECONDS = 20.0


@pytest.fixture
def tiers(tmp_path: Path) -> list[Faulty]:
    """Two, both with the commit."""
    stores = [open_store(str(tmp_path / name)) for name in ("first", "second")]
    for store in stores:
        form(store)
        TinyState().save(store, REF.step)
    return [Faulty(store) for store in stores]


class Woken:
    def __init__(self, tiers: list[Any]) -> None:
        self._event = threading.Event()
        self.lookup = CommitLookup(tiers, self._event.set)

    def wait(self) -> None:
        assert self._event.wait(WAIT_SECONDS)
        self._event.clear()


def step(found: Any) -> int:
    assert isinstance(found, Commit)
    return found.step


def test_a_look_wakes_and_its_answer_is_told_once(tiers: list[Faulty]) -> None:
    woken = Woken(tiers)
    assert woken.lookup.begin(0, REF, "a")
    woken.wait()
    assert step(woken.lookup.take_result(0, "a")) == 10
    assert woken.lookup.take_result(0, "a") is None


def test_a_tier_that_hangs_is_asked_once_and_holds_up_no_other(tiers: list[Faulty]) -> None:
    over = threading.Event()
    tiers[0].hang(REF.name, over)
    woken = Woken(tiers)
    assert woken.lookup.begin(0, REF, "a")
    assert not woken.lookup.begin(0, REF, "b")
    assert woken.lookup.take_result(0, "a") is None
    assert woken.lookup.begin(1, REF, "a")
    woken.wait()
    assert step(woken.lookup.take_result(1, "a")) == 10
    over.set()
    woken.wait()
    assert woken.lookup.take_result(0, "b") is None  # it was asked about another attempt
    assert woken.lookup.begin(0, REF, "b")


def test_an_outage_is_no_answer_and_an_unexpected_error_is_raised(tiers: list[Faulty]) -> None:
    woken = Woken(tiers)
    tiers[0].fail(REF.name)
    tiers[1].fail(REF.name, RuntimeError("no such thing"))
    for tier in (0, 1):
        assert woken.lookup.begin(tier, REF, "a")
        woken.wait()
    assert woken.lookup.take_result(0, "a") is None
    with pytest.raises(RuntimeError, match="no such thing"):
        woken.lookup.take_result(1, "a")
    assert woken.lookup.take_result(1, "a") is None
