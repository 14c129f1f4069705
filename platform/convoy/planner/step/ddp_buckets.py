"""The buckets in which torch's DistributedDataParallel reduces gradients.

Read off torch 2.13, `torch/nn/parallel/distributed.py` and `compute_bucket_assignment_by_size` of its `reducer.cpp`: a
bucket takes gradients in the order in which backward made them, until it has at least so many bytes. In the first step
there is one bucket of all.
"""

from collections.abc import Iterator
from itertools import chain, repeat

from convoy.config.model import TransformerConfig
from convoy.model.families import block_of
from convoy.planner.step.fsdp_units import matrix_shapes

FIRST_BYTES, OTHER_BYTES = 2**20, 25 * 2**20
"""At which the first bucket is full, and each other one."""

GRADIENT = 4
"""Bytes of an element: weights are in fp32."""


class BucketFiller:
    """Fills one bucket after the other."""

    def __init__(self) -> None:
        self.elements = 0
        """In the bucket that is not full."""
        self._limit = FIRST_BYTES

    def add(self, elements: int) -> int:
        """Elements of the bucket that this gradient fills; 0: it fills none."""
        self.elements += elements
        if GRADIENT * self.elements < self._limit:
            return 0
        filled, self.elements, self._limit = self.elements, 0, OTHER_BYTES
        return filled


def bucket_elements(model: TransformerConfig, param_dtype: str) -> tuple[int, ...]:
    """Elements of each bucket of a whole model, in the order in which they are reduced."""
    filler = BucketFiller()
    filled = [filler.add(elements) for elements in _gradients(model, bias_first=param_dtype == "fp32")]
    return tuple(elements for elements in (*filled, filler.elements) if elements)


def _gradients(model: TransformerConfig, *, bias_first: bool) -> Iterator[int]:
    """Elements of each parameter, in the order in which backward makes their gradients. bias_first: before the matrix
    that it belongs to; by autocast its gradient comes after that."""
    block, shapes, order = block_of(model), matrix_shapes(model, 1), -1 if bias_first else 1
    if not model.tied_embeddings:
        yield model.vocab_size * model.d_model
    yield from repeat(model.d_model, model.vectors_per_norm)
    attention, mlp = (
        [rows * columns for matrix in reversed(part) for rows, columns in shapes[matrix.name][::order]]
        for part in (block.attention, block.mlp)
    )
    first, *second = ([norm.width] * norm.vectors for norm in block.norms)
    for _ in range(model.n_layers):
        yield from (*mlp, *chain(*second), *attention, *first)
    if model.positions == "learned":
        yield model.max_sequence_length * model.d_model
    yield model.vocab_size * model.d_model
