"""Ways to save and load a training state that are compared: Convoy's, torch's, and the bare storage."""

import ctypes
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse
from torch.distributed.tensor import DTensor

from convoy.checkpoint.restore.load import restore
from convoy.checkpoint.save.driver import Save
from convoy.gang.task import Assignment
from convoy.job.lineage import CommitRef
from convoy.storage import open_store
from convoy.training.checkpointing.saver import Saver as TrainingSaver
from convoy.training.engines.convoy import ConvoyEngine
from convoy.training.loop import Training
from convoy.training.process_groups import Ranks

BLOCK = 8 * 2**20

State = dict[str, Any]


@dataclass
class Bench:
    """The training on one rank whose state is saved."""

    assignment: Assignment
    ranks: Ranks
    trained: ConvoyEngine
    training: Training
    """Its saver is that of the save under way."""
    state: State


class Saver(ABC):
    """One way to save, with a folder for each step. All ranks make the same calls in the same order."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.folder = folder
        self.bench = bench
        self.durable: Future[float] = Future()
        """When the newest save was durable, by `time.perf_counter`."""

    @abstractmethod
    def save(self, step: int, *, at_rest: bool) -> None:
        """Begin the save, or make it. at_rest: no step follows before it is durable."""

    @abstractmethod
    def load(self, step: int, target: State) -> None:
        """Fill `target` in place."""

    def staged(self) -> None:
        """Return when the state may change; called at rest, otherwise the optimizer's step waits by itself."""
        return

    def committed(self) -> float:
        """Wait until the newest save is durable: when it was, by `time.perf_counter`."""
        return self.durable.result()

    def forget(self, step: int) -> None:
        """Remove the save of `step`; one rank calls it."""
        shutil.rmtree(self.path(step))

    def drop_cache(self) -> None:
        """Have this host forget what was saved, so that it is next read from the storage; one rank calls it."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)

    def close(self) -> None:
        """End what works for it."""
        return

    def path(self, step: int) -> Path:
        return self.folder / f"{step:09d}"


class Convoy(Saver):
    """The saver of Convoy's training, without reading back after each commit, which no other does."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        super().__init__(folder, bench)
        assignment = bench.assignment
        checkpoint = assignment.config.checkpoint.model_copy(update={"verify": False})
        config = assignment.config.model_copy(update={"checkpoint": checkpoint})
        self.store = open_store(assignment.job_uri)
        self.saver = TrainingSaver(
            assignment.model_copy(update={"config": config}),
            bench.ranks,
            bench.trained,
            assignment.tiers,
            bench.training.events,
            None,
        )
        self.saver.start_writer()
        self.begun: Save | None = None

    def save(self, step: int, *, at_rest: bool) -> None:
        self.bench.training.saver = self.saver
        progress = self.bench.training.progress.model_copy(update={"step": step})
        self.begun = self.saver.save(progress, copy_now=at_rest)
        if self.begun is None:
            raise RuntimeError(f"step {step} was skipped")

    def committed(self) -> float:
        """By the storage's time of the commit where it is a file: ranks hear of it later."""
        assert self.begun is not None
        step = self.begun.draft.step
        self.saver.settle_all(step)
        now = time.perf_counter()
        if error := self.begun.outcome.result(timeout=0).error:
            raise RuntimeError(f"step {step}: {error}")
        commit = Path(self.bench.assignment.job_uri) / self.ref(step).name
        return commit.stat().st_ctime + time.perf_counter() - time.time() if commit.exists() else now

    def load(self, step: int, target: State) -> None:
        restored = restore([self.store], [(self.ref(step), [0])], target, group=self.bench.ranks.saving)
        if restored is None or restored.step != step:
            raise RuntimeError(f"step {step} was saved, and not restored: {restored}")

    def ref(self, step: int) -> CommitRef:
        return CommitRef(generation=self.bench.assignment.generation, step=step)

    def forget(self, step: int) -> None:
        for name in (self.ref(step).name, *self.store.sizes(f"shards/{self.ref(step).stem}/")):
            self.store.delete(name)

    def drop_cache(self) -> None:
        for name in self.store.sizes("shards/"):
            self.store.drop_cache(name)

    def close(self) -> None:
        self.saver.close(120.0)


class DcpSync(Saver):
    """torch.distributed.checkpoint.save with its file writer, which syncs each file."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        super().__init__(folder, bench)
        self.planner = DefaultSavePlanner(enable_plan_caching=True)

    def save(self, step: int, *, at_rest: bool) -> None:
        dcp.save(self.bench.state, storage_writer=FileSystemWriter(self.path(step)), planner=self.planner)
        self.durable = Future()
        self.durable.set_result(time.perf_counter())

    def load(self, step: int, target: State) -> None:
        dcp.load(target, storage_reader=FileSystemReader(self.path(step)))


class DcpAsync(DcpSync):
    """async_save at its best here: one stager kept, shared memory, staging in a thread, saving in a process."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        super().__init__(folder, bench)
        pinned = torch.cuda.is_available()
        self.stager = DefaultStager(StagingOptions(pinned, True, True, pinned))
        self.response: AsyncSaveResponse | None = None
        bench.trained.optimizer.register_step_pre_hook(lambda *_: self.staged())

    def save(self, step: int, *, at_rest: bool) -> None:
        response = dcp.async_save(
            self.bench.state,
            storage_writer=FileSystemWriter(self.path(step)),
            planner=self.planner,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self.stager,
        )
        assert isinstance(response, AsyncSaveResponse)
        durable = self.durable = Future()
        response.upload_completion.add_done_callback(lambda _: durable.set_result(time.perf_counter()))
        self.response = response

    def staged(self) -> None:
        if self.response is not None:
            self.response.staging_completion.result()

    def committed(self) -> float:
        assert self.response is not None
        self.response.upload_completion.result()
        return super().committed()

    def close(self) -> None:
        self.stager.close()


class Raw(Saver):
    """The bare storage: as many bytes as the rank's part has, from memory to one file in a thread, and back.

    Plain write(2) of 8 MiB and fsync, as anyone would: no staging, no checksum, no commit.
    """

    def __init__(self, folder: Path, bench: Bench) -> None:
        super().__init__(folder, bench)
        self.buffer = bytearray(local_bytes(bench.state))
        self.saving = ThreadPoolExecutor(1)
        view, at = memoryview(self.buffer), 0
        for tensor in flat(bench.state).values():
            source = local(tensor).detach().contiguous()
            ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(view, at)), source.data_ptr(), source.nbytes)
            at += source.nbytes

    def save(self, step: int, *, at_rest: bool) -> None:
        self.path(step).mkdir(parents=True, exist_ok=True)
        self.durable = self.saving.submit(self.written, step)

    def load(self, step: int, target: State) -> None:
        with open(self.file(step), "rb", buffering=0) as file:
            for block in self.blocks():
                if file.readinto(block) != len(block):
                    raise EOFError(f"{file.name}: ends early")

    def close(self) -> None:
        self.saving.shutdown()

    def written(self, step: int) -> float:
        with open(self.file(step), "xb", buffering=0) as file:
            for block in self.blocks():
                file.write(block)
            os.fsync(file.fileno())
        folder = os.open(self.path(step), os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return time.perf_counter()

    def blocks(self) -> Iterator[memoryview]:
        view = memoryview(self.buffer)
        return (view[start : start + BLOCK] for start in range(0, len(view), BLOCK))

    def file(self, step: int) -> Path:
        """This rank's."""
        return self.path(step) / f"{dist.get_rank()}.bin"


SAVERS: dict[str, type[Saver]] = {"convoy": Convoy, "dcp_sync": DcpSync, "dcp_async": DcpAsync, "raw": Raw}


def flat(state: State, prefix: str = "") -> dict[str, torch.Tensor]:
    """Tensors by their path."""
    tensors: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            tensors |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            tensors[f"{prefix}{key}"] = value
    return tensors


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_bytes(state: State) -> int:
    return sum(local(tensor).nbytes for tensor in flat(state).values())


def empty_like(state: State) -> State:
    """The same structure with memory of its own, written to once so that no load pays for page faults."""
    return {
        key: empty_like(value)
        if isinstance(value, dict)
        else (torch.zeros_like(value) if isinstance(value, torch.Tensor) else value)
        for key, value in state.items()
    }


def differing(one: State, other: State) -> list[str]:
    """Names of tensors that are not bit for bit the same on this rank."""
    theirs = flat(other)
    return [name for name, tensor in flat(one).items() if not torch.equal(_bits(tensor), _bits(theirs[name]))]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor).detach().contiguous().reshape(-1).view(torch.uint8)
