"""Storage that really fails, below checkpoints: training is never held up, nothing is marked damaged, nothing lost."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from convoy.checkpoint import CheckpointError, Checkpoints
from convoy.checkpoint.messages import Committed, PartWritten, Ready, SaveFailed
from convoy.drills.testbed.mounts import MIB, Disk
from convoy.gang.workers.processes import command_of, state_of
from convoy.storage import open_store
from tests.checkpoint.torchless import TinyState, form
from tests.checkpoint.writers import writers as writer_processes
from tests.gang.tasks import descendants, wait_for
from tests.ranks import on_ranks
from tests.system.disks import filled, read_only

pytestmark = pytest.mark.system

NOBODY = 65534
ELEMENTS = 1_000_000

DEADLINE_SECONDS = 12.0
"""Of a save. One of a disk that is well takes half a second, on a machine that does nothing else."""

NEVER_HELD_UP_SECONDS = 8.0
"""A call takes milliseconds; one that waits for a frozen disk would take for ever."""


def state(step: int) -> dict[str, torch.Tensor]:
    return {"weights": torch.arange(ELEMENTS, dtype=torch.float32) + step}


def restored_step(ckpt: Checkpoints) -> int:
    """Step of the newest checkpoint that loads; its values are those of that step."""
    found = {"weights": torch.zeros(ELEMENTS)}
    restored = ckpt.restore(found)
    assert restored is not None
    assert torch.equal(found["weights"], state(restored.step)["weights"])
    return restored.step


def damaged(root: Path) -> list[str]:
    return list(open_store(str(root)).sizes("damaged/"))


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """With outages that last."""
    monkeypatch.setattr("convoy.checkpoint.restore.load.OUTAGE_PAUSES_SECONDS", (0.1, 0.2))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path) as disk:
        yield disk


def opened(disk: Disk, tiers: list[Path], deadline_seconds: float = 60.0) -> Checkpoints:
    return Checkpoints(
        str(disk.path / "job"), tiers=[str(tier) for tier in tiers], deadline_seconds=deadline_seconds, verify=False
    )


FAULTS: dict[str, tuple[Callable[[Disk], AbstractContextManager[None]], str]] = {
    "full": (lambda disk: filled(disk.path), "No space left on device"),
    "read-only": (read_only, "Read-only file system"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_that_the_disk_refuses_fails_and_the_one_before_it_stands(disk: Disk, fault: str) -> None:
    befall, text = FAULTS[fault]
    with opened(disk, []) as ckpt:
        ckpt.save(1, state(1)).wait()
        with befall(disk):
            with pytest.raises(CheckpointError, match=rf"step 2 was not saved: .*{text}"):
                ckpt.save(2, state(2)).wait()
            assert restored_step(ckpt) == 1
        assert ckpt.save(3, state(3)).wait().step == 3
        assert restored_step(ckpt) == 3
        assert [ref.step for ref in ckpt.commits()] == [1, 3]
    assert damaged(disk.path / "job") == []


def test_a_save_that_fails_on_a_full_disk_leaves_nothing_there(disk: Disk, tmp_path: Path) -> None:
    """The part of one writer fits, the other's does not; no commit follows that would have it pruned."""
    root = open_store(str(disk.path / "job"))
    form(root)
    with writer_processes(tmp_path, [root.uri], TinyState(sizes=(12 * MIB, 4 * MIB))) as gang:
        gang.await_report(0, Ready)
        gang.write(root.uri, 0, 5, deadline_seconds=15.0)
        gang.await_report(0, PartWritten)
        with filled(disk.path):
            assert free(disk) < 2 * MIB
            gang.write(root.uri, 1, 5)
            assert "No space left on device" in gang.await_report(1, SaveFailed).error
            gang.await_report(0, SaveFailed)
            wait_for("the end of what the save has left", lambda: free(disk) > 11 * MIB)
        assert [name for name in root.sizes("shards/") if not name.endswith(".txt")] == []
        for writer in range(2):
            gang.write(root.uri, writer, 5, attempt="b")
        assert gang.await_report(0, Committed).commit.step == 5


def free(disk: Disk) -> int:
    """Bytes, some of them reserved by the file system."""
    status = os.statvfs(disk.path)
    return status.f_bfree * status.f_frsize


@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_that_the_disk_refuses_goes_to_the_next_tier(disk: Disk, tmp_path: Path, fault: str) -> None:
    with opened(disk, [tmp_path / "next"]) as ckpt:
        ckpt.save(1, state(1)).wait()
        with FAULTS[fault][0](disk):
            assert ckpt.save(2, state(2)).wait().step == 2
            assert list(open_store(str(disk.path / "job")).sizes("commits/")) == ["commits/000001-000000001.json"]
            assert restored_step(ckpt) == 2
        assert ckpt.save(3, state(3)).wait().step == 3
        assert restored_step(ckpt) == 3
        assert [ref.step for ref in ckpt.commits()] == [1, 2, 3]


def writers() -> list[int]:
    """Writer processes of this one."""
    return [pid for pid in descendants(os.getpid()) if "convoy.checkpoint.writer" in command_of(pid)]


def hangs(process: int) -> bool:
    """Whether any of its threads waits in the kernel, and no signal ends it."""
    return any(state_of(int(thread.name)) == "uninterruptible" for thread in Path(f"/proc/{process}/task").iterdir())


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_a_frozen_disk_holds_the_writer_and_never_training(disk: Disk) -> None:
    with opened(disk, [], deadline_seconds=DEADLINE_SECONDS) as ckpt:
        ckpt.save(1, state(1)).wait()
        (writer,) = writers()
        with disk.frozen():
            pendings = []
            assert timed(lambda: pendings.append(ckpt.save(2, state(2)))) < NEVER_HELD_UP_SECONDS
            wait_for("the writer to hang", lambda: hangs(writer))
            assert timed(lambda: pendings.append(ckpt.save(3, state(3)))) < NEVER_HELD_UP_SECONDS
            for pending in pendings:
                with pytest.raises(CheckpointError, match=f"step {pending.step} was not saved"):
                    pending.wait(timeout_seconds=60.0)
        wait_for("the end of the writer that was abandoned", lambda: writer not in writers())
        assert restored_step(ckpt) == 1
        assert ckpt.save(4, state(4)).wait().step == 4
        assert restored_step(ckpt) == 4
    assert damaged(disk.path / "job") == []


def test_a_save_that_a_frozen_disk_swallows_goes_to_the_next_tier(disk: Disk, tmp_path: Path) -> None:
    with opened(disk, [tmp_path / "next"], deadline_seconds=DEADLINE_SECONDS) as ckpt:
        ckpt.save(1, state(1)).wait()
        with disk.frozen():
            assert ckpt.save(2, state(2)).wait(timeout_seconds=60.0).step == 2
        assert restored_step(ckpt) == 2
        assert ckpt.save(3, state(3)).wait().step == 3
        assert [ref.step for ref in ckpt.commits()] == [1, 2, 3]


def test_closing_does_not_wait_for_a_frozen_disk(disk: Disk) -> None:
    ckpt = opened(disk, [], deadline_seconds=DEADLINE_SECONDS)
    ckpt.save(1, state(1)).wait()
    with disk.frozen():
        ckpt.save(2, state(2))
        assert timed(lambda: ckpt.close(deadline_seconds=1.0)) < 10.0


def test_an_unmounted_root_is_an_outage_not_an_empty_job(disk: Disk) -> None:
    with opened(disk, []) as ckpt:
        ckpt.save(1, state(1)).wait()
        disk.unmount()
        with pytest.raises(CheckpointError, match="mounted"):
            ckpt.restore(state(0))
        with pytest.raises(CheckpointError, match="step 2 was not saved"):
            ckpt.save(2, state(2)).wait()
        assert list(disk.path.rglob("*.json")) == []
        disk.mount()
        assert restored_step(ckpt) == 1
        assert ckpt.save(3, state(3)).wait().step == 3
    assert damaged(disk.path / "job") == []


def test_an_unmounted_root_of_which_another_tier_knows_is_an_outage_to_a_new_process_too(
    disk: Disk, tmp_path: Path
) -> None:
    with opened(disk, [tmp_path / "next"]) as ckpt:
        ckpt.save(1, state(1)).wait()
        wait_for("the copy of the commit", lambda: open_store(str(tmp_path / "next")).sizes("commits/"))
    disk.unmount()
    with opened(disk, [tmp_path / "next"]) as ckpt, pytest.raises(CheckpointError):
        ckpt.restore(state(0))
    disk.mount()
    with opened(disk, [tmp_path / "next"]) as ckpt:
        assert restored_step(ckpt) == 1


def _as_nobody(_: int, uri: str) -> str:
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    try:
        with Checkpoints(uri) as ckpt:
            ckpt.restore(state(0))
    except CheckpointError as error:
        return str(error)
    return "restored"


@pytest.mark.parametrize("forbidden", ["shards", "commits", "."])
def test_what_another_user_may_not_read_is_an_outage_and_nothing_is_marked(disk: Disk, forbidden: str) -> None:
    with opened(disk, []) as ckpt:
        ckpt.save(1, state(1)).wait()
    root = disk.path / "job"
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o777)
    for parent in disk.path.parents:
        if parent.stat().st_mode & 0o005 != 0o005 and str(parent).startswith("/tmp"):
            parent.chmod(0o755)
    (root / forbidden).chmod(0)
    assert "Permission denied" in on_ranks(1, _as_nobody, str(root))[0]
    (root / forbidden).chmod(0o777)
    assert damaged(root) == []
    with opened(disk, []) as ckpt:
        assert restored_step(ckpt) == 1
