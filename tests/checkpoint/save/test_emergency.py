"""Emergency saves where something hangs: they return by their deadlines."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.checkpoint import CheckpointError, Checkpoints
from convoy.checkpoint.save import emergency
from convoy.checkpoint.save.writer_client import WriterProcess
from convoy.storage import open_store
from tests.checkpoint.shims import Faulty
from tests.checkpoint.test_api import gang, sharded

DEADLINE_SECONDS = 4.0


def save_where_one_rank_hears_nothing(rank: int, uri: str) -> tuple[str, bool]:
    emergency.GRACE_SECONDS = 0.5  # in a process of the test's own
    with Checkpoints(uri, deadline_seconds=DEADLINE_SECONDS, verify=False) as ckpt:
        state = sharded()
        ckpt.save(1, state).wait()
        if rank == 1:
            store = Faulty(ckpt._stores[0])
            store.hang("commits/000001-000000002.json", threading.Event())
            ckpt._stores[0] = store  # type: ignore[call-overload]
        began = time.monotonic()
        try:
            told = str(ckpt.save(2, state, emergency=True).wait().step)
        except CheckpointError as error:
            told = str(error)
        return told, time.monotonic() - began < 4 * DEADLINE_SECONDS


def test_a_store_that_hangs_is_not_waited_for_beyond_the_deadline(tmp_path: Path) -> None:
    first, second = gang(2, tmp_path, save_where_one_rank_hears_nothing)
    assert first == ("2", True)
    assert second == ("step 2 may not be saved: nothing was heard of its commit", True)


def test_a_process_that_hangs_on_one_tier_is_replaced_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emergency, "GRACE_SECONDS", 0.5)
    first, second = tmp_path / "first", tmp_path / "second"
    with Checkpoints(str(first), tiers=[str(second)], deadline_seconds=DEADLINE_SECONDS) as ckpt:
        ckpt.save(1, {"w": torch.ones(10)}).wait()
        start, started = WriterProcess.start, list[Any]()

        def start_one_that_hangs(self: WriterProcess) -> None:
            start(self)
            started.append(self)
            if len(started) == 1:
                assert self._process is not None
                os.kill(self._process.pid, signal.SIGSTOP)

        monkeypatch.setattr(WriterProcess, "start", start_one_that_hangs)
        assert ckpt.save(2, {"w": torch.ones(10)}, emergency=True).wait().step == 2
    assert len(started) == 2
    assert "commits/000001-000000002.json" in open_store(str(second)).sizes("commits/")


def test_an_emergency_save_keeps_to_no_pace_and_gives_way_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, priorities = {"w": torch.ones(8 * 2**20)}, list[int]()  # 34 MB: 30 s at the slowest pace there is
    abandon = WriterProcess.abandon

    def abandon_and_tell(self: WriterProcess) -> None:
        assert self._process is not None
        priorities.append(os.getpriority(os.PRIO_PROCESS, self._process.pid))
        abandon(self)

    with Checkpoints(str(tmp_path), write_mb_per_second=0.5) as ckpt:
        ckpt.save(1, state).wait()
        monkeypatch.setattr(WriterProcess, "abandon", abandon_and_tell)
        began = time.monotonic()
        assert ckpt.save(2, state, emergency=True).wait().step == 2
        assert time.monotonic() - began < 15.0
        monkeypatch.undo()
    assert priorities == [os.getpriority(os.PRIO_PROCESS, 0)]


def test_an_emergency_save_of_a_step_that_was_passed_is_refused(tmp_path: Path) -> None:
    state = {"w": torch.ones(10)}
    with Checkpoints(str(tmp_path)) as ckpt:
        ckpt.save(90, state).wait()
        ckpt.save(100, state).wait()
        with pytest.raises(CheckpointError, match="step 95: the newest commit is of step 100; rewind"):
            ckpt.save(95, state, emergency=True)
        assert ckpt.save(100, state, emergency=True).wait().attempt.endswith("0001-0")  # it is there
    for step in (5, 100):
        with Checkpoints(str(tmp_path)) as ckpt:
            with pytest.raises(CheckpointError, match=f"step {step}: the newest commit is of step 100; rewind"):
                ckpt.save(step, state, emergency=True)
            assert [ref.step for ref in ckpt.commits()] == [90, 100]
            ckpt.rewind(90)
            assert ckpt.save(100, state, emergency=True).wait().step == 100
