"""Closing: the last commit is read back and copied by the save's deadline, and what is not is told."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.checkpoint import CheckpointError, Checkpoints, api
from convoy.checkpoint.save.post_commit import Busy
from convoy.checkpoint.verify.marks import verified
from convoy.job.lineage import CommitRef
from convoy.storage import open_store
from tests.checkpoint.test_api import resumed_writer, stopped_writer

REF = CommitRef(generation=1, step=1)


def saved(folder: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Checkpoints:
    """A store with a commit of which all that is done between saves is left for the end."""
    ckpt = Checkpoints(str(folder / "job"), tiers=[str(folder / "copy")], **how)
    with monkeypatch.context() as patch:
        busy = Busy(reading_back=frozenset({0}), copying=frozenset({1}))
        patch.setattr(ckpt._engine.writer, "busy", lambda: busy)
        ckpt.save(1, {"w": torch.ones(1000)}).wait()
    return ckpt


def test_a_copy_that_takes_its_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "CLOSE_SECONDS", 0.2)  # which is for programs that end by an error
    ckpt = saved(tmp_path, monkeypatch, deadline_seconds=20.0)
    stopped_writer(ckpt)
    threading.Timer(1.0, resumed_writer, [ckpt]).start()
    ckpt.close()
    assert verified(open_store(str(tmp_path / "copy"))) == {REF}


NOT_DONE = [
    "step 1 was not read back on {job}: the store was closed after {seconds} s",
    "step 1 was not copied to {copy} and read back there: the store was closed after {seconds} s",
]


@pytest.mark.parametrize(("deadline", "given", "told"), [(3.0, None, 3), (20.0, 1.0, 1), (20.0, 0.0, 0)])
def test_what_was_not_done_when_the_store_is_closed_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    deadline: float,
    given: float | None,
    told: int,
) -> None:
    ckpt = saved(tmp_path, monkeypatch, deadline_seconds=deadline)
    stopped_writer(ckpt)
    began = time.monotonic()
    ckpt.close(given)
    assert time.monotonic() - began < 10.0
    wanted = [line.format(job=tmp_path / "job", copy=tmp_path / "copy", seconds=told) for line in NOT_DONE]
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", line) for line in wanted]


def test_after_an_error_the_end_is_not_waited_for_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "CLOSE_SECONDS", 0.5)
    began, ckpt = time.monotonic(), saved(tmp_path, monkeypatch, deadline_seconds=30.0)
    stopped_writer(ckpt)
    with pytest.raises(RuntimeError), ckpt:
        raise RuntimeError("an error of the script")
    assert time.monotonic() - began < 20.0


def test_what_goes_wrong_while_a_store_is_closed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ckpt = saved(tmp_path, monkeypatch)
    data = next((tmp_path / "job" / "shards").rglob("*.bin"))
    data.write_bytes(bytes(data.stat().st_size))
    ckpt.close()
    told = sorted(record.getMessage() for record in caplog.records)
    assert [line.partition(str(tmp_path))[0] for line in told] == ["read back: ", "step 1 was not copied to "]


def test_a_store_that_was_closed_in_peace_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, monkeypatch).close()
    assert caplog.records == []
    assert verified(open_store(str(tmp_path / "job"))) == {REF}


def test_a_save_after_closing_is_an_error_and_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with Checkpoints(str(tmp_path)) as ckpt:
        ckpt.save(1, {"w": torch.ones(3)})
    with pytest.raises(CheckpointError, match="step 2: the store was closed"):
        ckpt.save(2, {"w": torch.ones(3)})
