"""Resharding: a commit of any number of ranks fills the tensors of a state that may be sharded in another way.

Torch's planner says which bytes go where, and every chunk is checked. A chunk that lies in one piece of one tensor is
read straight into that tensor's memory. What must be cut out of a shard that was spread in another way, or goes to a
device, lands in memory of its own first.
"""

import ctypes
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from convoy.checkpoint.commits import TensorsMissingError, chunk_span, read_chunk
from convoy.checkpoint.format import Commit, DataFile, PartRecord, TensorShard
from convoy.checkpoint.state.flat_shard import FlatShard
from convoy.checkpoint.state.layout import local_tensor, row_order, row_pieces
from convoy.checkpoint.state.values import dtype_of
from convoy.checkpoint.writer.coordinator import AttemptFailedError, checked_tensor_infos
from convoy.storage import Store

SCRATCH_BYTES = 2**30
"""Most memory for bytes that do not land in their tensor at once."""


class IncompleteReadPlanError(RuntimeError):
    """The commit holds what this rank needs, and torch's planner does not see where: no fault of the commit."""


@dataclass
class ReadPiece:
    """A stretch of a data file that this rank needs, and where its bytes land."""

    writer: int
    shard: TensorShard
    start: int
    """Bytes in the file; `end` is exclusive."""
    end: int
    target: torch.Tensor
    """Box of this rank's own tensor."""
    direct: bool
    """The stretch is the target's memory, byte for byte."""
    corner: tuple[int, ...]
    """The box's first element in the shard."""
    landing: memoryview = field(default_factory=lambda: memoryview(b""))

    @property
    def bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class _Chunk:
    file: DataFile
    index: int
    start: int
    length: int
    pieces: list[ReadPiece]
    chunk_bytes: int


@torch.no_grad()
def reshard(
    store: Store, commit: Commit, parts: Sequence[PartRecord], tensors: Mapping[str, torch.Tensor], threads: int
) -> int:
    """Fill this rank's own part of `tensors`, whose names, shapes and types are the commit's; how many bytes.

    Raises DamagedCommitError, StoreUnavailable, IncompleteReadPlanError: the tensors hold anything then.
    """
    pieces = sorted(_plan_reads(commit, parts, tensors), key=lambda p: (p.writer, p.shard.file, p.start))
    with ThreadPoolExecutor(threads, "checkpoint-read") as pool:
        reader = _ChunkReader(store, commit)
        for batch in _batches(pieces):
            _allocate_landings(batch)
            work = [pool.submit(reader.read, chunk) for chunk in _chunks(parts, batch)]
            done, rest = wait(work, return_when=FIRST_EXCEPTION)
            for waiting in rest:
                waiting.cancel()
            for finished in done:
                finished.result()
            _copy_to_tensors(batch)
    return sum(piece.bytes for piece in pieces)


def _plan_reads(commit: Commit, parts: Sequence[PartRecord], tensors: Mapping[str, torch.Tensor]) -> list[ReadPiece]:
    """Raises TensorsMissingError if the parts do not hold all that is needed, IncompleteReadPlanError if they do."""
    shards = {
        (shard.name, tuple(shard.offset)): (part.writer, shard)
        for part in parts
        for shard in part.shards
        if shard.bytes
    }
    wanted = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    counts, pieces = dict.fromkeys(wanted, 0), list[ReadPiece]()
    for item, target in _plan_read_items(wanted, _torch_metadata(commit, (shard for _, shard in shards.values()))):
        name, count = item.dest_index.fqn, math.prod(item.lengths)
        if count:
            counts[name] += count
            pieces.append(_make_piece(item, *shards[name, tuple(item.storage_index.offset or ())], target))
    for name, count in counts.items():
        if count != local_tensor(wanted[name]).numel():
            _check_tensor_whole(commit, parts, name)
            raise IncompleteReadPlanError(
                f"torch {torch.__version__} plans to read {count} of the {local_tensor(wanted[name]).numel()} elements "
                f"of {name} that this rank needs; {commit.prefix} holds it whole"
            )
    return pieces


def _plan_read_items(wanted: Mapping[str, torch.Tensor], metadata: Metadata) -> Iterator[tuple[ReadItem, torch.Tensor]]:
    """The items to be read, each with the box of this rank's memory that it counts from."""
    flat = {name: tensor for name, tensor in wanted.items() if isinstance(tensor, FlatShard)}
    in_order = {name: tensor for name, tensor in wanted.items() if name not in flat and not row_order(tensor)}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(in_order, metadata, is_coordinator=False)
    for item in planner.create_local_plan().items:
        yield item, local_tensor(in_order[item.dest_index.fqn])
    for name, offset, target in _boxes_in_pieces(wanted):
        saved = metadata.state_dict_metadata[name]
        assert isinstance(saved, TensorStorageMetadata)
        chunk = ChunkStorageMetadata(torch.Size(offset), target.shape)
        for item in create_read_items_for_chunk_list(name, saved, [chunk]):
            yield item, target


def _boxes_in_pieces(wanted: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, tuple[int, ...], torch.Tensor]]:
    """Name, index and memory of each box of the tensors that torch's planner does not know to be in pieces."""
    for name, tensor in wanted.items():
        if isinstance(tensor, FlatShard):
            for box in tensor.boxes():
                yield name, box.offset, tensor.box_view(box.offset, box.size)
            continue
        for part in row_pieces(tensor):
            yield name, part.offset, narrow_tensor_by_index(local_tensor(tensor), part.inner, part.size)


def _check_tensor_whole(commit: Commit, parts: Sequence[PartRecord], name: str) -> None:
    """Raises TensorsMissingError unless the parts' shards are the whole tensor."""
    try:
        whole = checked_tensor_infos(list(parts)).get(name)
    except AttemptFailedError as error:
        raise TensorsMissingError(f"{commit.prefix}: {error}") from error
    if whole != commit.tensors[name]:
        raise TensorsMissingError(f"{commit.prefix}: its parts do not hold the whole of {name}")


def _torch_metadata(commit: Commit, shards: Iterable[TensorShard]) -> Metadata:
    metadata = {
        name: TensorStorageMetadata(TensorProperties(dtype=dtype_of(info.dtype)), torch.Size(info.shape), [])
        for name, info in commit.tensors.items()
    }
    for shard in shards:
        metadata[shard.name].chunks.append(ChunkStorageMetadata(torch.Size(shard.offset), torch.Size(shard.size)))
    return Metadata(dict(metadata))


def _make_piece(item: ReadItem, writer: int, shard: TensorShard, own: torch.Tensor) -> ReadPiece:
    target = narrow_tensor_by_index(own, item.dest_offsets, item.lengths)
    corner, lengths = tuple(item.storage_offsets), tuple(item.lengths)
    width = target.element_size()
    strides = _strides(shard.size)
    first = sum(c * s for c, s in zip(corner, strides, strict=True))
    last = first + sum((n - 1) * s for n, s in zip(lengths, strides, strict=True))
    in_one_stretch = last - first + 1 == math.prod(lengths)
    return ReadPiece(
        writer,
        shard,
        shard.start + first * width,
        shard.start + (last + 1) * width,
        target,
        in_one_stretch and target.device.type == "cpu" and _is_plain_memory(target),
        corner,
    )


def _batches(pieces: Sequence[ReadPiece]) -> Iterable[list[ReadPiece]]:
    batch, scratch = list[ReadPiece](), 0
    for piece in pieces:
        more = 0 if piece.direct else piece.bytes
        if batch and scratch + more > SCRATCH_BYTES:
            yield batch
            batch, scratch = [], 0
        batch.append(piece)
        scratch += more
    if batch:
        yield batch


def _allocate_landings(batch: Sequence[ReadPiece]) -> None:
    for piece in batch:
        if piece.direct:
            memory = (ctypes.c_char * piece.bytes).from_address(piece.target.data_ptr())
            piece.landing = memoryview(memory).cast("B")
        else:
            piece.landing = memoryview(bytearray(piece.bytes))


def _chunks(parts: Sequence[PartRecord], batch: Sequence[ReadPiece]) -> list[_Chunk]:
    """The chunks that the pieces need, each once."""
    records = {part.writer: part for part in parts}
    chunks: dict[tuple[int, int, int], _Chunk] = {}
    for piece in batch:
        record = records[piece.writer]
        file, size = record.files[piece.shard.file], record.chunk_bytes
        for index in range(piece.start // size, (piece.end - 1) // size + 1):
            key = (piece.writer, piece.shard.file, index)
            if key not in chunks:
                chunks[key] = _Chunk(file, index, *chunk_span(file, index, size), [], size)
            chunks[key].pieces.append(piece)
    return list(chunks.values())


def _copy_to_tensors(batch: Sequence[ReadPiece]) -> None:
    """Cut out what did not land in its tensor."""
    for piece in batch:
        if not piece.direct:
            flat = torch.frombuffer(piece.landing, dtype=piece.target.dtype)
            piece.target.copy_(flat.as_strided(piece.target.shape, _strides(piece.shard.size)))
        piece.landing = memoryview(b"")


class _ChunkReader:
    """Reads chunks, in many threads, each with a buffer of its own for the chunks that several pieces share."""

    def __init__(self, store: Store, commit: Commit) -> None:
        self._store = store
        self._commit = commit
        self._own = threading.local()

    def read(self, chunk: _Chunk) -> None:
        end, first = chunk.start + chunk.length, chunk.pieces[0]
        if first.start <= chunk.start and end <= first.end:
            self._read_into(chunk, first.landing[chunk.start - first.start : end - first.start])
            return
        data = self._thread_buffer(chunk.chunk_bytes)[: chunk.length]
        self._read_into(chunk, data)
        for piece in chunk.pieces:
            begin, stop = max(piece.start, chunk.start), min(piece.end, end)
            piece.landing[begin - piece.start : stop - piece.start] = data[begin - chunk.start : stop - chunk.start]

    def _read_into(self, chunk: _Chunk, buffer: memoryview) -> None:
        read_chunk(self._store, self._commit, chunk.file, chunk.index, buffer, chunk.chunk_bytes)

    def _thread_buffer(self, length: int) -> memoryview:
        held: memoryview | None = getattr(self._own, "buffer", None)
        if held is None or len(held) < length:
            held = self._own.buffer = memoryview(bytearray(length))
        return held


def _strides(size: Sequence[int]) -> tuple[int, ...]:
    """Strides of a box in C order, in elements."""
    return tuple(math.prod(size[dim + 1 :]) for dim in range(len(size)))


def _is_plain_memory(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
