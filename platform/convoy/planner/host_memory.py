"""What a job takes of each machine's own memory: above all two staged copies of its part of the state.

Pages of /dev/shm count against the memory of the container that wrote them. Sources: Linux, "Memory Resource
Controller"; Kubernetes, "emptyDir" in memory.
"""

from typing import NamedTuple

from convoy.model.counts import SAVED_BYTES, TRAINED_BYTES, parameter_count
from convoy.planner.workload import Workload

SLOTS = 2
"""A copy is written while the next one is made."""

UNEVEN = 1.1
"""The share of a rank is taken to be so many times the mean: tensors are not cut to be equal."""

SHARED_BYTES = 2**30
"""Of /dev/shm on each node, for NCCL's own segments and for data loaders."""

WORKER_BYTES = 4 * 2**30
"""Of a worker whose model is on a GPU: torch, CUDA's context, NCCL, and what the writer beside it holds."""

MEMORY_SHARE = 0.85
"""Of an instance's nominal memory: the rest is the kernel's, the kubelet's (which Karpenter assumes to be 7.5 %
before its own reserve) and the 10 GiB of huge pages of EFA."""


class HostMemory(NamedTuple):
    """Of one machine, in bytes."""

    states: int
    """Weights, gradients and moments, where they are in host memory."""
    staged: int
    """Copies of the state that checkpoints are written from."""
    processes: int
    """Of workers on GPUs, and what they share."""
    capacity: int
    """That a task may have."""

    @property
    def total(self) -> int:
        return self.states + self.staged + self.processes

    @property
    def fits(self) -> bool:
        return self.total <= self.capacity


def host_memory(workload: Workload) -> HostMemory:
    """Whatever is configured of checkpoints: what is staged does not depend on where it goes, nor on how often."""
    machine, whole = workload.machine, parameter_count(workload.model)
    on_cpu = machine.gpu == "cpu"
    states = 0
    if on_cpu or workload.parallel.cpu_offload:
        states = TRAINED_BYTES * whole * machine.ranks // workload.sharing
    staged = int(SLOTS * UNEVEN * SAVED_BYTES * whole / workload.nodes)
    processes = SHARED_BYTES + (0 if on_cpu else WORKER_BYTES * machine.ranks)
    return HostMemory(states, staged, processes, int(MEMORY_SHARE * machine.host_bytes))
