"""The memory that a variant takes by itself, though others are in memory in the same processes.

What it holds between steps is known tensor by tensor. What a step takes on top is measured in an untimed step after all
rounds: on a GPU by the allocator's counters, on a CPU by the profiler's record of every allocation.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from convoy.benchmark.results.values import MEMORY_FRAGMENTATION, MEMORY_HOST_BYTES, MEMORY_PARTS
from convoy.benchmark.variants.variant import Variant
from convoy.training.process_groups import Ranks

PROFILED_STEPS = 2
"""On a CPU. The least of them counts: memory that a thread of gloo frees is invisible to the profiler, and would seem
to be still allocated."""


class Footprint(NamedTuple):
    """Bytes of one rank at the peak of a step, on the device that computes."""

    parameters: int
    optimizer: int
    gradients: int
    """Held between steps; those of a step are in `step`."""
    step: int
    """On top of what is held: activations, gradients, gathered parameters, and buffers."""
    host: int
    """Held in host memory, apart from the GPU."""
    reserved: int
    """What the allocator took from the GPU for the step; 0: not known."""

    @property
    def peak_bytes(self) -> int:
        return self.parameters + self.optimizer + self.gradients + self.step

    def case_values(self) -> dict[str, float]:
        """The figures by the names of `Case.values`."""
        values = {value: float(getattr(self, part)) for part, value in MEMORY_PARTS.items()}
        if self.host:
            values[MEMORY_HOST_BYTES] = float(self.host)
        if self.reserved:
            values[MEMORY_FRAGMENTATION] = max(0.0, 1 - self.step / self.reserved)
        return values


def measure_footprint(variant: Variant, ranks: Ranks, progress: Callable[[], None] = lambda: None) -> Footprint | None:
    """The footprint of the rank that takes most, as `measure_footprints`; None: the variant holds nothing."""
    return largest_footprint(measure_footprints(variant, ranks, progress))


def largest_footprint(footprints: Iterable[Footprint]) -> Footprint | None:
    """That of the rank that takes most; None: none of them takes anything."""
    most = max(footprints, key=lambda each: each.peak_bytes)
    return most if most.peak_bytes else None


def measure_footprints(variant: Variant, ranks: Ranks, progress: Callable[[], None] = lambda: None) -> list[Footprint]:
    """The footprints of all ranks, in their order.

    All ranks call it alike, those without a part in the variant too; the variant makes steps. progress: called after.
    """
    own = _measure_own_footprint(variant, ranks.device)
    progress()
    every = [torch.zeros(len(own), dtype=torch.int64) for _ in range(dist.get_world_size(ranks.control))]
    dist.all_gather(every, torch.tensor(own, dtype=torch.int64), group=ranks.control)
    return [Footprint(*each.tolist()) for each in every]


def _measure_own_footprint(variant: Variant, device: torch.device) -> Footprint:
    held = variant.held()
    if not held:
        return Footprint(0, 0, 0, 0, 0, 0)
    host = sum(_local_bytes(tensors, "cpu") for tensors in held.values()) if device.type != "cpu" else 0
    step, reserved = _step_bytes_on_gpu(variant, device) if device.type == "cuda" else (_step_bytes_on_cpu(variant), 0)
    parts = {part: _local_bytes(held.get(part, ()), device.type) for part in ("parameters", "optimizer", "gradients")}
    return Footprint(**parts, step=step, host=host, reserved=reserved)


def _local_bytes(tensors: Iterable[torch.Tensor], device_type: str) -> int:
    """Bytes of this rank's parts of the tensors that are on such a device."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.nbytes for tensor in local if tensor.device.type == device_type)


def _step_bytes_on_gpu(variant: Variant, device: torch.device) -> tuple[int, int]:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    variant.step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - allocated, torch.cuda.max_memory_reserved(device) - reserved


def _step_bytes_on_cpu(variant: Variant) -> int:
    peaks = []
    for _ in range(PROFILED_STEPS):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            variant.step()
        peaks.append(peak_allocated_bytes(profiler))
    return min(peaks)


def peak_allocated_bytes(profiler: profile) -> int:
    """The most bytes that were allocated at one time, over the whole record."""
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    live = most = 0
    events: Any = profiler.profiler.kineto_results.events()  # `profiler.events()` folds allocations into operators
    for event in events:
        if event.name() == "[memory]":
            live += event.nbytes()  # negative where memory is freed
            most = max(most, live)
    return most
