"""A rank's part of a tensor that is cut in the order of its elements, without regard to rows, as ZeRO cuts it.

Other libraries concatenate all parameters and give each rank a stretch of the result. What such a stretch holds of one
tensor is a few boxes of it: the end of a row, whole rows, the beginning of a row, and so on in each dimension. A
checkpoint knows boxes only, so any other sharding can read it, and the other way round.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class FlatBox:
    """A box of a tensor whose elements follow each other in the flat order too."""

    offset: tuple[int, ...]
    """Index in the tensor."""
    size: tuple[int, ...]
    start: int
    """First element in the flat order of the tensor."""


def flat_boxes(shape: Sequence[int], begin: int, end: int) -> Iterator[FlatBox]:
    """The fewest boxes of a tensor that hold its elements from `begin` up to `end`, in their order.

    A tensor of n dimensions has 2n - 1 at most.
    """
    if begin >= end:
        return
    if len(shape) < 2:
        yield FlatBox((begin,) if shape else (), (end - begin,) if shape else (), begin)
        return
    row = math.prod(shape[1:])
    first_whole, last_whole = -(-begin // row), end // row
    if begin % row:
        yield from _in_row(shape, begin // row, begin, min(end, first_whole * row))
    if first_whole < last_whole:
        yield FlatBox((first_whole, *(0 for _ in shape[1:])), (last_whole - first_whole, *shape[1:]), first_whole * row)
    if end % row and last_whole >= first_whole:
        yield from _in_row(shape, last_whole, last_whole * row, end)


def _in_row(shape: Sequence[int], index: int, begin: int, end: int) -> Iterator[FlatBox]:
    start = index * math.prod(shape[1:])
    for box in flat_boxes(shape[1:], begin - start, end - start):
        yield FlatBox((index, *box.offset), (1, *box.size), start + box.start)


class FlatShard(Tensor):
    """Has the shape of the whole tensor, and the memory of this rank's stretch alone: for a state that is saved or
    restored, not for computation."""

    flat: Tensor
    """This rank's elements (n,); empty: it has none."""
    start: int
    """The first of them in the flat order of the tensor."""

    @staticmethod
    def __new__(cls, flat: Tensor, shape: Sequence[int], start: int) -> "FlatShard":
        """flat: contiguous, of one dimension. Raises ValueError for a stretch that the tensor does not have."""
        if flat.ndim != 1 or not flat.is_contiguous():
            raise ValueError(f"{tuple(flat.shape)}: must be one contiguous dimension")
        if not 0 <= start <= start + len(flat) <= math.prod(shape):
            raise ValueError(f"elements {start} to {start + len(flat)}: the tensor has {math.prod(shape)}")
        self: FlatShard = Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=flat.dtype, device=flat.device)
        self.flat, self.start = flat.detach(), start
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise TypeError(f"{function}: not on a FlatShard, which is only saved and restored")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"FlatShard({tuple(self.shape)}, {self.start} to {self.start + len(self.flat)})"

    def boxes(self) -> list[FlatBox]:
        """What this rank holds, as boxes of the tensor."""
        return list(flat_boxes(self.shape, self.start, self.start + len(self.flat)))

    def box_view(self, offset: Sequence[int], size: Sequence[int]) -> Tensor:
        """The memory of one of the boxes, or of a part of one."""
        for box in self.boxes():
            inner = [at - begin for at, begin in zip(offset, box.offset, strict=True)]
            ends = [at + length for at, length in zip(inner, size, strict=True)]
            if min(inner, default=0) >= 0 and all(end <= whole for end, whole in zip(ends, box.size, strict=True)):
                begin = box.start - self.start
                view = self.flat[begin : begin + math.prod(box.size)].view(box.size)
                for dim, (at, length) in enumerate(zip(inner, size, strict=True)):
                    view = view.narrow(dim, at, length)
                return view
        raise KeyError(f"{self}: holds no {tuple(size)} at {tuple(offset)}")
