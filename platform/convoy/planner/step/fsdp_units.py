"""What FSDP2 gathers at a time on one rank: the units that `parallel/fsdp.py` wraps, and the sizes of their weights."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from convoy.config.model import TransformerConfig
from convoy.model.families import block_of
from convoy.planner.workload import Workload

WIDTH = {"bf16": 2, "fp32": 4}
"""Bytes of an element."""

Shape = tuple[int, int]
"""Rows, of which each rank gets as many, and elements of a row."""


@dataclass(frozen=True)
class Unit:
    """Weights that are gathered together, and whose gradients are reduced together."""

    name: str
    shapes: tuple[Shape, ...]
    """Part of one tensor rank."""
    shards: int
    """Ranks that share them."""

    @cached_property
    def shard_elements(self) -> int:
        """Elements that a rank keeps: rows that the ranks do not divide are filled up."""
        return sum(math.ceil(rows / self.shards) * columns for rows, columns in self.shapes)

    @cached_property
    def elements(self) -> int:
        return sum(rows * columns for rows, columns in self.shapes)

    @cached_property
    def padded_elements(self) -> int:
        """Elements of what is gathered, filled up."""
        return self.shard_elements * self.shards


@dataclass(frozen=True)
class Stage:
    """What one rank has of the model: all of it, or its stage of a pipeline."""

    embed: Unit | None
    """None: the root has it, or another stage."""
    block: tuple[Unit, ...]
    """Units of each block, in forward's order: the outermost first, then each matrix where those are gathered alone;
    none where the root has all of the model."""
    blocks: int
    head: Unit | None
    root: Unit | None
    """Embedding and head that share their weight, or the whole model; None: there are none such."""
    first: bool
    last: bool

    def unit_counts(self) -> Iterator[tuple[Unit, int]]:
        """Each unit, and how many there are of it."""
        for end in (self.root, self.embed, self.head):
            if end is not None:
                yield end, 1
        for unit in self.block:
            yield unit, self.blocks

    @property
    def shard_elements(self) -> int:
        """Elements that a rank keeps."""
        return sum(unit.shard_elements * count for unit, count in self.unit_counts())


def stages(workload: Workload) -> tuple[Stage, ...]:
    """One where there is no pipeline."""
    model, shards, count = workload.model, workload.shards, workload.parallel.pipeline
    embed, head = _embed(model), _head(model)
    block = tuple(_block_units(workload))
    if workload.parallel.shards_as_one_fsdp_unit(on_cpu=workload.machine.gpu == "cpu"):
        ends = embed + (head[1:] if model.tied_embeddings else head)
        root = Unit("root", ends + block[0].shapes * model.n_layers, shards)
        return (Stage(None, (), model.n_layers, None, root, first=True, last=True),)
    if model.tied_embeddings:  # the weight that they share is the embedding's
        root = Unit("root", embed + head[1:], shards)
        return (Stage(None, block, model.n_layers, None, root, first=True, last=True),)
    each, more = divmod(model.n_layers, count)
    return tuple(
        Stage(
            Unit("embed", embed, shards) if i == 0 else None,
            block,
            each + (i < more),
            Unit("head", head, shards) if i == count - 1 else None,
            None,
            first=i == 0,
            last=i == count - 1,
        )
        for i in range(count)
    )


def _embed(model: TransformerConfig) -> tuple[Shape, ...]:
    tokens = (model.vocab_size, model.d_model)
    return (tokens, (model.max_sequence_length, model.d_model)) if model.positions == "learned" else (tokens,)


def _head(model: TransformerConfig) -> tuple[Shape, ...]:
    return ((model.vocab_size, model.d_model), *_norm(model))


def _norm(model: TransformerConfig) -> tuple[Shape, ...]:
    return ((model.d_model, 1),) * model.vectors_per_norm


def _block_units(workload: Workload) -> Iterator[Unit]:
    model, shards = workload.model, workload.shards
    cut = matrix_shapes(model, workload.parallel.tensor)
    norms = tuple((norm.width, 1) for norm in block_of(model).norms for _ in range(norm.vectors))
    if workload.parallel.wrap == "linear":
        yield Unit("norms", norms, shards)
        for name, shapes in cut.items():
            yield Unit(name, shapes, shards)
    else:
        yield Unit("block", norms + sum(cut.values(), ()), shards)


def matrix_shapes(model: TransformerConfig, tensor_ranks: int) -> dict[str, tuple[Shape, ...]]:
    """Of a block, with their biases, in forward's order, as one of so many tensor ranks has them."""
    split = [matrix.split_over(tensor_ranks) for matrix in block_of(model).matrices]
    return {m.name: ((m.rows, m.columns), (m.rows, 1)) if m.bias else ((m.rows, m.columns),) for m in split}
