"""What memory a variant takes by itself, though others are held beside it in the same processes.

What it holds between steps is known tensor by tensor. What a step takes on top of that is told by the allocator, in an
untimed step after all rounds: on a GPU by its own counters, on a CPU by the profiler's record of every allocation.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from convoy.benchmark.results.values import MEMORY_FRAGMENTATION, MEMORY_HOST_BYTES, MEMORY_PARTS

PROFILED_STEPS = 2
"""On a CPU. The least of them counts: what a thread of gloo frees is not seen by the profiler, and looks as if it were
still there."""

Kept = Mapping[str, Iterable[torch.Tensor]]
"""By what it is for: `parameters`, `optimizer`, `gradients`."""


@runtime_checkable
class Holding(Protocol):
    """A variant that tells what it holds."""

    def step(self) -> None:
        """As in `rounds.Variant`."""

    def held(self) -> Kept:
        """Everything of any size that this rank keeps from one step to the next."""


class Footprint(NamedTuple):
    """Bytes of one rank at the peak of a step, on the device that computes."""

    parameters: int
    optimizer: int
    gradients: int
    """Between steps: those of a step are in `step`."""
    step: int
    """On top of what is held: activations, gradients, what was gathered, and buffers."""
    host: int
    """Held beside the GPU, in host memory."""
    reserved: int
    """What the allocator took from the GPU for the step; 0: not known."""

    @property
    def peak(self) -> int:
        return self.parameters + self.optimizer + self.gradients + self.step

    def values(self) -> dict[str, float]:
        """By the names of `Case.values`."""
        told = {value: float(getattr(self, part)) for part, value in MEMORY_PARTS.items()}
        if self.host:
            told[MEMORY_HOST_BYTES] = float(self.host)
        if self.reserved:
            told[MEMORY_FRAGMENTATION] = max(0.0, 1 - self.step / self.reserved)
        return told


def footprint(
    variant: object, device: torch.device, control: dist.ProcessGroup, passed: Callable[[], None] = lambda: None
) -> Footprint | None:
    """Of the rank that takes most; None: the variant does not tell what it holds.

    All ranks call it alike, those without a part in the variant too; the variant makes steps. passed: called after.
    """
    own = _own(variant, device) if isinstance(variant, Holding) else Footprint(0, 0, 0, 0, 0, 0)
    passed()
    every = [torch.zeros(len(own), dtype=torch.int64) for _ in range(dist.get_world_size(control))]
    dist.all_gather(every, torch.tensor(own, dtype=torch.int64), group=control)
    most = max((Footprint(*each.tolist()) for each in every), key=lambda each: each.peak)
    return most if most.peak else None


def _own(variant: Holding, device: torch.device) -> Footprint:
    kept = variant.held()
    here = {part: _bytes(tensors, device.type) for part, tensors in kept.items()}
    host = sum(_bytes(tensors, "cpu") for tensors in kept.values()) if device.type != "cpu" else 0
    step, reserved = _of_step_on_gpu(variant, device) if device.type == "cuda" else (_of_step_on_cpu(variant), 0)
    held = (here.get("parameters", 0), here.get("optimizer", 0), here.get("gradients", 0))
    return Footprint(*held, step=step, host=host, reserved=reserved)


def _bytes(tensors: Iterable[torch.Tensor], device_type: str) -> int:
    """Of this rank's parts of them, those on such a device."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.nbytes for tensor in local if tensor.device.type == device_type)


def _of_step_on_gpu(variant: Holding, device: torch.device) -> tuple[int, int]:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    variant.step()
    torch.cuda.synchronize(device)
    return (
        torch.cuda.max_memory_allocated(device) - allocated,
        torch.cuda.max_memory_reserved(device) - reserved,
    )


def _of_step_on_cpu(variant: Holding) -> int:
    found = []
    for _ in range(PROFILED_STEPS):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            variant.step()
        found.append(highest(profiler))
    return min(found)


def highest(profiler: profile) -> int:
    """Bytes of what was allocated and not yet freed, at most over the whole record."""
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    live = most = 0
    events: Any = profiler.profiler.kineto_results.events()  # `profiler.events()` folds allocations into operators
    for event in events:
        if event.name() == "[memory]":
            live += event.nbytes()  # negative where memory is freed
            most = max(most, live)
    return most
