"""Ways to save and load a training state that are compared: Convoy's, torch's, boto3's, and the bare storage."""

import ctypes
import mmap
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from botocore.config import Config
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse
from torch.distributed.tensor import DTensor

from convoy.checkpoint.restore.load import restore
from convoy.checkpoint.save.driver import Save
from convoy.gang.task import Assignment
from convoy.job.lineage import CommitRef
from convoy.storage import open_store
from convoy.training.build import Trained
from convoy.training.checkpointing.saver import Saver as TrainingSaver
from convoy.training.loop import Training
from convoy.training.process_groups import Ranks

BLOCK = 8 * 2**20
VERIFY_SECONDS = 120.0
BUCKET = "benchmark"
S3_THREADS = 8

State = dict[str, Any]


@dataclass
class Bench:
    """The training on one rank whose state is saved."""

    assignment: Assignment
    ranks: Ranks
    trained: Trained
    training: Training
    """Its saver is that of the save under way."""
    state: State


class Saver:
    """One way to save, with a folder for each step. All ranks make the same calls in the same order; `save` returns
    when the bytes are durable, unless a subclass does better."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.folder = folder
        self.bench = bench
        self.durable: Future[float] = Future()
        """When the newest save was durable, by `time.perf_counter`."""

    def save(self, step: int, *, at_rest: bool) -> None:
        """at_rest: no step follows before it is durable."""
        self.path(step).mkdir(parents=True, exist_ok=True)
        self.write(step)
        self.durable = Future()
        self.durable.set_result(time.perf_counter())

    def write(self, step: int) -> None:
        raise NotImplementedError

    def load(self, step: int, target: State) -> None:
        """Fill `target` in place."""
        raise NotImplementedError

    def staged(self) -> None:
        """Return when the state may change; called at rest, otherwise the optimizer's step waits by itself."""

    def committed(self) -> float:
        """Wait until the newest save is durable: when it was, by `time.perf_counter`."""
        return self.durable.result()

    def quiet(self, step: int) -> None:
        """Return when nothing is done for the save of `step` any more."""

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
        pass

    def path(self, step: int) -> Path:
        return self.folder / f"{step:09d}"

    def file(self, step: int) -> Path:
        """This rank's."""
        return self.path(step) / f"{dist.get_rank()}.bin"


class Convoy(Saver):
    """The saver of Convoy's training, without reading back after each commit, which no other does."""

    verify = False

    def __init__(self, folder: Path, bench: Bench) -> None:
        super().__init__(folder, bench)
        assignment = bench.assignment
        checkpoint = assignment.config.checkpoint.model_copy(update={"verify": self.verify})
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
        self.saver.start()
        self.begun: Save | None = None

    def save(self, step: int, *, at_rest: bool) -> None:
        self.bench.training.saver = self.saver
        progress = self.bench.training.progress.model_copy(update={"step": step})
        self.begun = self.saver.save(progress, now=at_rest)
        if self.begun is None:
            raise RuntimeError(f"step {step} was skipped")

    def committed(self) -> float:
        """By the storage's time of the commit where it is a file: ranks hear of it later."""
        assert self.begun is not None
        step = self.begun.draft.step
        self.saver.finish(step)
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
        self.saver.close(VERIFY_SECONDS)


class ConvoyVerified(Convoy):
    """As it comes: every commit is read back from the storage by a writer process, between saves."""

    verify = True

    def quiet(self, step: int) -> None:
        deadline = time.monotonic() + VERIFY_SECONDS
        while not self.store.sizes(f"verified/{self.ref(step).stem}/all.json"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"step {step} was not read back within {VERIFY_SECONDS:.0f} s")
            time.sleep(0.02)


class DcpSync(Saver):
    """torch.distributed.checkpoint.save with its file writer, which syncs each file."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        super().__init__(folder, bench)
        self.planner = DefaultSavePlanner(enable_plan_caching=True)

    def write(self, step: int) -> None:
        dcp.save(self.bench.state, storage_writer=FileSystemWriter(self.path(step)), planner=self.planner)

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

    threads = 1
    flags = 0

    def __init__(self, folder: Path, bench: Bench) -> None:
        super().__init__(folder, bench)
        self.buffer = mmap.mmap(-1, -(-local_bytes(bench.state) // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.saving, self.pool = ThreadPoolExecutor(1), ThreadPoolExecutor(self.threads)
        view, at = memoryview(self.buffer), 0
        for tensor in flat(bench.state).values():
            source = local(tensor).detach().contiguous()
            ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(view, at)), source.data_ptr(), source.nbytes)
            at += source.nbytes

    def save(self, step: int, *, at_rest: bool) -> None:
        self.path(step).mkdir(parents=True, exist_ok=True)
        self.durable = self.saving.submit(self.written, step)

    def load(self, step: int, target: State) -> None:
        self.move(step, os.O_RDONLY, os.preadv)

    def close(self) -> None:
        self.saving.shutdown()
        self.pool.shutdown()

    def written(self, step: int) -> float:
        self.move(step, os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.pwritev)
        sync(self.file(step), self.path(step))
        return time.perf_counter()

    def move(self, step: int, flags: int, move: Callable[[int, list[memoryview], int], int]) -> None:
        """The whole buffer, to the file or from it."""
        fd, view = os.open(self.file(step), flags | self.flags, 0o644), memoryview(self.buffer)

        def block(start: int) -> None:
            end = min(len(view), start + BLOCK)
            while start < end:
                moved = move(fd, [view[start:end]], start)
                if not moved:
                    raise EOFError(f"{start} bytes of {end}")
                start += moved

        try:
            list(self.pool.map(block, range(0, len(view), BLOCK)))
        finally:
            os.close(fd)


class RawDirect(Raw):
    """The storage driven as hard as it goes: four threads, past the page cache."""

    threads = 4
    flags = os.O_DIRECT


class RawS3(Saver):
    """The least that can be done with boto3: a multipart upload and ranged GETs of 8 MiB in threads, of as many bytes
    as the rank's part has; nothing is signed, and no body has a checksum."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        super().__init__(folder, bench)
        config = Config(
            max_pool_connections=S3_THREADS,
            s3={"payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self.s3 = boto3.session.Session().client("s3", config=config)
        self.buffer = bytearray(local_bytes(bench.state))
        self.saving, self.pool = ThreadPoolExecutor(1), ThreadPoolExecutor(S3_THREADS)

    def save(self, step: int, *, at_rest: bool) -> None:
        self.durable = self.saving.submit(self.written, step)

    def load(self, step: int, target: State) -> None:
        def receive(start: int) -> None:
            with memoryview(self.buffer)[start : start + BLOCK] as part:
                span = f"bytes={start}-{start + len(part) - 1}"
                body, at = self.s3.get_object(**self.key(step), Range=span)["Body"], 0
                while at < len(part):
                    received = body.readinto(part[at:])
                    if not received:
                        raise EOFError(f"the reply ended at byte {start + at}")
                    at += received

        list(self.pool.map(receive, range(0, len(self.buffer), BLOCK)))

    def written(self, step: int) -> float:
        where = self.key(step)
        upload = self.s3.create_multipart_upload(**where)["UploadId"]

        def send(number: int) -> dict[str, Any]:
            with memoryview(self.buffer)[(number - 1) * BLOCK : number * BLOCK] as part:
                reply = self.s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=bytes(part))
            return {"PartNumber": number, "ETag": reply["ETag"]}

        parts = list(self.pool.map(send, range(1, -(-len(self.buffer) // BLOCK) + 1)))
        self.s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})
        return time.perf_counter()

    def forget(self, step: int) -> None:
        for rank in range(dist.get_world_size()):
            self.s3.delete_object(**self.key(step, rank))

    def close(self) -> None:
        self.saving.shutdown()
        self.pool.shutdown()

    def key(self, step: int, rank: int | None = None) -> Any:
        """The object of a rank, by default of this one."""
        return {"Bucket": BUCKET, "Key": f"raw/{step}/{dist.get_rank() if rank is None else rank}"}


SAVERS: dict[str, type[Saver]] = {
    "convoy": Convoy,
    "convoy_verified": ConvoyVerified,
    "dcp_sync": DcpSync,
    "dcp_async": DcpAsync,
    "raw": Raw,
    "raw_direct": RawDirect,
}
S3_SAVERS: dict[str, type[Saver]] = {"convoy": Convoy, "convoy_verified": ConvoyVerified, "raw": RawS3}


def sync(*paths: Path) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


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
