"""Who writes which bytes: torch's planner decides once per structure of the state, the layout follows from it.

Rows of a tensor need not lie in their order: a weight that ranks share by heads holds each one's queries, keys and
values next to each other. A checkpoint knows each row by its own number, so that any other layout can read it.

Tensors that several ranks hold whole are written once. The plan also knows who else holds what, so that the ranks
that are left can save by themselves, without a word between them, as long as no shard is lost.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import ALIGNMENT, FILE_BYTES, TensorInfo, TensorShard
from convoy.checkpoint.state.flat_shard import FlatShard

PAGE_BYTES = 4096
"""Files of a part begin at multiples of this in a buffer, for direct I/O."""

Signature = tuple[tuple[str, torch.dtype, torch.Size, Any], ...]

Rows = tuple[tuple[int, int], ...]
"""Pieces in the order in which they follow each other: (first row, how many), all rows once; empty: in order."""

_ATTRIBUTE = "convoy_rows"


@dataclass(frozen=True)
class RowPiece:
    """Rows that follow each other both in the tensor and in this rank's memory."""

    offset: tuple[int, ...]
    """Index in the tensor."""
    size: tuple[int, ...]
    inner: tuple[int, ...]
    """Offset in this rank's own shard."""


def note_row_order(tensors: Mapping[str, Any], rows: Mapping[str, Rows]) -> None:
    """Note the order of rows in a state from `get_state_dict`: of each weight in `rows`, and its moments.

    The note is on the objects that the state holds: a view or a copy of one does not have it. Raises ValueError for an
    order that is not one of the tensor's rows.
    """
    for name, order in rows.items():
        state = tensors["optimizer"]["state"].get(name, {})
        for tensor in (tensors["model"][name], *state.values()):
            if isinstance(tensor, torch.Tensor) and tensor.ndim:
                if sorted(row for first, count in order for row in range(first, first + count)) != [
                    *range(len(tensor))
                ]:
                    raise ValueError(f"{name}: {order} are not its {len(tensor)} rows")
                setattr(tensor, _ATTRIBUTE, order)


def row_order(tensor: torch.Tensor) -> Rows:
    """The noted order; empty: the rows lie in their order."""
    order: Rows = getattr(tensor, _ATTRIBUTE, ())
    return order


def row_pieces(tensor: torch.Tensor) -> list[RowPiece]:
    """What this rank holds of a tensor whose rows do not lie in their order; of any other one nothing."""
    order = row_order(tensor)
    if not order:
        return []
    size, offset = tuple(tensor.shape), (0,) * tensor.ndim
    if isinstance(tensor, DTensor):
        size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return list(row_pieces_of_box(order, offset, size))


def row_pieces_of_box(order: Rows, offset: tuple[int, ...], size: tuple[int, ...]) -> Iterator[RowPiece]:
    """The pieces of a box, whose rows are counted as they lie. All of them together are as large as the box."""
    begin, end, start = offset[0], offset[0] + size[0], 0
    for first, count in order:
        low, high = max(begin, start), min(end, start + count)
        if low < high:
            row = first + low - start
            inner = (low - begin, *(0 for _ in size[1:]))
            yield RowPiece((row, *offset[1:]), (high - low, *size[1:]), inner)
        start += count


@dataclass(frozen=True)
class Box:
    """A box of a tensor that this rank holds."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    size: tuple[int, ...]
    owner: int
    """Rank that writes it."""
    holders: frozenset[int]
    """Ranks that hold it."""
    inner: tuple[int, ...] = ()
    """Offset in this rank's own shard; not zero where a shard was cut to fit into a file, or holds rows from several
    places."""

    @property
    def bytes(self) -> int:
        return math.prod(self.size) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The boxes that a rank writes, and their places in its files."""

    boxes: tuple[Box, ...]
    shards: tuple[TensorShard, ...]
    """One per box."""
    file_bytes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Length of a buffer that holds all files, one after the other."""
        return sum(self.file_bytes)

    def starts(self) -> list[int]:
        """First byte of each shard in such a buffer."""
        files = [sum(self.file_bytes[:i]) for i in range(len(self.file_bytes))]
        return [files[shard.file] + shard.start for shard in self.shards]


@dataclass(frozen=True)
class Plan:
    """The plan of one rank: who writes what."""

    signature: Signature
    held: tuple[Box, ...]
    """All boxes that this rank holds."""
    groups: tuple[frozenset[int], ...]
    """The different sets of holders in the whole gang."""
    tensors: dict[str, TensorInfo]
    """Every tensor of the state."""
    layout: Layout
    """The layout of this rank when all are there."""
    replicas: tuple[str, ...]
    """Tensors that this rank and others hold, and that are no DTensors, so that nothing says that they are equal."""

    def reduced_layout(self, rank: int, reachable: frozenset[int]) -> Layout:
        """What `rank` writes when only `reachable` are left. Raises CheckpointError if a shard is on none of them."""
        lost = [group for group in self.groups if not group & reachable]
        if lost:
            names = ", ".join(str(r) for r in sorted(lost[0]))
            raise CheckpointError(f"shards that only rank {names} holds are out of reach: the state is not whole")
        return make_layout([b for b in self.held if _writing_rank(b, reachable) == rank])


def signature(tensors: Mapping[str, torch.Tensor]) -> Signature:
    """Equal for two states with the same plan."""
    return tuple((name, t.dtype, t.shape, _sharding_of(t)) for name, t in tensors.items())


def make_plan(
    tensors: Mapping[str, torch.Tensor], rank: int, group: dist.ProcessGroup | None, error: str | None = None
) -> Plan:
    """All ranks of `group` call it. Raises CheckpointError on all of them if their states do not fit together.

    error: why this rank has none to offer.
    """
    local, failure = _local_plan(tensors, rank)
    error = error or failure
    if group is None:
        plans: list[Any] | None = [(local, error)]
    else:
        plans = [None] * dist.get_world_size(group) if rank == 0 else None
        dist.gather_object((local, error), plans, group=group, group_dst=0)
    answers = _global_plan(plans) if plans is not None else None
    if group is not None:
        box: list[Any] = [None]
        dist.scatter_object_list(box, answers, group=group, group_src=0)
        answers = box
    assert answers is not None
    answer = answers[0]
    if isinstance(answer, str):
        raise CheckpointError(answer)
    held, groups, infos = answer
    held = tuple(_with_inner_offset(box, tensors[box.name]) for box in held)
    replicas = [b.name for b in held if len(b.holders) > 1 and not isinstance(tensors[b.name], (DTensor, FlatShard))]
    own = make_layout([b for b in held if b.owner == rank])
    return Plan(signature(tensors), held, groups, infos, own, tuple(replicas))


def make_layout(boxes: Sequence[Box], file_bytes: int = FILE_BYTES) -> Layout:
    """Boxes one after the other, in files of at most `file_bytes`; a box that is longer is cut."""
    cut = [piece for box in boxes for piece in _split_to_fit(box, file_bytes)]
    shards, files, position = list[TensorShard](), [0], 0
    for box in cut:
        start = -(-position // ALIGNMENT) * ALIGNMENT
        if start and start + box.bytes > file_bytes:
            files[-1] = -(-position // PAGE_BYTES) * PAGE_BYTES
            files.append(0)
            start = 0
        shards.append(_tensor_shard(box, len(files) - 1, start))
        position = files[-1] = start + box.bytes
    return Layout(tuple(cut), tuple(shards), tuple(n for n in files if n))


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own part of a tensor. Call it without gradients: then it is the storage itself, no view of it."""
    if isinstance(tensor, FlatShard):
        return tensor.flat
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _local_plan(tensors: Mapping[str, torch.Tensor], rank: int) -> tuple[SavePlan | None, str | None]:
    """The planner's own, or why there is none: the others must hear of that."""
    try:
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        flat = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, FlatShard)}
        planner.set_up_planner({n: t for n, t in tensors.items() if n not in flat}, is_coordinator=rank == 0)
        plan = planner.create_local_plan()
        items = [part for item in plan.items for part in _split_write_item(item, tensors[item.index.fqn])]
        items += [item for name, shard in flat.items() for item in _flat_write_items(name, shard)]
        return replace(plan, items=items), None
    except Exception as failure:
        return None, f"rank {rank}: {type(failure).__name__}: {failure}"


def _split_write_item(item: WriteItem, tensor: torch.Tensor) -> list[WriteItem]:
    """The item, or where the tensor's rows do not lie in their order, one for each piece that does."""
    rows, data = row_order(tensor), item.tensor_data
    if not rows or data is None:
        return [item]
    return [
        replace(
            item,
            index=MetadataIndex(item.index.fqn, torch.Size(piece.offset)),
            tensor_data=replace(data, chunk=ChunkStorageMetadata(torch.Size(piece.offset), torch.Size(piece.size))),
        )
        for piece in row_pieces_of_box(rows, tuple(data.chunk.offsets), tuple(data.chunk.sizes))
    ]


def _flat_write_items(name: str, shard: FlatShard) -> Iterator[WriteItem]:
    """An item for each box of the shard."""
    properties = TensorProperties(dtype=shard.dtype)
    for box in shard.boxes():
        chunk = ChunkStorageMetadata(torch.Size(box.offset), torch.Size(box.size))
        data = TensorWriteData(chunk, properties, shard.shape)
        yield WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data)


def _with_inner_offset(box: Box, tensor: torch.Tensor) -> Box:
    """The box with its place in this rank's own shard."""
    piece = next((piece for piece in row_pieces(tensor) if piece.offset == box.offset), None)
    return box if piece is None else replace(box, inner=piece.inner)


def _global_plan(plans: Sequence[tuple[SavePlan | None, str | None]]) -> list[Any]:
    """For each rank the parts of its `Plan`, or for all the error."""
    errors = [error for _, error in plans if error is not None]
    local = [plan for plan, _ in plans if plan is not None]
    try:
        if errors:
            raise CheckpointError(errors[0])
        _refuse_different_tensors(local)
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        chosen, metadata = planner.create_global_plan(local)
    except Exception as failure:
        return [str(failure).splitlines()[0]] * len(plans)
    owners = {item.index: rank for rank, plan in enumerate(chosen) for item in plan.items}
    holders: dict[Any, frozenset[int]] = {}
    for rank, plan in enumerate(local):
        for item in plan.items:
            holders[item.index] = holders.get(item.index, frozenset()) | {rank}
    # Few sets are different, and each is sent once: pickle recognises an object that it has pickled.
    groups = {group: group for group in holders.values()}
    infos = {
        name: TensorInfo(dtype=_dtype_name(m.properties.dtype), shape=list(m.size))
        for name, m in metadata.state_dict_metadata.items()
        if isinstance(m, TensorStorageMetadata)  # as all are: there are only tensors in the plan
    }
    boxes = [[_box_of_item(i, owners[i.index], groups[holders[i.index]]) for i in plan.items] for plan in local]
    # An empty shard, as the last ranks have of a short tensor, is nowhere: nothing is lost with it.
    held = [tuple(box for box in own if box.bytes) for own in boxes]
    needed = tuple({box.holders: None for own in held for box in own})
    return [(own, needed, infos) for own in held]


def _refuse_different_tensors(plans: Sequence[SavePlan]) -> None:
    """The planner would take the first rank's word for a tensor's shape and type."""
    kinds: dict[str, tuple[int, Any]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            assert item.tensor_data is not None
            kind = (tuple(item.tensor_data.size), _dtype_name(item.tensor_data.properties.dtype))
            first, other = kinds.setdefault(item.index.fqn, (rank, kind))
            if kind != other:
                raise CheckpointError(f"{item.index.fqn}: {other} on rank {first}, and {kind} on rank {rank}")


def _box_of_item(item: WriteItem, owner: int, holders: frozenset[int]) -> Box:
    data = item.tensor_data
    assert data is not None
    chunk = data.chunk
    return Box(
        item.index.fqn,
        data.properties.dtype,
        tuple(data.size),
        tuple(chunk.offsets),
        tuple(chunk.sizes),
        owner,
        holders,
        (0,) * len(chunk.sizes),
    )


def _split_to_fit(box: Box, limit: int) -> list[Box]:
    """The box, or where it is longer than `limit` the halves of it along its first dimension that has any."""
    wide = [d for d, n in enumerate(box.size) if n > 1]
    if box.bytes <= limit or not wide:
        return [box]
    half = box.size[wide[0]] // 2
    parts = [(0, half), (half, box.size[wide[0]] - half)]
    return [piece for begin, length in parts for piece in _split_to_fit(_narrowed(box, wide[0], begin, length), limit)]


def _narrowed(box: Box, dim: int, begin: int, length: int) -> Box:
    def shifted(values: tuple[int, ...]) -> tuple[int, ...]:
        return (*values[:dim], values[dim] + begin, *values[dim + 1 :])

    size = (*box.size[:dim], length, *box.size[dim + 1 :])
    return replace(box, offset=shifted(box.offset), inner=shifted(box.inner), size=size)


def _tensor_shard(box: Box, file: int, start: int) -> TensorShard:
    return TensorShard(
        name=box.name,
        dtype=_dtype_name(box.dtype),
        shape=list(box.shape),
        offset=list(box.offset),
        size=list(box.size),
        file=file,
        start=start,
        bytes=box.bytes,
    )


def _writing_rank(box: Box, reachable: frozenset[int]) -> int:
    return box.owner if box.owner in reachable else min(box.holders & reachable)


def _sharding_of(tensor: torch.Tensor) -> Any:
    if isinstance(tensor, FlatShard):
        return tensor.start, len(tensor.flat)
    return (tensor.placements, id(tensor.device_mesh), row_order(tensor)) if isinstance(tensor, DTensor) else None


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
