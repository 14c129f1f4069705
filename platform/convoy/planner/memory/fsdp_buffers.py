"""What FSDP2 gathers, frees and reduces around the units of a rank, and the memory that it takes.

Read off torch 2.13, `torch/distributed/fsdp/_fully_shard`: `_fsdp_param_group.py` and `_fsdp_collectives.py`. In
forward what was gathered stays until the next unit is there; in backward the unit before is gathered ahead; what a
reduction was given stays until the next one begins.
"""

from dataclasses import dataclass

from convoy.planner.memory.accumulator import MemoryAccumulator
from convoy.planner.step.fsdp_units import Unit

UnitInBlock = tuple[str, int]
"""A unit by its name and the number of its block."""

GRADIENT = 4
"""Bytes of an element of a gradient that the optimizer is given."""


@dataclass(frozen=True)
class PassTraits:
    """What is true of one forward and backward of a step."""

    reduces: bool
    """Gradients, among ranks that share weights."""
    last: bool
    """Replicas exchange what they have."""
    whole_before: bool
    """Passes before it have left gradients of whole units."""
    shards_before: bool
    """Passes before it have left shards of gradients."""
    keeps: bool = False
    """What backward has gathered stays, as in a pipeline."""


class FsdpBuffers:
    """Buffers of what FSDP2 gathers and reduces on one rank, counted in an accumulator."""

    def __init__(
        self, memory: MemoryAccumulator, *, width: int, reduced: int, replicated: bool, offloaded: bool, exchanged: bool
    ) -> None:
        """width, reduced: bytes of a weight that computes, and of a gradient that is reduced. replicated: a mesh of two
        dimensions, sharded and replicated. exchanged: ranks on CPUs reduce by `parallel/gloo.py`."""
        self._memory = memory
        self._width, self._reduced = width, reduced
        self._replicated, self._offloaded, self._exchanged = replicated, offloaded, exchanged
        self._on_the_way = 0  # of the unit before, in forward
        self._reducing = 0  # of the unit before, in backward
        self._ahead: set[UnitInBlock] = set()
        self._there: set[UnitInBlock] = set()

    def gather_for_forward(self, unit: Unit, block: int) -> None:
        """Gather it before its forward, or before that is computed again. block: number of its block."""
        if (unit.name, block) in self._there:
            return
        self._gather(unit, block)
        self._memory.free("gathered", self._on_the_way)
        self._memory.allocate("gathered", self._width * unit.padded_elements)
        self._on_the_way = self._width * unit.padded_elements if unit.shards > 1 else 0
        self._there.add((unit.name, block))

    def end_forward(self) -> None:
        """At the end of the model's forward."""
        self._memory.free("gathered", self._on_the_way)
        self._on_the_way = 0

    def gather_for_backward(self, unit: Unit, block: int) -> None:
        """Gather it before its backward, unless it is there."""
        if (unit.name, block) in self._there:
            return
        self._gather(unit, block)
        self._memory.allocate("gathered", self._width * unit.padded_elements)
        if unit.shards > 1:
            self._memory.free("gathered", self._width * unit.padded_elements)
        self._there.add((unit.name, block))

    def prefetch(self, unit: Unit, block: int) -> None:
        """Begin to gather what backward needs next, unless it is there."""
        if (unit.name, block) not in self._there:
            self._gather(unit, block)
            self._ahead.add((unit.name, block))

    def free(self, unit: Unit, block: int) -> None:
        self._there.discard((unit.name, block))
        self._memory.free("gathered", self._width * unit.padded_elements)

    def _gather(self, unit: Unit, block: int) -> None:
        if (unit.name, block) in self._ahead:
            self._ahead.discard((unit.name, block))
            return
        if unit.shards == 1:
            return
        own = self._width * unit.shard_elements if self._width < 4 else 0
        copied = own + (4 * unit.shard_elements if self._offloaded else 0)
        self._memory.allocate("gathered", copied)
        self._memory.allocate("gathered", self._width * unit.padded_elements)
        self._memory.free("gathered", copied)

    def reduce(self, unit: Unit, block: int, traits: PassTraits, size: int) -> None:
        """After its backward: free it, and reduce its gradients. size: bytes of them, in this pass."""
        added_up = self._reduced * unit.elements
        if not traits.reduces:
            if traits.whole_before:
                self._memory.free("gradients", size)
            elif self._reduced != self._width:
                self._memory.allocate("gradients", added_up)
                self._memory.free("gradients", size)
            if not traits.keeps:
                self.free(unit, block)
            return
        if traits.whole_before:
            self._memory.free("gradients", size)
            size = added_up
        self.free(unit, block)
        self._memory.free("reduced", self._reducing)
        self._reducing = self._reduced * unit.padded_elements
        self._memory.allocate("reduced", self._reducing)
        self._memory.free("gradients", size)
        self._memory.allocate("reduced", self._reduced * unit.shard_elements)
        if self._exchanged and unit.shards > 1:  # what the others send
            self._memory.allocate("reduced", self._reducing)
            self._memory.free("reduced", self._reducing)
        self._store_gradient_shard(unit, traits)

    def _store_gradient_shard(self, unit: Unit, traits: PassTraits) -> None:
        """What a reduction gives becomes the gradient of the rank's weights, or is added to it."""
        result, memory = self._reduced * unit.shard_elements, self._memory
        if self._replicated and not traits.last:
            memory.free("reduced", result)
            if not traits.shards_before:
                memory.allocate("gradients", result)
            return
        if self._replicated and traits.shards_before:
            memory.free("gradients", result)
        if self._reduced < GRADIENT:
            memory.allocate("gradients", GRADIENT * unit.shard_elements)
            if not self._replicated:  # what replicas exchange stays until backward is over
                memory.free("reduced", result)
        else:
            memory.free("reduced", result)
            memory.allocate("gradients", result)
        if (traits.shards_before and not self._replicated) or self._offloaded:
            memory.free("gradients", GRADIENT * unit.shard_elements)

    def end_backward(self) -> None:
        """At the end of the last pass; in earlier ones the last buffer stays until the next reduction."""
        self._memory.free("reduced", self._memory.current_bytes["reduced"])
        self._reducing = 0
