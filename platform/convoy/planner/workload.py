"""What is planned: a model, how it is trained, and the machines, by the catalog or as measured."""

import math
from dataclasses import dataclass, replace

from convoy.catalog.gpus import chip_peak
from convoy.catalog.instances import Instance, instance
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.config.train import TrainConfig, split_batch

UNNAMED = "unnamed GPU"
"""A GPU of this host, whose chip nobody named."""


@dataclass(frozen=True)
class Machine:
    """One of several equal machines. Bandwidths are per direction."""

    gpu: str
    """Chip, as in the catalog of GPUs, e.g. `A100`; `cpu` where there is none."""
    ranks: int
    """One for each GPU."""
    memory_bytes: float
    """Memory of each GPU by its data sheet; without GPUs the host memory of each rank."""
    host_bytes: float
    """Memory of the whole machine."""
    nvlink_bytes_per_second: float
    """From one GPU to the others of its machine; 0: they have no NVLink."""
    network_bytes_per_second: float
    """Network of the whole machine."""
    measured: MeasuredMachine | None = None
    """Figures that the catalog does not have."""
    task_bytes: float | None = None
    """Part of `host_bytes` that a task may have, by the catalog. None: MEMORY_SHARE of it."""


@dataclass(frozen=True)
class Cluster:
    """Where it runs."""

    nodes: int
    ranks_per_node: int
    gpu: str
    """As in `Machine`."""
    instance_type: str | None
    market: str
    region: str

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Batch:
    """What a step computes."""

    tokens_per_step: int
    passes: int
    """Forward and backward passes of a rank."""
    sequences_per_pass: int
    tokens_per_pass: int
    """Tokens of one rank."""
    padded_sequences: int = 0
    """Rows of all passes on all ranks without a sequence: computed, but not counted as tokens."""


@dataclass(frozen=True)
class Workload:
    """What speed and memory of a training job depend on. Raises ValueError where the ranks cannot be divided as
    configured."""

    model: TransformerConfig
    sequence_length: int
    train: TrainConfig
    parallel: ParallelConfig
    machine: Machine
    nodes: int

    def __post_init__(self) -> None:
        shared, replica = self.parallel.ranks_per_sample, self.ranks_per_state_copy
        for key, ranks in (("parallel.tensor * parallel.pipeline", shared), ("parallel.shard_size", replica)):
            if self.ranks % ranks:
                raise ValueError(f"{key} = {ranks}: must divide the number of ranks, {self.ranks}")

    @property
    def ranks(self) -> int:
        return self.nodes * self.machine.ranks

    @property
    def ranks_per_state_copy(self) -> int:
        """Ranks that hold one copy of the state together, tensor and pipeline ranks included."""
        return self.parallel.ranks_per_state_copy(self.ranks, self.machine.ranks)

    @property
    def shards(self) -> int:
        """Ranks over which the part of one tensor rank of one stage is sharded; 1: it is whole."""
        return max(1, self.ranks_per_state_copy // self.parallel.ranks_per_sample)

    @property
    def replicas(self) -> int:
        """Copies of the state."""
        return self.ranks // max(self.ranks_per_state_copy, self.parallel.ranks_per_sample)

    @property
    def data_ranks(self) -> int:
        """Groups of ranks that each compute on samples of their own."""
        return self.ranks // self.parallel.ranks_per_sample

    @property
    def passes(self) -> int:
        """Forward and backward passes of a step: micro_batch is a maximum, evened out."""
        return split_batch(self.train.global_batch, self.data_ranks, self.train.micro_batch)[0]

    @property
    def sequences_per_rank(self) -> int:
        """Sequences of a step, on a rank that has most of them."""
        return math.ceil(self.train.global_batch / self.data_ranks)

    @property
    def sequences_per_pass(self) -> int:
        """Sequences of a pass, on a rank that has most of them."""
        return split_batch(self.train.global_batch, self.data_ranks, self.train.micro_batch)[1]

    @property
    def tokens_per_pass(self) -> int:
        """Tokens of one rank."""
        return self.sequences_per_pass * self.sequence_length

    @property
    def autocasts(self) -> bool:
        """Whether torch's autocast computes in bf16 over weights in fp32: the residual stream is in fp32 too."""
        return self.parallel.uses_ddp and self.train.param_dtype == "bf16"

    @property
    def batch(self) -> Batch:
        padded = self.passes * self.sequences_per_pass * self.data_ranks - self.train.global_batch
        return Batch(self.tokens_per_step, self.passes, self.sequences_per_pass, self.tokens_per_pass, padded)

    @property
    def tokens_per_step(self) -> int:
        return self.train.global_batch * self.sequence_length


def cluster_of(config: RunConfig, ranks_per_node: int, gpu: str) -> Cluster:
    cluster = config.cluster
    return Cluster(cluster.nodes, ranks_per_node, gpu, rented_type(config), cluster.market, cluster.region)


def rented_type(config: RunConfig) -> str | None:
    """The instance type of each node; None: all nodes are processes on this host. In a local run a named type is only a
    label of the results."""
    return None if config.cluster.backend == "local" else config.cluster.instance_type


def without_unused_instance_type(config: RunConfig) -> RunConfig:
    """Without an instance type that is only a label, so that it costs nothing and nothing interrupts it."""
    if config.cluster.instance_type == rented_type(config):
        return config
    own = config.cluster.model_copy(update={"instance_type": None, "price": None})
    return config.model_copy(update={"cluster": own})


def as_rented(config: RunConfig) -> RunConfig:
    """On the machines that it names even where its backend is local: for plans of what nobody starts here."""
    if config.cluster.instance_type == rented_type(config):
        return config
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"backend": "batch"})})


def machine_of(config: RunConfig, host_bytes: float = 0.0, host_gpus: int = 0) -> Machine:
    """One node: an instance, or its part of this host, which all nodes of a local run share. host_bytes, host_gpus:
    what this host has. Raises ConfigError for a type that the catalog does not have, and for more ranks than GPUs."""
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
    host = facts.memory_gib * 2.0**30
    return Machine(
        gpu=facts.gpu.name if facts.gpu else "cpu",
        ranks=ranks,
        memory_bytes=facts.gpu.memory_mib * 2.0**20 if facts.gpu else host / ranks,
        host_bytes=host,
        task_bytes=facts.task_memory_mib * 2.0**20,
        nvlink_bytes_per_second=facts.nvlink_gb_per_second * 1e9,
        network_bytes_per_second=facts.network_gbps * 1e9 / 8,
    )


def with_measured_fallback(machine: Machine, measured: MeasuredMachine | None) -> Machine:
    """The machine with what was measured, if the catalog lacks its GPU and the measurement is of the same kind."""
    if measured is None or chip_peak(machine.gpu) is not None:
        return machine
    return replace(machine, measured=measured) if (machine.gpu == "cpu") == (measured.kind == "cpu") else machine
