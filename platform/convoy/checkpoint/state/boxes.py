"""Boxes of one tensor: whether two of them share an element."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Box:
    """One number per dimension."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    def meets(self, other: "Box") -> bool:
        spans = zip(self.offset, self.size, other.offset, other.size, strict=True)
        return all(max(a, b) < min(a + m, b + n) for a, m, b, n in spans)


def any_meet(boxes: Sequence[Box]) -> bool:
    """Whether any two share an element. Pieces of a grid, as sharding makes them, take n log n; others up to n²."""
    if len(boxes) < 2:
        return False
    for dim in range(len(boxes[0].offset)):
        groups = _apart(boxes, dim)
        if len(groups) > 1:
            return any(any_meet(group) for group in groups)
    return any(one.meets(other) for one, other in combinations(boxes, 2))


def _apart(boxes: Sequence[Box], dim: int) -> list[list[Box]]:
    """In groups of which no two reach into each other along this dimension."""
    groups: list[list[Box]] = []
    end = -1
    for box in sorted(boxes, key=lambda box: box.offset[dim]):
        if box.offset[dim] >= end:
            groups.append([])
        groups[-1].append(box)
        end = max(end, box.offset[dim] + box.size[dim])
    return groups
