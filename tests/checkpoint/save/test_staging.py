"""What is staged is the state of the moment, whatever its tensors look like, in memory that no one else can starve."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from convoy.checkpoint.save import shm_buffers, staging
from convoy.checkpoint.save.shm_buffers import Buffers, ProcessFolder, remove_leftovers
from convoy.checkpoint.save.staging import SMALL_BYTES, StagedCopy, Stager
from convoy.checkpoint.state.layout import Layout, make_layout, make_plan

LARGE = SMALL_BYTES


@pytest.fixture
def stager() -> Iterator[Stager]:
    made = Stager(torch.device("cpu"))
    yield made
    made.close()


def layout_of(tensors: dict[str, torch.Tensor], file_bytes: int = 2**30) -> Layout:
    return make_layout(make_plan(tensors, 0, None).held, file_bytes)


def bytes_in(staged: StagedCopy, found: Layout) -> dict[tuple[str, tuple[int, ...]], bytes]:
    """Of each box, as a writer process reads them."""
    data = Path(staged.path).read_bytes()
    pieces = zip(found.starts(), found.boxes, strict=True)
    return {(box.name, box.offset): data[start : start + box.bytes] for start, box in pieces}


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().resolve_conj().reshape(-1).view(torch.uint8).numpy())


ODD = {
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "strided": torch.arange(20.0)[::2],
    "expanded": torch.ones(3, 1).expand(3, 4),
    "conjugated": torch.view_as_complex(torch.arange(8.0).reshape(4, 2)).conj(),
    "number": torch.tensor(2.5),
    "nothing": torch.empty(0, 7),
    "bf16": torch.arange(5, dtype=torch.bfloat16),
    "fp8": torch.arange(5.0).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False, True]),
    "int64": torch.arange(-3, 3),
    "large": torch.arange(LARGE, dtype=torch.int32),
    "large and transposed": torch.arange(LARGE * 2, dtype=torch.int16).reshape(2, LARGE).t(),
}


def test_a_tensor_is_staged_as_its_bytes_in_c_order(stager: Stager) -> None:
    found = layout_of(ODD)
    for deferred in ([], list(ODD.values())):
        staged = stager.stage(0, found, ODD, deferred)
        staged.wait()
        there = bytes_in(staged, found)
        assert there == {(name, (0,) * t.ndim): raw(t) for name, t in ODD.items() if t.numel()}


def test_a_tensor_that_is_cut_is_staged_in_its_pieces(stager: Stager) -> None:
    tensors = {"t": torch.arange(LARGE).reshape(4, LARGE // 4), "u": torch.zeros(3)}
    found = layout_of(tensors, LARGE)
    staged = stager.stage(1, found, tensors, [])
    staged.wait()
    there = bytes_in(staged, found)
    assert len(there) > 8
    assert b"".join(there[name, offset] for name, offset in there if name == "t") == raw(tensors["t"])


class Held(Stager):
    """Its thread does not begin to copy before it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        super().__init__(torch.device("cpu"))

    def _run_tasks(self) -> None:
        self.go.wait()
        super()._run_tasks()


def test_only_what_the_optimizer_owns_may_wait_and_join_waits_for_it() -> None:
    stager = Held()
    owned, other = torch.ones(4 * LARGE), torch.ones(4 * LARGE)
    view = owned.view(2, -1)[1]
    tensors = {"owned": view, "other": other}
    found = layout_of(tensors)

    staged = stager.stage(0, found, tensors, [owned])
    other.zero_()  # a BatchNorm's forward
    assert not staged.done
    assert bytes_in(staged, found)["other", (0,)] == raw(torch.ones(4 * LARGE))
    stager.join()  # copies itself where the thread has not
    owned.zero_()  # the optimizer's step

    assert staged.done
    assert bytes_in(staged, found)["owned", (0,)] == raw(torch.ones(2 * LARGE))
    stager.go.set()
    stager.close()


def test_many_are_copied_in_one_go_and_a_long_one_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each go asks training for Python's lock."""
    monkeypatch.setattr(staging, "BATCH_BYTES", 8 * LARGE)
    goes = list[int]()
    copy = torch._foreach_copy_

    def counted(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        goes.append(sum(source.nbytes for source in sources))
        copy(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    stager = Held()
    small = {f"small {i}": torch.full((LARGE,), float(i)) for i in range(4)}
    tensors = {**small, "long": torch.arange(5 * LARGE).reshape(5, LARGE)}
    found = layout_of(tensors)
    staged = stager.stage(0, found, tensors, list(tensors.values()))
    assert not goes
    stager.go.set()
    staged.wait()

    assert bytes_in(staged, found) == {(name, (0,) * t.ndim): raw(t) for name, t in tensors.items()}
    assert goes == [8 * LARGE] * 7
    stager.close()


def test_the_thread_that_copies_uses_one_core_and_leaves_the_others_theirs() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        stager = Stager(torch.device("cpu"))
        found = list[int]()
        stager._tasks.put(lambda: found.append(torch.get_num_threads()))
        stager._tasks.put(lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
        stager.finish_tasks()
        new = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        new.start()
        new.join()
        assert found == [1, staging.NICENESS, 3]
        assert torch.get_num_threads() == 3
        stager.close()
    finally:
        torch.set_num_threads(before)


def test_what_is_asked_for_after_a_copy_happens_after_it_and_in_order(stager: Stager) -> None:
    tensors = {"t": torch.ones(4 * LARGE)}
    found = layout_of(tensors)
    seen = list[tuple[int, bool]]()
    for slot in (0, 1):
        staged = stager.stage(slot, found, tensors, list(tensors.values()))
        stager.call_after(staged, lambda slot=slot, staged=staged: seen.append((slot, staged.done)))  # type: ignore[misc]
    stager.finish_tasks()
    assert seen == [(0, True), (1, True)]


def test_a_slot_keeps_its_memory_from_save_to_save_and_grows_when_it_must(stager: Stager) -> None:
    small, large = {"t": torch.ones(10)}, {"t": torch.ones(10), "u": torch.ones(LARGE)}
    paths = [stager.stage(0, layout_of(tensors), tensors, []).path for tensors in (large, small, large)]
    assert len(set(paths)) == 1
    larger = {"t": torch.ones(2 * LARGE)}
    assert stager.stage(0, layout_of(larger), larger, []).path != paths[0]
    assert not Path(paths[0]).exists()


def test_a_discarded_slot_is_never_written_again(stager: Stager) -> None:
    tensors = {"t": torch.ones(LARGE)}
    found = layout_of(tensors)
    first = stager.stage(0, found, tensors, [])
    with open(first.path, "rb") as reader:  # as a writer process that was given up
        stager.discard(0)
        tensors["t"].zero_()
        second = stager.stage(0, found, tensors, [])
        assert second.path != first.path
        assert reader.read()[: found.bytes] == raw(torch.ones(LARGE))


def test_every_page_of_a_buffer_is_there_before_it_is_used() -> None:
    pool = Buffers(pin=False)
    buffer = pool.get_or_make(0, 2**20)
    assert Path(buffer.path).stat().st_blocks * 512 >= 2**20
    pool.close()
    assert not Path(buffer.path).exists()


def test_where_shared_memory_is_small_the_buffers_are_the_kernels_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check the process would be killed when it touches a page for which there is no room."""
    real = os.posix_fallocate

    def full(descriptor: int, start: int, length: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to("/dev/shm"):
            raise OSError(28, "No space left on device")
        real(descriptor, start, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    pool = Buffers(pin=False)
    buffer = pool.get_or_make(0, 10_000)
    buffer.bytes[:] = 7
    read = f"print(open({buffer.path!r}, 'rb').read().count(7))"
    found = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "10000"
    pool.close()


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_has_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_buffers, "SHARED_MEMORY", tmp_path)
    (tmp_path / "convoy-other").mkdir()
    live = ProcessFolder()
    left = tmp_path / "convoy-1-2-abc"
    left.mkdir()
    (left / "0-1").write_bytes(b"x")
    remove_leftovers()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["convoy-other", live.path.name])
    live.remove()
    assert [p.name for p in tmp_path.iterdir()] == ["convoy-other"]


def test_a_fork_that_ends_does_not_remove_its_parents_folder() -> None:
    live = ProcessFolder()
    child = os.fork()
    if child == 0:
        live.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert live.path.exists()
    live.remove()


def test_where_shared_memory_takes_no_folder_buffers_are_anonymous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/shm may be missing, read-only, or out of inodes."""
    monkeypatch.setattr(shm_buffers, "SHARED_MEMORY", tmp_path / "missing")
    kept = shm_buffers.Buffers(pin=False)
    for length in (10, 20):
        assert kept.get_or_make(0, length).path.startswith("/proc/")
    kept.close()
