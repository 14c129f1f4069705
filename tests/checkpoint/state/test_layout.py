"""Who writes what: every byte of the state once, however it is spread, in files that a reader can find it in."""

import math
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import ALIGNMENT
from convoy.checkpoint.state.layout import (
    PAGE_BYTES,
    Box,
    Plan,
    local_tensor,
    make_layout,
    make_plan,
    note_row_order,
    row_order,
    row_pieces,
    row_pieces_of_box,
    signature,
)
from tests.campaign import examples
from tests.ranks import in_a_group

pytestmark = pytest.mark.campaign

FILE_BYTES = 4 * PAGE_BYTES

SIZES = st.lists(st.integers(1, 40), max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.complex128])


def box(name: str, dtype: torch.dtype, size: tuple[int, ...]) -> Box:
    return Box(name, dtype, size, (0,) * len(size), size, 0, frozenset({0}), (0,) * len(size))


@given(st.lists(st.tuples(DTYPES, SIZES), max_size=12))
@examples(200)
def test_a_layout_holds_every_element_once_aligned_and_in_files_of_bounded_length(kinds: list[Any]) -> None:
    boxes = [box(f"t{i}", dtype, size) for i, (dtype, size) in enumerate(kinds)]
    found = make_layout(boxes, FILE_BYTES)

    assert len(found.shards) == len(found.boxes)
    for whole in boxes:
        pieces = [s for s in found.shards if s.name == whole.name]
        elements = [e for piece in pieces for e in flat_indices(whole.shape, piece.offset, piece.size)]
        assert sorted(elements) == list(range(math.prod(whole.size)))
    ends = dict.fromkeys(range(len(found.file_bytes)), 0)
    for shard in found.shards:
        assert shard.start % ALIGNMENT == 0
        assert shard.start >= ends[shard.file]
        ends[shard.file] = shard.start + shard.bytes
    assert all(end <= found.file_bytes[index] <= FILE_BYTES for index, end in ends.items())
    assert all(length % PAGE_BYTES == 0 for length in found.file_bytes[:-1])


def flat_indices(shape: tuple[int, ...], offset: list[int], size: list[int]) -> list[int]:
    whole = torch.arange(math.prod(shape)).reshape(shape)
    for dim, (begin, length) in enumerate(zip(offset, size, strict=True)):
        whole = whole.narrow(dim, begin, length)
    return whole.flatten().tolist()


def test_a_box_longer_than_a_file_is_cut_and_the_pieces_know_their_place() -> None:
    found = make_layout([box("t", torch.uint8, (1, 3, FILE_BYTES))], FILE_BYTES)
    assert len(found.file_bytes) == 3
    assert [piece.inner for piece in found.boxes] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]


# On ranks.


def spread() -> dict[str, torch.Tensor]:
    """On 4 ranks: by rows with one rank left empty, both ways, replicated, on half of them, not at all."""
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    whole = torch.arange(9 * 6.0).reshape(9, 6)
    return {
        "rows": distribute_tensor(torch.arange(3.0), line, [Shard(0)]),
        "both": distribute_tensor(whole, square, [Shard(0), Shard(1)]),
        "half": distribute_tensor(whole, square, [Replicate(), Shard(0)]),
        "copies": distribute_tensor(whole, line, [Replicate()]),
        "plain": whole,
        "number": torch.tensor(5.0),
        "nothing": torch.empty(0, 3),
    }


class OfRank(NamedTuple):
    plan: Plan
    shapes: dict[str, tuple[int, ...]]
    """Of what it holds of each tensor."""
    bytes_of_copies: int
    """That it writes of a state which all ranks hold."""
    of_replicas: Plan


def planned(rank: int) -> OfRank:
    tensors = spread()
    plan = make_plan(tensors, rank, dist.group.WORLD)
    assert plan.signature == signature(tensors)
    copies = make_plan({f"t{i}": torch.zeros(100) for i in range(8)}, rank, dist.group.WORLD)
    shapes = {name: tuple(local_tensor(t).shape) for name, t in tensors.items()}
    return OfRank(plan, shapes, copies.layout.bytes, plan_of_replicas(rank))


@pytest.fixture(scope="module")
def four() -> list[OfRank]:
    return in_a_group(4, planned)


def elements(boxes: Any, name: str) -> list[int]:
    return [e for b in boxes if b.name == name for e in flat_indices(b.shape, list(b.offset), list(b.size))]


def test_all_ranks_together_write_each_element_once(four: list[OfRank]) -> None:
    assert set(four[0].plan.tensors) == {"rows", "both", "half", "copies", "plain", "number", "nothing"}
    for name, info in four[0].plan.tensors.items():
        written = [e for r in four for e in elements(r.plan.layout.boxes, name)]
        assert sorted(written) == list(range(math.prod(info.shape))), name


def test_what_all_hold_is_written_in_equal_shares(four: list[OfRank]) -> None:
    assert {of_rank.bytes_of_copies for of_rank in four} == {four[0].bytes_of_copies}


def test_a_rank_writes_what_it_holds(four: list[OfRank]) -> None:
    for rank, (plan, shapes, *_) in enumerate(four):
        assert all(b.size == shapes[b.name] for b in plan.held)
        assert all(rank in b.holders for b in plan.held)


def test_ranks_that_hold_all_can_save_alone(four: list[OfRank]) -> None:
    for reachable in ({0, 1, 2, 3}, {0, 1}, {2, 3}, {0, 3}):
        lost = {name for name in ("rows", "both") if not covers(four, name, reachable)}
        for rank in reachable:
            if lost:
                with pytest.raises(CheckpointError, match="that only rank"):
                    four[rank].plan.reduced_layout(rank, frozenset(reachable))
    whole = [plan.reduced_layout(rank, frozenset({0, 1, 2, 3})) for rank, (plan, *_) in enumerate(four)]
    assert whole == [of_rank.plan.layout for of_rank in four]


def covers(four: list[OfRank], name: str, reachable: set[int]) -> bool:
    held = {e for rank in reachable for e in elements(four[rank].plan.held, name)}
    return len(held) == math.prod(four[0].plan.tensors[name].shape)


def plan_of_replicas(rank: int) -> Plan:
    """HSDP: 2 groups of 2 ranks, each with all of the state."""
    mesh = init_device_mesh("cpu", (2, 2))
    return make_plan(
        {
            "w": distribute_tensor(torch.arange(1000.0), mesh, [Replicate(), Shard(0)]),
            "b": distribute_tensor(torch.arange(10.0), mesh, [Replicate(), Shard(0)]),
            "n": torch.zeros(2),
        },
        rank,
        dist.group.WORLD,
    )


def test_any_replica_group_is_enough_and_no_less(four: list[OfRank]) -> None:
    found = [of_rank.of_replicas for of_rank in four]
    for reachable in ({0, 1}, {2, 3}, {0, 3}, {1, 2}, {0, 1, 2}):
        boxes = [b for rank in reachable for b in found[rank].reduced_layout(rank, frozenset(reachable)).boxes]
        for name, length in (("w", 1000), ("b", 10), ("n", 2)):
            assert sorted(elements(boxes, name)) == list(range(length))
    for reachable in ({0, 2}, {1, 3}, {3}):
        for rank in reachable:
            with pytest.raises(CheckpointError, match=r"that only rank (0, 2|1, 3) holds"):
                found[rank].reduced_layout(rank, frozenset(reachable))


def refused(rank: int) -> dict[str, str]:
    """The error of each kind of state that cannot be planned."""
    mesh = init_device_mesh("cpu", (2,))
    partial = torch.distributed.tensor.DTensor.from_local(torch.zeros(3), mesh, [Partial()])
    states: dict[str, tuple[torch.Tensor, str | None]] = {
        "partial": (partial, None),
        "types": (torch.zeros(3, dtype=[torch.float32, torch.int64][rank]), None),
        "error": (torch.zeros(3), "rank 1: nothing to offer" if rank == 1 else None),
    }
    errors = {}
    for kind, (tensor, error) in states.items():
        with pytest.raises(CheckpointError) as told:
            make_plan({"w": tensor}, rank, dist.group.WORLD, error)
        errors[kind] = str(told.value)
    return errors


def test_what_one_rank_cannot_plan_is_an_error_on_all() -> None:
    first, second = in_a_group(2, refused)
    assert first == second
    assert "artial" in first["partial"]
    assert "w: ((3,), 'float32') on rank 0, and ((3,), 'int64')" in first["types"]
    assert first["error"] == "rank 1: nothing to offer"


ORDER = ((4, 2), (0, 3), (6, 1), (3, 1))


@given(st.integers(0, 7), st.integers(0, 7))
def test_the_pieces_of_a_stretch_are_its_rows_in_the_order_in_which_they_lie(one: int, other: int) -> None:
    begin, end = sorted((one, other))
    lying = [row for first, count in ORDER for row in range(first, first + count)]
    found = list(row_pieces_of_box(ORDER, (begin, 5), (end - begin, 2)))
    assert [row for p in found for row in range(p.offset[0], p.offset[0] + p.size[0])] == lying[begin:end]
    assert [i for p in found for i in range(p.inner[0], p.inner[0] + p.size[0])] == list(range(end - begin))
    assert all((p.offset[1], p.size[1], p.inner[1]) == (5, 2, 0) for p in found)


def state(rows: int) -> dict[str, dict[str, object]]:
    moments = {"exp_avg": torch.zeros(rows, 2), "step": torch.tensor(3.0)}
    return {"model": {"w": torch.zeros(rows, 2), "v": torch.zeros(4)}, "optimizer": {"state": {"w": moments}}}


def test_a_weight_and_its_moments_know_their_order_and_nothing_else_has_one() -> None:
    tensors = state(7)
    note_row_order(tensors, {"w": ORDER})
    moments = tensors["optimizer"]["state"]["w"]  # type: ignore[index]
    noted = [tensors["model"]["w"], moments["exp_avg"]]
    assert all(isinstance(t, torch.Tensor) and row_order(t) == ORDER and len(row_pieces(t)) == 4 for t in noted)
    others = [tensors["model"]["v"], moments["step"]]
    assert all(isinstance(t, torch.Tensor) and row_order(t) == () and row_pieces(t) == [] for t in others)


@pytest.mark.parametrize("order", [((0, 3),), ((0, 4), (3, 4)), ((0, 8),)])
def test_an_order_that_is_not_one_of_the_rows_is_refused(order: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="are not its 7 rows"):
        note_row_order(state(7), {"w": order})
