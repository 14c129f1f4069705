"""A step of a rank whose whole model torch's DistributedDataParallel trains, as an accumulator of its memory.

Read off torch 2.13, `reducer.cpp` and autocast: buckets exist from the start, and the gradients that the last pass
leaves are views of them. In bf16, autocast copies the weights of linear layers and keeps the copies until forward ends;
backward needs a layer's copy as well.
"""

from convoy.model.families import block_of
from convoy.planner.memory.accumulator import LiveTensors, MemoryAccumulator
from convoy.planner.memory.activations import (
    EVERYTHING,
    BlockActivationBytes,
    LossBytes,
    replay_backward,
    replay_forward,
    saved_activations,
)
from convoy.planner.step.ddp_buckets import GRADIENT, BucketFiller, bucket_elements
from convoy.planner.step.fsdp_units import WIDTH, matrix_shapes
from convoy.planner.workload import Workload


def replay_ddp_step(workload: Workload, memory: MemoryAccumulator, *, fused: bool) -> None:
    """fused: the update is one kernel."""
    step = _DdpReplay(workload, memory)
    memory.allocate("parameters", 4 * step.elements)
    memory.allocate("optimizer", 8 * step.elements)
    memory.allocate("gradients", GRADIENT * step.elements)
    if workload.passes > 1:  # those between hold no more than the last
        step.replay_pass(last=False)
    step.replay_pass(last=True)
    if not fused:
        memory.allocate("optimizer", 4 * step.elements)  # a copy of the second moments, to divide by
        memory.free("optimizer", 4 * step.elements)


class _DdpReplay:
    """Forward and backward of a whole model."""

    def __init__(self, workload: Workload, memory: MemoryAccumulator) -> None:
        model, train = workload.model, workload.train
        self._memory, self._model = memory, model
        buckets = bucket_elements(model, train.param_dtype)
        self.elements, self._last_bucket, self._filler = sum(buckets), buckets[-1], BucketFiller()
        self._accumulates = workload.passes > 1
        self._buffer_bytes = _buffer_bytes(workload)
        self._width = WIDTH[train.param_dtype]
        self._copy = self._width if workload.autocasts else 0
        self._sizes = BlockActivationBytes.of(workload)
        self._loss = LossBytes.of(workload)
        self._keep = saved_activations(train.activation_checkpointing, gated=self._sizes.block.gated)
        self._recomputes = train.activation_checkpointing != "none"
        self._matrices = {
            name: sum(rows * columns for rows, columns in shapes) for name, shapes in matrix_shapes(model, 1).items()
        }
        self._norms = sum(norm.vectors * norm.width for norm in block_of(model).norms)
        self._saved: dict[str, int] = {}
        """Activations of a block, from forward to backward."""
        self._last = True

    def replay_pass(self, *, last: bool) -> None:
        """last: the pass that reduces."""
        self._last, memory, hidden = last, self._memory, self._sizes.hidden
        memory.repeat(self._model.n_layers, self._block_forward)
        memory.allocate("activations", hidden)  # the last block's output
        head = self._model.vocab_size * self._model.d_model
        self._loss.replay_forward(memory)
        if self._recomputes:  # nothing but autocast has kept its copies
            memory.free("gathered", self._model.n_layers * self._copy * sum(self._matrices.values()))
        self._loss.replay_backward(memory)
        self._uncast(head)
        if not self._model.tied_embeddings:
            self._store(head)
        memory.allocate("activations", hidden)  # the gradient of what the norm was given
        memory.free("activations", hidden)
        self._make(self._model.vectors_per_norm * self._model.d_model)
        memory.repeat(self._model.n_layers, self._block_backward)
        self._embed_backward(head)

    def on_forward(self, name: str) -> None:
        """As `MatrixObserver`."""
        self._memory.allocate("gathered", self._copy * self._matrices[name])

    def on_gradient(self, name: str) -> None:
        self._memory.allocate("gradients", self._width * self._matrices[name])
        self._memory.free("gathered", self._copy * self._matrices[name])

    def on_backward_done(self, name: str) -> None:
        self._uncast(self._matrices[name])
        self._store(self._matrices[name])

    def _block_forward(self) -> None:
        self._memory.allocate("activations", self._sizes.hidden)  # its input
        live = LiveTensors(self._memory, {})
        replay_forward(live, self._sizes, self._keep, self)
        if "fifth" in self._keep:
            live.allocate("fifth", self._sizes.branch)
        self._saved = live.drop_all_but(self._keep)

    def _block_backward(self) -> None:
        live = LiveTensors(self._memory, self._saved)
        if self._recomputes:
            replay_forward(live, self._sizes, EVERYTHING, self)
        replay_backward(live, self._sizes, self)
        self._memory.free("activations", self._sizes.hidden)
        self._make(self._norms)

    def _embed_backward(self, tokens: int) -> None:
        """And of a head that shares the embedding's weight, whose own gradient is there."""
        if self._model.positions == "learned":
            self._make(self._model.max_sequence_length * self._model.d_model)
        self._memory.allocate("gradients", GRADIENT * tokens)
        self._memory.free("activations", self._sizes.hidden)
        if self._model.tied_embeddings:
            self._memory.allocate("gradients", GRADIENT * tokens)  # the sum of both
            self._memory.free("gradients", 2 * GRADIENT * tokens)
        self._store(tokens, ends=True)

    def _make(self, elements: int) -> None:
        """A gradient of weights that nobody copies."""
        self._memory.allocate("gradients", GRADIENT * elements)
        self._store(elements)

    def _uncast(self, elements: int) -> None:
        """A gradient in the type that computes becomes one of the weights."""
        if self._copy:
            self._memory.allocate("gradients", GRADIENT * elements)
            self._memory.free("gradients", self._width * elements)

    def _store(self, elements: int, *, ends: bool = False) -> None:
        """A gradient stays until the last pass has added its own to it, and the sum is copied into a bucket, whose
        reduction is over before the next one's begins. ends: backward ends with it."""
        if not self._last:
            return
        if self._accumulates:
            self._memory.free("gradients", GRADIENT * elements)
        filled = self._last_bucket if ends else self._filler.add(elements)
        self._memory.allocate("reduced", self._buffer_bytes * filled)
        self._memory.free("reduced", self._buffer_bytes * filled)
        self._memory.free("gradients", GRADIENT * elements)


def _buffer_bytes(workload: Workload) -> int:
    """What a reduction takes next to a bucket, for each of its elements."""
    train, on_cpu = workload.train, workload.machine.gpu == "cpu"
    width, in_fp32 = WIDTH[train.reduce_dtype], train.reduce_dtype == "fp32"
    if workload.parallel.adds_in_rank_order(workload.ranks, train.reduce_dtype, on_cpu=on_cpu):
        return width * (workload.ranks + (not in_fp32))
    return 0 if in_fp32 else width
