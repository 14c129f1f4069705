"""Test data for collectives: contributions whose exact result is known, so that a single wrong element is found. Pure.

Every element of every rank is a small pseudo-random integer, small enough that any sum of them is exact in the buffer's
type, in whatever order it is formed. A chunk that is lost, doubled or misplaced changes elements by whole numbers.
"""

from dataclasses import dataclass

import torch

from convoy.config.network import Operation
from convoy.network.collectives.schedule import ROOT

PERIOD = 1021
"""Elements after which a rank's values repeat: a prime, so that no chunk of a schedule has the length of a period."""

LARGEST_EXACT = {
    torch.bfloat16: 2**8,
    torch.float16: 2**11,
    torch.float32: 2**24,
    torch.float64: 2**53,
    torch.int32: 2**31 - 1,
}
"""The largest integer up to which every sum is exact, by element type."""

MOST_VALUES = 64
"""Upper limit (exclusive) of the values of a contribution."""

SPLIT = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Operations whose buffer has a part for each rank, of equal size."""


@dataclass(frozen=True)
class ExactProblem:
    """A rank's input of a collective, and the result that it must hold afterwards.

    Tensors are 1-D, with `total` elements or a part of them.
    """

    operation: Operation
    rank: int
    ranks: int
    total: int
    """Elements of the whole buffer; of an operation in SPLIT, a multiple of `ranks`."""
    dtype: torch.dtype
    device: torch.device

    @property
    def part(self) -> slice:
        """This rank's part of the whole buffer."""
        return self.part_of(self.rank)

    def part_of(self, rank: int) -> slice:
        """A rank's part of the whole buffer."""
        each = self.total // self.ranks
        return slice(rank * each, (rank + 1) * each)

    def contribution(self, rank: int, where: slice | None = None) -> torch.Tensor:
        """Values of a rank's whole buffer, 1-D with `total` elements, or of a slice of it."""
        return self._repeat(self._pattern(rank), where)

    def total_of_all(self, where: slice | None = None) -> torch.Tensor:
        """Sum of the values of all ranks: 1-D, of the whole buffer or a slice of it."""
        return self._repeat(sum((self._pattern(r) for r in range(self.ranks)), torch.zeros(PERIOD).long()), where)

    def expected(self) -> torch.Tensor | None:
        """The result that this rank must hold: the whole buffer, or its part; None: only the root has a result."""
        if self.operation in ("reduce", "gather") and self.rank != ROOT:
            return None
        if self.operation in ("all_reduce", "reduce"):
            return self.total_of_all()
        if self.operation == "broadcast":
            return self.contribution(ROOT)
        if self.operation == "scatter":
            return self.contribution(ROOT, self.part)
        if self.operation == "reduce_scatter":
            return self.total_of_all(self.part)
        own = self.part if self.operation == "all_to_all" else None  # from each rank, what it has for this one
        return torch.cat([self.contribution(r, own or self.part_of(r)) for r in range(self.ranks)])

    def _pattern(self, rank: int) -> torch.Tensor:
        """One period of a rank's values, as integers on the host."""
        exact = LARGEST_EXACT[self.dtype]
        values = max(2, min(MOST_VALUES, exact // self.ranks + 1))
        pattern = torch.randint(values, (PERIOD,), generator=torch.Generator().manual_seed(rank))
        apart = -(-self.ranks // exact)  # only one rank in so many contributes, where the sum of all would not be exact
        return pattern if apart == 1 else torch.where((torch.arange(PERIOD) + rank) % apart == 0, pattern, 0)

    def _repeat(self, pattern: torch.Tensor, where: slice | None) -> torch.Tensor:
        start, stop = (where.start, where.stop) if where is not None else (0, self.total)
        ahead = torch.roll(pattern, -(start % PERIOD)).to(self.dtype).to(self.device)
        return ahead.repeat(-(-(stop - start) // PERIOD))[: stop - start].contiguous()


def count_wrong(result: torch.Tensor, expected: torch.Tensor | None) -> int:
    """Number of elements that differ from the expected ones; 0 if nothing is expected."""
    return 0 if expected is None else int((result != expected).sum())
