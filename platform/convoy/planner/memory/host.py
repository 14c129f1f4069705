"""Memory that a job needs on each machine: above all two staged copies of its part of the state.

Pages of /dev/shm count against the memory of the container that wrote them. Sources: Linux, "Memory Resource
Controller"; Kubernetes, "emptyDir" in memory.
"""

import math
from dataclasses import dataclass

from convoy.catalog.instances import MEMORY_SHARE
from convoy.config.model import TransformerConfig
from convoy.model.counts import SAVED_BYTES, TRAINED_BYTES, parameter_count
from convoy.planner.workload import Machine, Workload

SLOTS = 2
"""A copy is written while the next one is made."""

UNEVEN = 1.1
"""Largest share of a rank over the mean share: tensors are not cut to be equal."""

SHARED_BYTES = 2**30
"""/dev/shm of each node for NCCL's own segments and for data loaders."""

WORKER_BYTES = 4 * 2**30
"""Memory of a worker whose model is on a GPU: torch, CUDA's context, NCCL, and its writer process."""


@dataclass(frozen=True)
class HostMemory:
    """Memory of one machine."""

    states_bytes: int
    """What ranks compute with: without a GPU all tensors at the peak of a step, else what is offloaded from it."""
    staged_bytes: int
    """Copies of the state that checkpoints are written from."""
    processes_bytes: int
    """Workers on GPUs, and what they share."""
    capacity_bytes: int
    """What a task may have."""
    fits: bool

    @property
    def total_bytes(self) -> int:
        return self.states_bytes + self.staged_bytes + self.processes_bytes


def host_memory(workload: Workload, tensor_bytes: int) -> HostMemory:
    """The same whatever is configured of checkpoints: staging depends neither on where nor on how often they go.

    tensor_bytes: bytes of a rank's tensors, which are in host memory where there is no GPU.
    """
    machine, model, states = workload.machine, workload.model, 0
    if machine.gpu == "cpu":
        states = tensor_bytes * machine.ranks
    elif workload.parallel.cpu_offload:
        states = training_state_bytes(model, machine.ranks, workload.ranks_per_state_copy)
    staged, processes = staged_bytes(model, workload.nodes), process_bytes(machine.ranks, on_gpus=machine.gpu != "cpu")
    capacity = usable_bytes(machine)
    return HostMemory(states, staged, processes, capacity, states + staged + processes <= capacity)


def cpu_reserved_bytes(workload: Workload) -> int:
    """Bytes of each rank's part of a machine without GPUs that its tensors cannot use: what the system keeps, staged
    copies of the state, and what processes share."""
    machine = workload.machine
    used = staged_bytes(workload.model, workload.nodes) + process_bytes(machine.ranks, on_gpus=False)
    return math.ceil((machine.host_bytes - usable_bytes(machine) + used) / machine.ranks)


def usable_bytes(machine: Machine) -> int:
    """Memory of a machine that a task may have, /dev/shm included."""
    return int(MEMORY_SHARE * machine.host_bytes if machine.task_bytes is None else machine.task_bytes)


def staged_bytes(model: TransformerConfig, nodes: int) -> int:
    """Staged copies on each of so many machines."""
    return int(SLOTS * UNEVEN * SAVED_BYTES * parameter_count(model) / nodes)


def training_state_bytes(model: TransformerConfig, ranks: int, ranks_per_copy: int) -> int:
    """Weights, gradients and moments of a machine's ranks, where `ranks_per_copy` hold one copy together."""
    return TRAINED_BYTES * parameter_count(model) * ranks // ranks_per_copy


def process_bytes(ranks: int, *, on_gpus: bool) -> int:
    """Workers of a machine and what they share, next to states and staged copies."""
    return SHARED_BYTES + (WORKER_BYTES * ranks if on_gpus else 0)
