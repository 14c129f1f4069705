"""What a job takes of each machine's own memory: above all two staged copies of its part of the state.

Pages of /dev/shm count against the memory of the container that wrote them. Sources: Linux, "Memory Resource
Controller"; Kubernetes, "emptyDir" in memory.
"""

import math
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
    """That ranks compute with: all tensors at the peak of a step where there is no GPU, and weights, gradients and
    moments that are offloaded from one."""
    staged: int
    """Copies of the state that checkpoints are written from."""
    processes: int
    """Of workers on GPUs, and what they share."""
    capacity: int
    """That a task may have; without a GPU the ranks' tensors are in it too, and it is the one that counts."""

    @property
    def total(self) -> int:
        return self.states + self.staged + self.processes

    @property
    def fits(self) -> bool:
        return self.total <= self.capacity


def host_memory(workload: Workload, peak: int) -> HostMemory:
    """Whatever is configured of checkpoints: what is staged does not depend on where it goes, nor on how often.

    peak: bytes of a rank's tensors, which are in host memory where there is no GPU.
    """
    machine, states = workload.machine, 0
    if machine.gpu == "cpu":
        states = peak * machine.ranks
    elif workload.parallel.cpu_offload:
        states = TRAINED_BYTES * parameter_count(workload.model) * machine.ranks // workload.sharing
    return HostMemory(states, _staged(workload), _processes(workload), capacity(workload))


def beside(workload: Workload) -> int:
    """Bytes of each rank's part of a machine without GPUs that are not for its tensors: what the system keeps, staged
    copies of the state, and what processes share."""
    machine = workload.machine
    taken = machine.host_bytes - capacity(workload) + _staged(workload) + _processes(workload)
    return math.ceil(taken / machine.ranks)


def capacity(workload: Workload) -> int:
    """Bytes of a machine that a task may have."""
    return int(MEMORY_SHARE * workload.machine.host_bytes)


def _staged(workload: Workload) -> int:
    return int(SLOTS * UNEVEN * SAVED_BYTES * parameter_count(workload.model) / workload.nodes)


def _processes(workload: Workload) -> int:
    machine = workload.machine
    return SHARED_BYTES + (0 if machine.gpu == "cpu" else WORKER_BYTES * machine.ranks)
