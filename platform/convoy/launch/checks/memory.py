"""Whether the machines of a run have the memory that its workers need, by the planner's estimate of host memory.

What is refused surely lacks room: activations in host memory are not counted. Pure but for reading how much this host
has.
"""

import os
from pathlib import Path

from convoy.catalog.instances import Instance
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig, World
from convoy.model.counts import SAVED_BYTES, TRAINED_BYTES, parameter_count
from convoy.planner.memory.host import (
    SHARED_BYTES,
    SLOTS,
    process_bytes,
    staged_bytes,
    training_state_bytes,
)

MIB = 2**20


def staging_mib(config: RunConfig, ranks: World) -> int | None:
    """Staged copies of one node's workers; None: the size of a custom model is not known."""
    if isinstance(config.model, CustomModelConfig):
        return None
    return _mib(staged_bytes(config.model, ranks.nodes))


def shared_memory_mib(config: RunConfig, ranks: World, machine: Instance) -> int:
    """Size of /dev/shm: as configured, else an eighth of the machine's memory, or as much as staging takes."""
    if config.cluster.shared_memory_mib is not None:
        return config.cluster.shared_memory_mib
    eighth = machine.memory_gib * 1024 // 8
    return max(eighth, (staging_mib(config, ranks) or 0) + SHARED_BYTES // MIB)


def check_machine_memory(config: RunConfig, ranks: World, machine: Instance) -> None:
    """Raise ConfigError if a node's workers and what they stage do not fit the machine."""
    configured, most = config.cluster.shared_memory_mib, machine.task_memory_mib
    if configured is not None and configured > most:
        raise ConfigError(
            f"cluster.shared_memory_mib = {configured}: must be at most the memory of the task, {most} on a "
            f"{machine.name}"
        )
    if isinstance(config.model, CustomModelConfig):
        return
    staged = staged_bytes(config.model, ranks.nodes)
    if configured is not None and configured < _mib(staged):
        raise ConfigError(
            f"cluster.shared_memory_mib = {configured}: must be at least {_mib(staged)}, for two copies of each node's "
            "part of the state, one of which is saved while the other is made; or leave it out"
        )
    needed = staged + process_bytes(ranks.nproc_per_node, on_gpus=bool(machine.gpus))
    if _keeps_state_in_host_memory(config) or not machine.gpus:  # the state itself is in host memory
        sharing = config.parallel.ranks_per_state_copy(ranks.size, ranks.nproc_per_node)
        needed += training_state_bytes(config.model, ranks.nproc_per_node, sharing)
    if _mib(needed) > most:
        nodes = f"{ranks.nodes} node{'s' if ranks.nodes > 1 else ''}"
        raise ConfigError(
            f"cluster.nodes = {ranks.nodes}: on {nodes} each one stages {_gib(_mib(staged))} of the state and needs "
            f"{_gib(_mib(needed))} of memory in all, and a {machine.name} leaves {_gib(most)}; use more nodes"
        )


def check_host_memory(config: RunConfig, gpus: int, host_mib: int) -> None:
    """Raise ConfigError if the state of a local run, all of whose ranks share this host, does not fit its memory."""
    if isinstance(config.model, CustomModelConfig):
        return
    replicas = 0 if gpus and not _keeps_state_in_host_memory(config) else _state_copies(config)
    needed = _mib(parameter_count(config.model) * (SLOTS * SAVED_BYTES + replicas * TRAINED_BYTES))
    if needed > host_mib:
        times = "" if replicas == 1 else f"{replicas} times "
        what = "two copies of the state" if gpus else f"{times}the state and two copies of it"
        raise ConfigError(
            f"model = {config.model.name}: {what} take {_gib(needed)} of this host's memory, which has "
            f"{_gib(host_mib)}; take a smaller model, or a cluster"
        )


def _keeps_state_in_host_memory(config: RunConfig) -> bool:
    """Whether the optimizer state is in host memory although GPUs do the computation."""
    return config.parallel.cpu_offload or "offload_optimizer" in config.engine.offloads


def _state_copies(config: RunConfig) -> int:
    """How often the ranks of a local run on the CPU hold the state, all together."""
    nproc = config.cluster.nproc_per_node or 1
    ranks = config.cluster.nodes * nproc
    return max(1, ranks // config.parallel.ranks_per_state_copy(ranks, nproc))


def host_memory_mib(cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """What this host's processes may use: its memory, or the limit of the container they are in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = cgroup.read_text().strip()
    except OSError:
        limit = "max"
    return min(total, int(limit)) // MIB if limit.isdigit() else total // MIB


def _mib(size: float) -> int:
    return -(-int(size) // MIB)


def _gib(mib: int) -> str:
    return f"{mib / 1024:,.1f} GiB"
