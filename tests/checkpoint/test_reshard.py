"""Any number of ranks and any way of sharding loads what any other has saved: weights, moments and position exact."""

import math
import random
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from convoy.checkpoint.api import Checkpoints
from convoy.checkpoint.format import Commit, PartRecord
from convoy.checkpoint.messages import SetLayout, WritePart
from convoy.checkpoint.restore.reshard import reshard
from convoy.checkpoint.save.staging import _box_view
from convoy.checkpoint.state.flat_shard import FlatShard
from convoy.checkpoint.state.layout import (
    Layout,
    Rows,
    _global_plan,
    _local_plan,
    _with_inner_offset,
    local_tensor,
    make_layout,
    note_row_order,
)
from convoy.checkpoint.state.tensors import put_tensors, tensors_of
from convoy.checkpoint.writer.parts import write_part
from convoy.storage import Store, open_store
from tests.campaign import examples
from tests.checkpoint.torchless import commit_when_complete, form
from tests.ranks import in_a_group, on_ranks

pytestmark = pytest.mark.campaign

WALK = [("fsdp", 4), ("fsdp", 3), ("hsdp", 2), ("hsdp", 4), ("ddp", 1)]


class Model(nn.Module):
    """With rows that no number of ranks divides, a buffer, and two names for one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 11), nn.Linear(11, 6, bias=False)
        self.norm = nn.BatchNorm1d(11)
        self.tied = nn.Linear(11, 6, bias=False)
        self.tied.weight = self.second.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x))) + self.tied(self.first(x))


def built(strategy: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model, world = Model(), dist.get_world_size()
    if strategy == "ddp":
        return DistributedDataParallel(model)
    names, shape = (("replicas", "shards"), (world // 2, 2)) if strategy == "hsdp" else (("shards",), (world,))
    return fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))  # type: ignore[return-value]


def leg(rank: int, world: int, folder: str, number: int, strategy: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Restore what there is, take a step, save: what was restored, and what was saved."""
    model = built(strategy, seed=number)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with Checkpoints(f"{folder}/job", optimizer=optimizer) as ckpt:
        state = tensors_of(model, optimizer) | {"sampler": {"seed": 3, "next_sample": 0}}
        restored = ckpt.restore(state)
        put_tensors(model, optimizer, state)
        found = whole(state) if restored else {}
        torch.manual_seed(number)
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        state = tensors_of(model, optimizer) | {"sampler": {"seed": 3, "next_sample": 64 * (number + 1)}}
        assert ckpt.save(number + 1, state).wait().world_size == world
        return (restored.step if restored else 0), found, whole(state)


def whole(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: item for key in value for name, item in whole(value[key], f"{path}.{key}").items()}
    return (
        {path: (value.full_tensor() if isinstance(value, DTensor) else value).clone()}
        if isinstance(value, torch.Tensor)
        else {path: value}
    )


def test_a_job_walks_over_world_sizes_and_strategies(tmp_path: Path) -> None:
    saved: dict[str, Any] = {}
    for number, (strategy, world) in enumerate(WALK):
        legs = in_a_group(world, leg, world, str(tmp_path), number, strategy)
        for step, found, _ in legs:
            assert step == number
            assert found.keys() == saved.keys()
            assert [name for name in found if not equal(found[name], saved[name])] == []
        saved = legs[0][2]
    assert saved[".sampler.next_sample"] == 64 * len(WALK)
    assert {name.rsplit(".", 1)[1] for name in saved if ".state." in name} == {"exp_avg", "exp_avg_sq", "step"}


def equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


# Any sharding into any other, without processes: each rank's view of a tensor comes from a group that only pretends.

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3)
MESHES = st.sampled_from([(1,), (2,), (3,), (5,), (2, 2), (3, 2), (2, 3)])
PLACEMENTS = st.lists(st.none() | st.integers(0, 2), min_size=2, max_size=2)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])
WAYS = st.tuples(MESHES, PLACEMENTS)
ORDERS = st.none() | st.integers(0, 99) | st.integers(0, 99).map(lambda seed: FlatCuts(seed))
TENSORS = st.lists(st.tuples(SHAPES, DTYPES, PLACEMENTS, PLACEMENTS, ORDERS, ORDERS), min_size=1, max_size=4)


class FlatCuts(NamedTuple):
    """Ranks have stretches of the tensor's elements, cut anywhere: some may have none."""

    seed: int

    def stretch(self, elements: int, ranks: int, rank: int) -> tuple[int, int]:
        cuts = sorted(random.Random(self.seed).choices(range(elements + 1), k=ranks - 1))
        return [0, *cuts, elements][rank], [0, *cuts, elements][rank + 1]


def mesh_of(rank: int, shape: tuple[int, ...]) -> Any:
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=math.prod(shape))
    return init_device_mesh("cpu", shape)


def spread(mesh: Any, whole: torch.Tensor, dims: list[int | None], order: Rows | FlatCuts = ()) -> torch.Tensor:
    """This rank's view of the tensor, whose rows are to lie in that order. Sharded twice along the first dimension, it
    is as FSDP shards what is cut already: the second dimension of the mesh first."""
    if isinstance(order, FlatCuts):
        begin, end = order.stretch(whole.numel(), mesh.size(), dist.get_rank())
        return FlatShard(whole.reshape(-1)[begin:end].clone(), whole.shape, begin)
    placed: list[Any] = [Replicate() if d is None or d >= whole.ndim else Shard(d) for d in dims[: mesh.ndim]]
    if placed == [Shard(0), Shard(0)] and len(whole) % mesh.size(1) == 0:
        placed[0] = _StridedShard(0, split_factor=mesh.size(1))
    if order:
        whole = torch.cat([whole[first : first + count] for first, count in order])
    size, offset = compute_local_shape_and_global_offset(whole.shape, mesh, placed)
    local = whole
    for dim, (begin, length) in enumerate(zip(offset, size, strict=True)):
        local = local.narrow(dim, min(begin, local.shape[dim]), length)
    view = DTensor.from_local(
        local.contiguous(), mesh, placed, run_check=False, shape=whole.shape, stride=whole.stride()
    )
    note_row_order({"model": {"t": view}, "optimizer": {"state": {}}}, {"t": order} if order else {})
    shown: torch.Tensor = view
    return shown


def in_pieces(rows: int, seed: int | FlatCuts | None) -> Rows | FlatCuts:
    """An order of so many rows; None: theirs. Flat cuts have no rows."""
    if seed is None or isinstance(seed, FlatCuts):
        return seed or ()
    shuffled = random.Random(seed)
    cuts = sorted(shuffled.sample(range(1, rows), min(rows - 1, 3)))
    pieces = [(first, end - first) for first, end in pairwise([0, *cuts, rows])]
    return tuple(shuffled.sample(pieces, len(pieces)))


def save(
    store: Store,
    mesh: tuple[int, ...],
    wholes: dict[str, torch.Tensor],
    dims: dict[str, Any],
    orders: dict[str, Rows | FlatCuts],
) -> Commit:
    """As ranks on a mesh would: the planner's plan, their parts, the commit."""
    views = []
    for rank in range(math.prod(mesh)):
        device_mesh = mesh_of(rank, mesh)
        views.append({name: spread(device_mesh, tensor, dims[name], orders[name]) for name, tensor in wholes.items()})
        views[-1] = {"view": views[-1], "plan": _local_plan(views[-1], rank)}  # type: ignore[dict-item]
    answers = _global_plan([view["plan"] for view in views])  # type: ignore[misc]
    draft = Commit(generation=1, step=1, attempt="draft", parent=None, world_size=len(views), tensors=answers[0][2])
    requests = []
    for rank, (held, _, _) in enumerate(answers):
        view: dict[str, torch.Tensor] = views[rank]["view"]  # type: ignore[assignment]
        found = [_with_inner_offset(box, view[box.name]) for box in held if box.owner == rank]
        own = make_layout(found, file_bytes=300)
        requests.append(request(store, rank, len(views), draft))
        shards = SetLayout(shards=list(own.shards), file_bytes=list(own.file_bytes))
        data = staged(own, view)
        write_part(store, requests[-1], shards, data, 1, chunk_bytes=64)
    return commit_when_complete(store, store, requests[0])


def request(store: Store, writer: int, writers: int, draft: Commit) -> WritePart:
    return WritePart(
        tier=store.uri,
        buffer="",
        generation=1,
        step=1,
        attempt="a",
        writer=writer,
        writers=writers,
        values=[],
        draft=draft if writer == 0 else None,
        deadline_seconds=30.0,
    )


@torch.no_grad()
def staged(own: Layout, view: dict[str, torch.Tensor]) -> memoryview:
    data = bytearray(own.bytes)
    for start, box in zip(own.starts(), own.boxes, strict=True):
        local = _box_view(view, box)
        data[start : start + box.bytes] = bytes(local.contiguous().view(-1).view(torch.uint8).numpy())
    return memoryview(data)


def reshard_anywhere(rank: int) -> None:
    @given(MESHES, MESHES, TENSORS)
    @examples(40)
    def any_way_into_any_other(before: tuple[int, ...], after: tuple[int, ...], kinds: list[Any]) -> None:
        numbers = {f"t{i}": torch.arange(1, math.prod(shape) + 1) for i, (shape, *_) in enumerate(kinds)}
        wholes = {
            name: numbers[name].reshape(shape).to(dtype)
            for name, (shape, dtype, *_) in zip(numbers, kinds, strict=True)
        }
        with tempfile.TemporaryDirectory() as folder:
            store = open_store(folder)
            form(store)
            saved, loaded = (
                {name: in_pieces(len(wholes[name]), kind[n]) for name, kind in zip(wholes, kinds, strict=True)}
                for n in (4, 5)
            )
            commit = save(store, before, wholes, dict(zip(wholes, (k[2] for k in kinds), strict=True)), saved)
            parts = [parsed_part(store, commit, name) for name in commit.parts]
            for other in range(math.prod(after)):
                mesh = mesh_of(other, after)
                dims = dict(zip(wholes, (k[3] for k in kinds), strict=True))
                wanted = {name: spread(mesh, tensor, dims[name], loaded[name]) for name, tensor in wholes.items()}
                found = {
                    name: spread(mesh, torch.zeros_like(t), dims[name], loaded[name]) for name, t in wholes.items()
                }
                reshard(store, commit, parts, found, threads=1)
                for name in wholes:
                    assert torch.equal(local_tensor(found[name]), local_tensor(wanted[name]))

    any_way_into_any_other()


def parsed_part(store: Store, commit: Commit, name: str) -> PartRecord:
    return PartRecord.model_validate_json(store.read(commit.prefix + name))


def test_any_sharding_loads_into_any_other() -> None:
    """In a process of its own: the pretended groups are global."""
    on_ranks(1, reshard_anywhere)
