"""Waiting for a save whose commit another rank made: it is looked up, on whichever tier it is."""

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit
from convoy.checkpoint.save.begin import Pending, pending_save
from convoy.checkpoint.save.driver import Save, SaveOutcome, SaveTiming
from convoy.checkpoint.save.queue import WriteAttempt
from convoy.storage import Store, open_store
from tests.checkpoint.shims import Faulty
from tests.checkpoint.torchless import TinyState, form

STATE = TinyState(sizes=(50, 30))


class Driver:
    """All that is waited for has its outcome."""

    hurry_while_waiting = contextlib.nullcontext

    def __init__(self, deadline_seconds: float) -> None:
        self.deadline_seconds = deadline_seconds


@pytest.fixture
def tiers(tmp_path: Path) -> list[Store]:
    stores = [open_store(str(tmp_path / name)) for name in ("root", "tier")]
    for store in stores:
        form(store)
    return stores


def pending(tiers: list[Any], commit: Commit, deadline_seconds: float = 5.0) -> Pending:
    """Of a save that was committed on the first tier, as was told."""
    save = Save(commit, SaveTiming(0.0, 0.0))
    save.outcome.set_result(SaveOutcome(WriteAttempt(commit.step, 0, 0, "x")))
    return pending_save(save, Driver(deadline_seconds), tiers)  # type: ignore[arg-type]


def test_the_commit_is_looked_up_on_the_tier_that_was_told_and_then_on_the_others(tiers: list[Store]) -> None:
    commit = STATE.save(tiers[1], 10)
    assert pending(tiers, commit).wait() == commit
    assert pending(tiers, STATE.save(tiers[0], 20)).wait().step == 20


def test_a_commit_that_is_gone_is_told(tiers: list[Store]) -> None:
    commit = STATE.save(tiers[0], 10)
    tiers[0].delete(commit.ref.name)
    with pytest.raises(CheckpointError, match="step 10 was saved, but its commit is gone"):
        pending(tiers, commit).wait()


def test_a_store_that_hangs_is_an_error_at_the_deadline_and_a_timeout_before(tiers: list[Store]) -> None:
    commit, over = STATE.save(tiers[0], 10), threading.Event()
    hangs = Faulty(tiers[0])
    hangs.hang(commit.ref.name, over)
    with pytest.raises(TimeoutError):
        pending([hangs, tiers[1]], commit).wait(0.05)
    with pytest.raises(CheckpointError, match=r"step 10 was saved, but .* does not answer"):
        pending([hangs, tiers[1]], commit, deadline_seconds=0.05).wait()
    over.set()
