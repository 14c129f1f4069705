"""Tensors whose rows do not lie in their order: a weight that ranks share by heads holds each one's queries, keys and
values next to each other. A checkpoint knows each row by its own number, so that any other layout can read it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

Rows = tuple[tuple[int, int], ...]
"""Pieces in the order in which they follow each other: (first row, how many), all rows once; empty: in order."""

_ATTRIBUTE = "convoy_rows"


@dataclass(frozen=True)
class Piece:
    """Rows that follow each other both in the tensor and in this rank's memory."""

    offset: tuple[int, ...]
    """Index in the tensor."""
    size: tuple[int, ...]
    inner: tuple[int, ...]
    """Offset in this rank's own shard."""


def note_rows(tensors: Mapping[str, Any], rows: Mapping[str, Rows]) -> None:
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


def pieces(tensor: torch.Tensor) -> list[Piece]:
    """What this rank holds of a tensor whose rows do not lie in their order; of any other one nothing."""
    order = row_order(tensor)
    if not order:
        return []
    size, offset = tuple(tensor.shape), (0,) * tensor.ndim
    if isinstance(tensor, DTensor):
        size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return list(pieces_of(order, offset, size))


def pieces_of(order: Rows, offset: tuple[int, ...], size: tuple[int, ...]) -> Iterator[Piece]:
    """The pieces of a box, whose rows are counted as they lie. All of them together are as large as the box."""
    begin, end, start = offset[0], offset[0] + size[0], 0
    for first, count in order:
        low, high = max(begin, start), min(end, start + count)
        if low < high:
            row = first + low - start
            inner = (low - begin, *(0 for _ in size[1:]))
            yield Piece((row, *offset[1:]), (high - low, *size[1:]), inner)
        start += count
