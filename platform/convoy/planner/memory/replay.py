"""A step of one rank, from the first gather to the update, as an accumulator of its memory."""

from dataclasses import replace
from functools import partial

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
from convoy.planner.memory.ddp import replay_ddp_step
from convoy.planner.memory.fsdp_buffers import FsdpBuffers, PassTraits
from convoy.planner.step.fsdp_units import WIDTH, Stage, Unit, matrix_shapes
from convoy.planner.workload import Workload


def replay_step(workload: Workload, stage: Stage, *, in_flight: int = 1, fused: bool = True) -> MemoryAccumulator:
    """in_flight: micro batches whose activations a pipeline stage holds. fused: the update is one kernel."""
    memory = MemoryAccumulator()
    if workload.parallel.uses_ddp:
        replay_ddp_step(workload, memory, fused=fused)
        return memory
    offloaded = workload.parallel.cpu_offload and workload.machine.gpu != "cpu"
    if not offloaded:
        memory.allocate("parameters", 4 * stage.shard_elements)
        memory.allocate("optimizer", 8 * stage.shard_elements)
    step = _StepReplay(workload, stage, memory, offloaded=offloaded)
    if workload.parallel.pipeline > 1:
        step.allocate_stage_buffers(workload.passes, in_flight)
    for one in _distinct_passes(workload):
        step.replay_pass(one, in_flight)
    if workload.parallel.pipeline > 1:
        step.reduce_all()
    if not fused and not offloaded:
        memory.allocate("optimizer", 4 * stage.shard_elements)  # a copy of the second moments, to divide by
        memory.free("optimizer", 4 * stage.shard_elements)
    return memory


def _distinct_passes(workload: Workload) -> list[PassTraits]:
    """One, or the first and the last: those between hold no more than the last."""
    staged = workload.parallel.pipeline > 1
    each = workload.parallel.reduce_every_pass and not staged
    last = PassTraits(reduces=not staged, last=True, whole_before=False, shards_before=False, keeps=staged)
    if workload.passes == 1:
        return [last]
    first = replace(last, reduces=each, last=False)
    return [first, replace(last, whole_before=not each, shards_before=each)]


class _StepReplay:
    """Forward and backward of the blocks of a rank, and of embedding and head if it has them."""

    def __init__(self, workload: Workload, stage: Stage, memory: MemoryAccumulator, *, offloaded: bool) -> None:
        model, train, parallel = workload.model, workload.train, workload.parallel
        self._stage, self._memory = stage, memory
        self._width = WIDTH[train.param_dtype]
        self._buffers = FsdpBuffers(
            memory,
            width=self._width,
            reduced=WIDTH[train.reduce_dtype],
            replicated=parallel.strategy != "fsdp",
            offloaded=offloaded,
            exchanged=workload.machine.gpu == "cpu",
        )
        self._sizes = BlockActivationBytes.of(workload)
        self._loss = LossBytes.of(workload)
        self._keep = saved_activations(train.activation_checkpointing, gated=self._sizes.block.gated)
        self._recomputes = train.activation_checkpointing != "none"
        self._reshards = parallel.reshard_after_forward
        self._norms = self._width * sum(norm.vectors * norm.width for norm in block_of(model).norms)
        self._tied = model.tied_embeddings
        self._alone = parallel.wrap == "linear"
        self._matrices = {
            name: self._width * sum(rows * columns for rows, columns in shapes)
            for name, shapes in matrix_shapes(model, parallel.tensor).items()
        }
        self._saved: dict[str, int] = {}
        """Activations of a block, from forward to backward."""
        self._at = 0
        self._open: Unit | None = None
        """The matrix at work in forward, that is freed when the next one is."""
        self._backward = False

    def replay_pass(self, traits: PassTraits, in_flight: int) -> None:
        """A pass of the model; of a stage, with so many micro batches on their way back."""
        self._traits, self._backward, stage, hidden = traits, False, self._stage, self._sizes.hidden
        for end in (stage.root, stage.embed):
            if end is not None:
                self._buffers.gather_for_forward(end, 0)
        if stage.embed is not None and self._reshards:
            self._buffers.free(stage.embed, 0)
        self._memory.repeat(stage.blocks, self._block_forward)
        others = (in_flight - 1) * (stage.blocks * (hidden + sum(self._saved.values())) + hidden)
        self._memory.allocate("activations", others + hidden)  # and the last block's output
        self._head_and_loss()
        self._backward = True
        self._memory.repeat(stage.blocks, self._block_backward)
        self._embed_backward()
        self._memory.free("activations", others)
        if traits.last and not traits.keeps:
            self._buffers.end_backward()

    def allocate_stage_buffers(self, passes: int, in_flight: int) -> None:
        """Buffers that a stage has for each micro batch of a step: its inputs, and gradients of its outputs."""
        stage = self._stage
        inputs = 0 if stage.first else passes - in_flight  # the others are counted as activations
        self._memory.allocate("activations", (inputs + (0 if stage.last else passes)) * self._sizes.hidden)

    def reduce_all(self) -> None:
        """After the last micro batch of a pipeline, unit by unit."""
        one = replace(self._traits, reduces=True, whole_before=True)
        for unit, count in self._stage.unit_counts():
            self._memory.repeat(count, partial(self._buffers.reduce, unit, 0, one, 0))
        self._buffers.end_backward()

    def on_forward(self, name: str) -> None:
        """As `MatrixObserver`: in forward a matrix is there alone, computed again all those of a block are. Then torch
        takes each for a model of its own, and what was gathered for it is let go when it is over."""
        if not self._alone:
            return
        if self._backward:
            self._buffers.end_forward()
        self._free_open_matrix()
        self._open = self._unit(name)
        self._buffers.gather_for_forward(self._open, self._at)

    def on_gradient(self, name: str) -> None:
        if self._alone:
            self._buffers.gather_for_backward(self._unit(name), self._at)
            self._prefetch(self._stage.block.index(self._unit(name)))
        self._memory.allocate("gradients", self._matrices[name])

    def on_backward_done(self, name: str) -> None:
        if self._alone:
            self._buffers.reduce(self._unit(name), self._at, self._traits, self._matrices[name])

    def _unit(self, name: str) -> Unit:
        return next(unit for unit in self._stage.block if unit.name == name)

    def _free_open_matrix(self) -> None:
        if self._open is not None and self._reshards and not self._backward:
            self._buffers.free(self._open, self._at)
        self._open = None

    def _prefetch(self, index: int) -> None:
        """What backward needs after the block's unit of this number."""
        block = self._stage.block
        if index != 1 and len(block) > 1:
            self._buffers.prefetch(block[index - 1], self._at)
        elif self._at:
            self._buffers.prefetch(block[0], self._at - 1)
        elif self._stage.embed is not None:
            self._buffers.prefetch(self._stage.embed, 0)

    @property
    def _outer(self) -> Unit | None:
        """The outermost unit of a block; None: the root has all blocks."""
        return self._stage.block[0] if self._stage.block else None

    def _block_forward(self) -> None:
        outer = self._outer
        self._memory.allocate("activations", self._sizes.hidden)  # its input
        if outer is not None:
            self._buffers.gather_for_forward(outer, self._at)
        live = LiveTensors(self._memory, {})
        replay_forward(live, self._sizes, self._keep, self)
        self._free_open_matrix()
        if "fifth" in self._keep:
            live.allocate("fifth", self._sizes.branch)
        self._saved = live.drop_all_but(self._keep)
        if self._reshards and outer is not None:
            self._buffers.free(outer, self._at)
        self._at += 1

    def _block_backward(self) -> None:
        self._at -= 1
        outer = self._outer
        if outer is not None:
            self._buffers.gather_for_backward(outer, self._at)
            self._prefetch(0)
        live = LiveTensors(self._memory, self._saved)
        if self._recomputes:
            if self._alone:  # the gradient of its output is there before anything is computed again
                self._buffers.gather_for_backward(self._stage.block[-1], self._at)
                self._prefetch(len(self._stage.block) - 1)
            replay_forward(live, self._sizes, EVERYTHING, self)
            self._buffers.end_forward()
        self._open = None
        replay_backward(live, self._sizes, self)
        self._memory.allocate("gradients", self._norms)
        self._memory.free("activations", self._sizes.hidden)
        if outer is not None:
            self._buffers.reduce(outer, self._at, self._traits, self._width * outer.elements)

    def _head_and_loss(self) -> None:
        """The head and its loss, forward and backward, or what the next stage does meanwhile."""
        stage, loss, hidden = self._stage, self._loss, self._sizes.hidden
        if not stage.last:
            self._buffers.end_forward()
            return  # the gradient comes in the place of the output
        if stage.head is not None:
            self._buffers.gather_for_forward(stage.head, 0)
        loss.replay_forward(self._memory)
        self._buffers.end_forward()
        if self._outer is not None:
            self._buffers.prefetch(self._outer, self._at - 1)
        loss.replay_backward(self._memory)
        self._memory.allocate("activations", hidden)  # the gradient of what the norm was given
        self._memory.free("activations", hidden)
        if stage.head is not None:
            size = self._width * stage.head.elements
            self._memory.allocate("gradients", size - loss.weight_gradient)
            self._buffers.reduce(stage.head, 0, self._traits, size)

    def _embed_backward(self) -> None:
        """And of a head that shares the embedding's weight."""
        stage = self._stage
        unit = stage.root or stage.embed
        if unit is not None:
            self._buffers.gather_for_backward(unit, 0)
            size, head = self._width * unit.elements, self._loss.weight_gradient if stage.root is not None else 0
            shared = head if self._tied else 0
            blocks = 0 if stage.block else stage.blocks * (self._norms + sum(self._matrices.values()))
            self._memory.allocate("gradients", size - blocks - (head - shared))
            self._memory.allocate("gradients", shared)  # the sum of the embedding's own and the head's
            self._memory.free("gradients", 2 * shared)
            self._buffers.reduce(unit, 0, self._traits, size)
        self._memory.free("activations", self._sizes.hidden)
