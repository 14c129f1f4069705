"""Checkpoints without torch: the parts of a small state, written and read back by the library's own functions."""

import random
from dataclasses import dataclass
from typing import Any

from convoy.checkpoint.commits import chunk_span, create_commit, read_chunk, read_commit, read_part
from convoy.checkpoint.format import CHUNK_BYTES, Commit, PlainValue, TensorInfo, TensorShard
from convoy.checkpoint.messages import SetLayout, WritePart
from convoy.checkpoint.writer.coordinator import assemble_commit
from convoy.checkpoint.writer.parts import write_part
from convoy.job.generations import form_generation
from convoy.job.lineage import CommitRef, newest_commit, read_history
from convoy.storage import Store


@dataclass(frozen=True)
class TinyState:
    """One vector of bytes, split over writers; what it holds depends on the step alone."""

    sizes: tuple[int, ...] = (5000, 3000)
    """Bytes of each writer's shard."""
    chunk_bytes: int = CHUNK_BYTES

    @property
    def writers(self) -> int:
        return len(self.sizes)

    def data(self, writer: int, step: int) -> bytes:
        return random.Random(f"{step} {writer}").randbytes(self.sizes[writer])

    def layout(self, writer: int) -> SetLayout:
        shard = TensorShard(
            name="w",
            dtype="uint8",
            shape=[sum(self.sizes)],
            offset=[sum(self.sizes[:writer])],
            size=[self.sizes[writer]],
            file=0,
            start=0,
            bytes=self.sizes[writer],
        )
        return SetLayout(shards=[shard], file_bytes=[self.sizes[writer]])

    def draft(self, generation: int, step: int) -> Commit:
        tensors = {"w": TensorInfo(dtype="uint8", shape=[sum(self.sizes)])}
        return Commit(
            job="tiny",
            generation=generation,
            step=step,
            attempt="draft",
            parent=None,
            world_size=self.writers,
            tensors=tensors,
        )

    def request(self, store: str, writer: int, step: int, *, generation: int = 1, attempt: str = "a") -> WritePart:
        """store: its URI. The buffer's path is left empty."""
        return WritePart(
            tier=store,
            buffer="",
            generation=generation,
            step=step,
            attempt=attempt,
            writer=writer,
            writers=self.writers,
            values=[PlainValue(name="step", value=step)] if writer == 0 else [],
            draft=self.draft(generation, step) if writer == 0 else None,
            deadline_seconds=30.0,
        )

    def write(self, store: Store, request: WritePart) -> None:
        """Put the request's part, as its writer would."""
        data = memoryview(self.data(request.writer, request.step))
        layout = self.layout(request.writer)
        write_part(store, request, layout, data, 2, chunk_bytes=self.chunk_bytes)

    def save(self, store: Store, step: int, *, generation: int = 1, attempt: str = "a") -> Commit:
        """A whole save, writer after writer."""
        requests = [
            self.request(store.uri, writer, step, generation=generation, attempt=attempt)
            for writer in range(self.writers)
        ]
        for request in reversed(requests):
            self.write(store, request)
        return commit_when_complete(store, store, requests[0])


def commit_when_complete(store: Store, root: Store | None, request: WritePart, **waiting: Any) -> Commit:
    """Wait for the parts of an attempt and commit it, as the coordinator's process does."""
    return create_commit(store, assemble_commit(store, root, request, **waiting))


def form(store: Store, *others: Store) -> int:
    """Form the next generation of the job; its number."""
    formation = f"test {random.random()}"
    made = form_generation(
        store, formation=formation, nodes=1, world_size=2, config_hash="c", rendezvous="", others=others
    )
    return made.generation


def restored(store: Store, ref: CommitRef) -> list[bytes]:
    """What a commit holds: each writer's files, every chunk checked."""
    commit = read_commit(store, ref)
    return [part_bytes(store, commit, writer) for writer in range(len(commit.parts))]


def part_bytes(store: Store, commit: Commit, writer: int) -> bytes:
    record, data = read_part(store, commit, writer), bytearray()
    for file in record.files:
        for index in range(len(file.crc32c)):
            buffer = bytearray(chunk_span(file, index, record.chunk_bytes)[1])
            read_chunk(store, commit, file, index, memoryview(buffer), record.chunk_bytes)
            data += buffer
    return bytes(data)


def newest(store: Store) -> CommitRef | None:
    return newest_commit(read_history(store))
