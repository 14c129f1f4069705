"""The memory that a node's workers need beside their GPUs: above all two staged copies of their part of the state. Pure
but for reading how much this host has.

Pages of /dev/shm count against the memory of the container that wrote them. Sources: Linux, "Memory Resource
Controller"; Kubernetes, "emptyDir" in memory.
"""

import os
from pathlib import Path

from convoy.catalog.instances import Instance
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.config.ranks import World
from convoy.config.run import RunConfig
from convoy.model.counts import SAVED_BYTES, TRAINED_BYTES, parameter_count
from convoy.planner.memory.host import (
    MEMORY_SHARE,
    SHARED_BYTES,
    SLOTS,
    UNEVEN,
    WORKER_BYTES,
)

MIB = 2**20

SHARED_MIB = SHARED_BYTES // MIB

WORKER_MIB = WORKER_BYTES // MIB


def staging_mib(config: RunConfig, ranks: World) -> int | None:
    """For the staged copies of one node's workers; None: the size of a custom model is not known."""
    if isinstance(config.model, CustomModelConfig):
        return None
    whole = parameter_count(config.model) * SAVED_BYTES
    return _up(SLOTS * UNEVEN * whole * ranks.nproc_per_node / ranks.size)


def shared_memory_mib(config: RunConfig, ranks: World, machine: Instance) -> int:
    """Size of /dev/shm: as configured, else an eighth of the machine's memory, or as much as staging takes."""
    if config.cluster.shared_memory_mib is not None:
        return config.cluster.shared_memory_mib
    eighth = machine.memory_gib * 1024 // 8
    return max(eighth, (staging_mib(config, ranks) or 0) + SHARED_MIB)


def memory_mib(machine: Instance) -> int:
    """What a task may ask of the machine, /dev/shm included."""
    return int(machine.memory_gib * 1024 * MEMORY_SHARE)


def check_machine(config: RunConfig, ranks: World, machine: Instance) -> None:
    """Raise ConfigError if a node's workers and what they stage do not fit the machine."""
    staged, configured, most = staging_mib(config, ranks), config.cluster.shared_memory_mib, memory_mib(machine)
    if configured is not None and configured > most:
        raise ConfigError(
            f"cluster.shared_memory_mib = {configured}: must be at most the memory of the task, {most} on a "
            f"{machine.name}"
        )
    if staged is None:
        return
    if configured is not None and configured < staged:
        raise ConfigError(
            f"cluster.shared_memory_mib = {configured}: must be at least {staged}, for two copies of each node's "
            "part of the state, one of which is saved while the other is made; or leave it out"
        )
    needed = staged + SHARED_MIB + WORKER_MIB * ranks.nproc_per_node
    if not machine.gpus and not isinstance(config.model, CustomModelConfig):  # the state itself is there too
        shards = config.parallel.sharing(ranks.size, ranks.nproc_per_node)
        needed += _up(parameter_count(config.model) * TRAINED_BYTES * ranks.nproc_per_node / shards)
    if needed > most:
        nodes = f"{ranks.nodes} node{'s' if ranks.nodes > 1 else ''}"
        raise ConfigError(
            f"cluster.nodes = {ranks.nodes}: on {nodes} each one stages {_gib(staged)} of the state and needs "
            f"{_gib(needed)} of memory in all, and a {machine.name} leaves {_gib(most)}; use more nodes"
        )


def check_host(config: RunConfig, gpus: int, host_mib: int) -> None:
    """Raise ConfigError if the state of a local run, all of whose ranks share this host, does not fit its memory."""
    if isinstance(config.model, CustomModelConfig):
        return
    replicas = 0 if gpus and not config.parallel.cpu_offload else _replicas(config)
    needed = _up(parameter_count(config.model) * (SLOTS * SAVED_BYTES + replicas * TRAINED_BYTES))
    if needed > host_mib:
        times = "" if replicas == 1 else f"{replicas} times "
        what = "two copies of the state" if gpus else f"{times}the state and two copies of it"
        raise ConfigError(
            f"model = {config.model.name}: {what} take {_gib(needed)} of this host's memory, which has "
            f"{_gib(host_mib)}; take a smaller model, or a cluster"
        )


def _replicas(config: RunConfig) -> int:
    """How often the ranks of a local run on the CPU hold the state, all together."""
    nproc = config.cluster.nproc_per_node or 1
    ranks = config.cluster.nodes * nproc
    return max(1, ranks // config.parallel.sharing(ranks, nproc))


def host_memory_mib(cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """What this host's processes may use: its memory, or the limit of the container they are in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = cgroup.read_text().strip()
    except OSError:
        limit = "max"
    return min(total, int(limit)) // MIB if limit.isdigit() else total // MIB


def _up(size: float) -> int:
    return -(-int(size) // MIB)


def _gib(mib: int) -> str:
    return f"{mib / 1024:,.1f} GiB"
