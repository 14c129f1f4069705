"""What a configuration's machines are, from the catalog."""

from dataclasses import replace

from convoy.catalog.gpus import rented_gpu
from convoy.catalog.instances import Instance, instance
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.planner.workload import Machine

UNNAMED = "unnamed GPU"
"""Of this host, of which nothing is known."""


def rented_type(config: RunConfig) -> str | None:
    """The instance type of each node; None: all nodes are processes on this host, as those of a local run are whatever
    type is named, for there it is a label of the results."""
    return None if config.cluster.backend == "local" else config.cluster.instance_type


def unlabelled(config: RunConfig) -> RunConfig:
    """Without an instance type that rents nothing, so that nothing is paid for it and nothing takes it away."""
    if config.cluster.instance_type == rented_type(config):
        return config
    own = config.cluster.model_copy(update={"instance_type": None, "price": None})
    return config.model_copy(update={"cluster": own})


def as_rented(config: RunConfig) -> RunConfig:
    """On the machines that it names, also where its backend is local: for plans of what nobody starts here."""
    if config.cluster.instance_type == rented_type(config):
        return config
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"backend": "batch"})})


def machine_of(config: RunConfig, host_bytes: float = 0.0, host_gpus: int = 0) -> Machine:
    """Of one node: the instance type's; else this host, which all nodes of a local run share. host_bytes, host_gpus: of
    it. Raises ConfigError for a type that the catalog does not have, and for more ranks than it has GPUs."""
    cluster, rented = config.cluster, rented_type(config)
    if rented is None:
        ranks = cluster.nproc_per_node or max(1, host_gpus // cluster.nodes)
        node_bytes = host_bytes / cluster.nodes
        if host_gpus:
            return Machine(UNNAMED, ranks, 0.0, node_bytes, 0.0, 0.0)
        return Machine("cpu", ranks, node_bytes / ranks, node_bytes, 0.0, 0.0)
    facts = instance(rented)
    ranks = cluster.nproc_per_node or max(1, facts.gpus)
    if facts.gpus and ranks > facts.gpus:
        raise ConfigError(f"cluster.nproc_per_node = {ranks}: a {facts.name} has {facts.gpus} GPUs")
    return rented_machine(facts, ranks)


def rented_machine(facts: Instance, ranks: int) -> Machine:
    """With so many ranks at work."""
    host = facts.memory_gib * 2.0**30
    return Machine(
        gpu=facts.gpu.name if facts.gpu else "cpu",
        ranks=ranks,
        memory_bytes=facts.gpu.memory_mib * 2.0**20 if facts.gpu else host / ranks,
        host_bytes=host,
        nvlink_bytes_per_second=facts.nvlink_gb_per_second * 1e9,
        network_bytes_per_second=facts.network_gbps * 1e9 / 8,
    )


def as_measured(machine: Machine, measured: MeasuredMachine | None) -> Machine:
    """With what was measured, where the catalog does not know what computes, and that is of the same kind."""
    if measured is None or rented_gpu(machine.gpu) is not None:
        return machine
    return replace(machine, measured=measured) if (machine.gpu == "cpu") == (measured.kind == "cpu") else machine
