"""The shape of a decoder block as data, read by counts, planner, parallelism, initialisation and exports. No torch."""

from dataclasses import dataclass
from typing import Literal

RowOrder = tuple[tuple[int, int], ...]
"""How a weight's rows follow each other in memory where that is not their order: (first row, how many), piece by piece;
empty: in order."""


@dataclass(frozen=True)
class Matrix:
    """A linear layer, whose weight has the shape (rows, columns)."""

    name: str
    """Path of the module in the block."""
    rows: int
    """Outputs."""
    columns: int
    """Inputs."""
    split: Literal["rows", "columns"]
    """What tensor-parallel ranks divide: the rows of layers that read the residual stream, the columns of those that
    write to it."""
    bias: bool = False
    parts: tuple[int, ...] = ()
    """Rows of each projection that is stacked in it, such as queries, keys and values; empty: it is one projection."""

    def split_over(self, ranks: int) -> "Matrix":
        """What each of so many tensor-parallel ranks has of it."""
        if self.split == "rows":
            parts = tuple(rows // ranks for rows in self.parts)
            return Matrix(self.name, self.rows // ranks, self.columns, self.split, self.bias, parts)
        return Matrix(self.name, self.rows, self.columns // ranks, self.split, self.bias, self.parts)

    def row_order(self, ranks: int) -> RowOrder:
        """The rows in the order in which ranks hold them: each has a share of every part."""
        firsts = [sum(self.parts[:i]) for i in range(len(self.parts))]
        return tuple(
            (first + rank * rows // ranks, rows // ranks)
            for rank in range(ranks)
            for first, rows in zip(firsts, self.parts, strict=True)
        )


@dataclass(frozen=True)
class Norm:
    """A normalisation over the last dimension."""

    name: str
    """Path of the module in the block."""
    width: int
    vectors: int
    """1: a weight. 2: a weight and a bias."""


@dataclass(frozen=True)
class Block:
    """A pre-norm decoder block: attention and an MLP, each added to the residual stream."""

    norms: tuple[Norm, ...]
    """One before each, or one whose output both read."""
    attention: tuple[Matrix, ...]
    """In forward's order; the last one writes to the residual stream."""
    mlp: tuple[Matrix, ...]
    """In forward's order: [gate,] up, down."""
    heads: int
    kv_heads: int
    head_width: int
    rotary: bool
    """Queries and keys are rotated by their positions."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.attention + self.mlp

    @property
    def parallel_residual(self) -> bool:
        """Whether attention and the MLP read the same norm, so that neither waits for the other."""
        return len(self.norms) == 1

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies two projections of its input."""
        return len(self.mlp) == 3

    @property
    def inner_width(self) -> int:
        """Of the MLP."""
        return self.mlp[-1].columns

    @property
    def attention_width(self) -> int:
        """Of all query heads together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Of all key heads together."""
        return self.kv_heads * self.head_width

    @property
    def parameters(self) -> int:
        norms = sum(norm.vectors * norm.width for norm in self.norms)
        return norms + sum(m.rows * m.columns + (m.rows if m.bias else 0) for m in self.matrices)
