"""Closing, and a store that hangs under one rank: calls return by the deadlines, and what is not done is logged."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from convoy.checkpoint import CheckpointError, Checkpoints, api
from convoy.checkpoint.save import next_save, writer_client
from convoy.checkpoint.save.post_commit import BusyTiers
from convoy.checkpoint.verify.marks import verified_in
from convoy.job.lineage import CommitRef
from convoy.storage import open_store
from tests.checkpoint.shims import Faulty
from tests.checkpoint.test_api import gang, resumed_writer, sharded, stopped_writer

pytestmark = pytest.mark.slow

REF = CommitRef(generation=1, step=1)


def saved(folder: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Checkpoints:
    """A store with a commit of which all that is done between saves is left for the end."""
    ckpt = Checkpoints(str(folder / "job"), tiers=[str(folder / "copy")], **how)
    with monkeypatch.context() as patch:
        busy = BusyTiers(reading_back=frozenset({0}), copying=frozenset({1}))
        patch.setattr(ckpt._engine.writer, "busy", lambda: busy)
        ckpt.save(1, {"w": torch.ones(1000)}).wait()
    return ckpt


def test_a_copy_that_takes_its_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "CLOSE_SECONDS", 0.2)  # which is for programs that end by an error
    ckpt = saved(tmp_path, monkeypatch, deadline_seconds=20.0)
    stopped_writer(ckpt)
    threading.Timer(1.0, resumed_writer, [ckpt]).start()
    ckpt.close()
    assert verified_in(open_store(str(tmp_path / "copy"))) == {REF}


NOT_DONE = [
    "step 1 was not read back on {job}: the store was closed after {seconds} s",
    "step 1 was not copied to {copy} and read back there: the store was closed after {seconds} s",
]


@pytest.mark.parametrize(("deadline", "given", "told"), [(3.0, None, 3), (20.0, 0.0, 0)])
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
    assert verified_in(open_store(str(tmp_path / "job"))) == {REF}


def test_a_save_after_closing_is_an_error_and_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with Checkpoints(str(tmp_path)) as ckpt:
        ckpt.save(1, {"w": torch.ones(3)})
    with pytest.raises(CheckpointError, match="step 2: the store was closed"):
        ckpt.save(2, {"w": torch.ones(3)})


DEADLINE_SECONDS = 4.0
GRACE_SECONDS = 0.5


@contextmanager
def opened(uri: str, **how: Any) -> Iterator[Checkpoints]:
    """With step 1 saved."""
    writer_client.GRACE_SECONDS = next_save.GRACE_SECONDS = GRACE_SECONDS  # in a process of the test's own
    with Checkpoints(uri, deadline_seconds=DEADLINE_SECONDS, **how) as ckpt:
        ckpt.save(1, sharded()).wait()
        yield ckpt


def hang(ckpt: Checkpoints, step: int) -> threading.Event:
    """Looking for the commit of a step hangs in this process, on the first tier, until the event."""
    over, store = threading.Event(), Faulty(ckpt._stores[0])
    store.hang(f"commits/000001-{step:09d}.json", over)
    ckpt._stores[0] = store  # type: ignore[call-overload]
    return over


def told(pending: Any) -> str:
    try:
        return str(pending.wait(timeout_seconds=30.0).step)
    except CheckpointError as error:
        return str(error)


def looking() -> int:
    return sum(thread.name == "look on tier 0" for thread in threading.enumerate())


def save_on_a_tier_that_hangs(rank: int, uri: str) -> tuple[list[str], bool]:
    with opened(uri, tiers=[f"{uri}-2"], verify=False) as ckpt:
        if rank == 0:
            stopped_writer(ckpt)
        else:
            hang(ckpt, 2)
        dist.barrier()
        results = [told(ckpt.save(2, sharded()))]
        if rank == 1:
            assert looking() == 1
        results.append(told(ckpt.save(3, sharded(), may_skip=False)))
        began = time.monotonic()
    return results, time.monotonic() - began < 3 * DEADLINE_SECONDS


def test_while_the_first_tier_hangs_all_ranks_go_on_to_the_next_one(tmp_path: Path) -> None:
    assert gang(2, tmp_path, save_on_a_tier_that_hangs) == [(["2", "3"], True)] * 2
    assert "commits/000001-000000002.json" in open_store(str(tmp_path / "job-2")).sizes("commits/")


def save_where_one_rank_hears_nothing(rank: int, uri: str) -> list[str]:
    with opened(uri, verify=False) as ckpt:
        over = hang(ckpt, 2) if rank == 1 else threading.Event()
        results = [told(ckpt.save(2, sharded()))]
        if rank == 1:
            over.set()
        return [*results, told(ckpt.save(3, sharded(), may_skip=False))]


def test_a_rank_that_hears_nothing_says_so_at_the_deadline_and_saves_on(tmp_path: Path) -> None:
    first, second = gang(2, tmp_path, save_where_one_rank_hears_nothing)
    assert first == ["2", "3"]
    assert second == ["step 2 may not be saved: nothing was heard of its commit", "3"]


def close_while_it_hangs(rank: int, uri: str) -> tuple[float, str]:
    with opened(uri, verify=False) as ckpt:
        if rank == 1:
            hang(ckpt, 2)
        pending = ckpt.save(2, sharded())
        began = time.monotonic()
        ckpt.close(1.0 if rank == 1 else None)
        return time.monotonic() - began, told(pending)


def test_a_store_that_hangs_is_closed_in_time_and_its_saves_are_told_of(tmp_path: Path) -> None:
    (_, first), (seconds, second) = gang(2, tmp_path, close_while_it_hangs)
    assert (first, seconds < 6.0) == ("2", True)
    assert second == "step 2 may not be saved: the store was closed before it was settled"


def save_where_one_rank_is_ahead(rank: int, uri: str) -> str:
    """Rank 1's part fails at once on the first tier, where the coordinator hangs; on the next one it takes its time."""
    with opened(uri, tiers=[f"{uri}-2"], verify=False) as ckpt:
        writers, send = ckpt._engine.writer, ckpt._engine.writer.send

        def send_so(given: Any, layout: Any, request: Any) -> None:
            first = request.tier == ckpt._stores[0].uri
            if rank == 1 and first:
                request = request.model_copy(update={"buffer": "/nowhere"})
            if rank == 0 and not first:
                time.sleep(4 * GRACE_SECONDS)
            send(given, layout, request)

        writers.send = send_so  # type: ignore[method-assign]
        if rank == 0:
            stopped_writer(ckpt)
        dist.barrier()
        return told(ckpt.save(2, sharded()))


def test_a_rank_that_is_ahead_waits_for_the_coordinator_to_follow(tmp_path: Path) -> None:
    assert gang(2, tmp_path, save_where_one_rank_is_ahead) == ["2", "2"]
