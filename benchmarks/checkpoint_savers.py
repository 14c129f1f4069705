"""Ways to save and load a training state that are compared: Convoy's, torch's, safetensors', and the bare storage."""

import ctypes
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_model import flat, local, local_bytes
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

from convoy.checkpoint import Checkpoints
from convoy.checkpoint import Pending as PendingSave

BLOCK = 8 * 2**20
VERIFY_SECONDS = 120.0


class Pending(Protocol):
    """A save that was asked for."""

    def staged(self) -> None:
        """Return when the state may change."""

    def wait(self) -> float:
        """Return when the checkpoint is durable: the time at which it was, as `time.perf_counter`."""


class Saver(Protocol):
    """One way to save; all ranks call the same methods in the same order."""

    name: str
    joins_itself: bool
    """Whether the optimizer's update waits for the staging by a hook."""

    def save(self, step: int, state: dict[str, Any]) -> Pending: ...

    def load(self, step: int, target: dict[str, Any]) -> None:
        """Fill `target` in place."""

    def quiet(self, step: int) -> None:
        """Return when nothing is done for the save of `step` any more."""

    def forget(self, step: int) -> None:
        """Remove the save of `step`."""

    def close(self) -> None: ...


class Done:
    """Of a save that returns when all is over."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def staged(self) -> None:
        pass

    def wait(self) -> float:
        return self._at


class Synchronous:
    """What all savers share whose save returns when the bytes are durable, with a folder for each step."""

    name = ""
    joins_itself = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        return self.folder / f"{step:09d}"

    def quiet(self, step: int) -> None:
        pass

    def forget(self, step: int) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self.path(step))
        dist.barrier()

    def close(self) -> None:
        pass


class Convoy:
    """Convoy's, without reading back after each commit, which no other does."""

    name = "convoy"
    joins_itself = True
    verify = False

    def __init__(self, folder: Path, optimizer: torch.optim.Optimizer) -> None:
        self.folder = folder
        self.checkpoints = Checkpoints(str(folder), optimizer=optimizer, verify=self.verify)

    def save(self, step: int, state: dict[str, Any]) -> "ConvoyPending":
        pending = self.checkpoints.save(step, state)
        if pending.skipped:
            raise RuntimeError(f"step {step} was skipped")
        return ConvoyPending(self.folder, pending)

    def load(self, step: int, target: dict[str, Any]) -> None:
        restored = self.checkpoints.restore(target)
        if restored is None or restored.step != step:
            raise RuntimeError(f"step {step} was saved, and not restored: {restored}")

    def quiet(self, step: int) -> None:
        pass

    def forget(self, step: int) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            for path in (*self.folder.glob(f"commits/*-{step:09d}.json"), *self.folder.glob(f"shards/*-{step:09d}")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        dist.barrier()

    def close(self) -> None:
        self.checkpoints.close()


class ConvoyVerified(Convoy):
    """As it comes: every commit is read back from the storage by a writer process, between saves."""

    name = "convoy_verified"
    verify = True

    def quiet(self, step: int) -> None:
        deadline = time.monotonic() + VERIFY_SECONDS
        while not list(self.folder.glob(f"verified/*-{step:09d}/all.json")):
            if time.monotonic() > deadline:
                raise TimeoutError(f"step {step} was not read back within {VERIFY_SECONDS:.0f} s")
            time.sleep(0.02)

    def forget(self, step: int) -> None:
        self.quiet(step)
        super().forget(step)


class ConvoyPending:
    def __init__(self, folder: Path, pending: PendingSave) -> None:
        self._folder = folder
        self._pending = pending

    def staged(self) -> None:
        self._pending.staged()

    def wait(self) -> float:
        """Of a commit from before anyone asked, the time that the file system tells."""
        asked = time.perf_counter()
        commit = self._pending.wait()
        returned = time.perf_counter()
        made = (self._folder / commit.ref.name).stat().st_ctime + returned - time.time()
        return made if made < asked else returned


class TorchSave(Synchronous):
    """torch.save of the rank's own parts into one file, and fsync."""

    name = "torch_save"

    def save(self, step: int, state: dict[str, Any]) -> Done:
        self.path(step).mkdir(parents=True, exist_ok=True)
        with open(self._file(step), "wb") as file:
            torch.save({name: local(tensor) for name, tensor in flat(state).items()}, file)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.path(step))
        return Done()

    def load(self, step: int, target: dict[str, Any]) -> None:
        _fill(target, torch.load(self._file(step), weights_only=True))

    def _file(self, step: int) -> Path:
        return self.path(step) / f"{dist.get_rank()}.pt"


class Safetensors(Synchronous):
    """safetensors of the rank's own parts in one file, and fsync."""

    name = "safetensors"

    def save(self, step: int, state: dict[str, Any]) -> Done:
        self.path(step).mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file({n: local(t).contiguous() for n, t in flat(state).items()}, self._file(step))
        sync_file(self._file(step))
        sync_folder(self.path(step))
        return Done()

    def load(self, step: int, target: dict[str, Any]) -> None:
        _fill(target, safetensors.torch.load_file(self._file(step)))

    def _file(self, step: int) -> Path:
        return self.path(step) / f"{dist.get_rank()}.safetensors"


class DcpSync(Synchronous):
    """torch.distributed.checkpoint.save with its file writer, which syncs each file."""

    name = "dcp_sync"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.planner = DefaultSavePlanner(enable_plan_caching=True)

    def save(self, step: int, state: dict[str, Any]) -> Done:
        dcp.save(state, storage_writer=FileSystemWriter(self.path(step)), planner=self.planner)
        return Done()

    def load(self, step: int, target: dict[str, Any]) -> None:
        dcp.load(target, storage_reader=FileSystemReader(self.path(step)))


class DcpAsync(DcpSync):
    """async_save at its best here: one stager kept, shared memory, staging in a thread, saving in a process."""

    name = "dcp_async"
    joins_itself = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pinned = torch.cuda.is_available()
        self.stager = DefaultStager(StagingOptions(pinned, True, True, pinned))

    def save(self, step: int, state: dict[str, Any]) -> "DcpPending":
        response = dcp.async_save(
            state,
            storage_writer=FileSystemWriter(self.path(step)),
            planner=self.planner,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self.stager,
        )
        assert isinstance(response, AsyncSaveResponse)
        return DcpPending(response)

    def close(self) -> None:
        self.stager.close()


class DcpPending:
    def __init__(self, response: AsyncSaveResponse) -> None:
        self._response = response
        self._at: Future[float] = Future()
        response.upload_completion.add_done_callback(lambda _: self._at.set_result(time.perf_counter()))

    def staged(self) -> None:
        self._response.staging_completion.result()

    def wait(self) -> float:
        self._response.upload_completion.result()
        return self._at.result()


class Raw(Synchronous):
    """The bare storage: as many bytes as the rank's part has, from memory to one file in a thread, and back.

    Plain write(2) of 8 MiB and fsync, as anyone would: no staging, no checksum, no commit.
    """

    name = "raw"

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        super().__init__(folder)
        self.buffer = mmap.mmap(-1, -(-local_bytes(state) // mmap.PAGESIZE) * mmap.PAGESIZE)
        view = memoryview(self.buffer)
        at = 0
        for tensor in flat(state).values():
            source = local(tensor).detach().contiguous()
            ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(view, at)), source.data_ptr(), source.nbytes)
            at += source.nbytes

    def save(self, step: int, state: dict[str, Any]) -> "RawPending":
        self.path(step).mkdir(parents=True, exist_ok=True)
        return RawPending(lambda: self._write(step))

    def load(self, step: int, target: dict[str, Any]) -> None:
        view = memoryview(self.buffer)
        with open(self._file(step), "rb", buffering=0) as file:
            at = 0
            while at < len(view):
                at += file.readinto(view[at : at + BLOCK]) or _ended(at, len(view))

    def _write(self, step: int) -> None:
        view = memoryview(self.buffer)
        with open(self._file(step), "wb", buffering=0) as file:
            at = 0
            while at < len(view):
                at += file.write(view[at : at + BLOCK])
            os.fsync(file.fileno())
        sync_folder(self.path(step))

    def _file(self, step: int) -> Path:
        return self.path(step) / f"{dist.get_rank()}.bin"


class RawDirect(Raw):
    """The storage driven as hard as it goes: four threads, past the page cache."""

    name = "raw_direct"

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        super().__init__(folder, state)
        self.threads = ThreadPoolExecutor(4)

    def load(self, step: int, target: dict[str, Any]) -> None:
        self._in_blocks(step, os.O_RDONLY, os.preadv)

    def close(self) -> None:
        self.threads.shutdown()

    def _write(self, step: int) -> None:
        self._in_blocks(step, os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.pwritev)
        sync_file(self._file(step))
        sync_folder(self.path(step))

    def _in_blocks(self, step: int, flags: int, move: Callable[[int, list[memoryview], int], int]) -> None:
        view = memoryview(self.buffer)
        fd = os.open(self._file(step), flags | os.O_DIRECT, 0o644)

        def one(start: int) -> None:
            end, at = min(len(view), start + BLOCK), start
            while at < end:
                at += move(fd, [view[at:end]], at) or _ended(at, end)

        try:
            list(self.threads.map(one, range(0, len(view), BLOCK)))
        finally:
            os.close(fd)


class RawPending:
    def __init__(self, work: Any) -> None:
        self._at = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._thread.start()

    def staged(self) -> None:
        pass

    def wait(self) -> float:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._at

    def _run(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # told by wait()
            self._error = error
        self._at = time.perf_counter()


def sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    sync_file(path)


def drop_cache(folder: Path) -> None:
    """Have this host forget the files below the folder, so that they are next read from the storage."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _fill(target: dict[str, Any], loaded: dict[str, torch.Tensor]) -> None:
    for name, tensor in flat(target).items():
        local(tensor).copy_(loaded[name])


def _ended(at: int, wanted: int) -> int:
    raise EOFError(f"{at} bytes of {wanted}")


SAVERS = ("convoy", "convoy_verified", "torch_save", "dcp_sync", "dcp_async", "safetensors", "raw", "raw_direct")


def make_saver(name: str, folder: Path, training: Any) -> Saver:
    """training: whose state will be saved."""
    if name in ("convoy", "convoy_verified"):
        return (Convoy if name == "convoy" else ConvoyVerified)(folder, training.optimizer)
    if name in ("raw", "raw_direct"):
        return (Raw if name == "raw" else RawDirect)(folder, training.state)
    return {kind.name: kind for kind in (TorchSave, DcpSync, DcpAsync, Safetensors)}[name](folder)
