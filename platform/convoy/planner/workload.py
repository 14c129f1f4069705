"""What is to be planned: a model, how it is trained, and the machines."""

import math
from dataclasses import dataclass

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig


@dataclass(frozen=True)
class Machine:
    """One of the machines, all of which are alike."""

    gpu: str
    """Chip, as in the catalog of GPUs, e.g. `A100`; `cpu` where there is none."""
    ranks: int
    """On it: one for each GPU."""
    memory_bytes: float
    """Of each GPU, as its data sheet has it; of the host for each rank, where there are no GPUs."""
    host_bytes: float
    """Memory of the whole machine."""
    nvlink_bytes_per_second: float
    """Of one GPU to the others of its machine, per direction; 0: they have no NVLink."""
    network_bytes_per_second: float
    """Of the whole machine, per direction."""
    measured: MeasuredMachine | None = None
    """In place of figures that the catalog does not have."""


@dataclass(frozen=True)
class Workload:
    """One training job, as far as its speed and its memory depend on it. Raises ValueError where the ranks cannot be
    divided as configured."""

    model: TransformerConfig
    sequence_length: int
    train: TrainConfig
    parallel: ParallelConfig
    machine: Machine
    nodes: int

    def __post_init__(self) -> None:
        keys = {"parallel.tensor * parallel.pipeline": self.parallel.shared_by, "parallel.shard_size": self.sharing}
        for key, ranks in keys.items():
            if self.ranks % ranks:
                raise ValueError(f"{key} = {ranks}: must divide the number of ranks, {self.ranks}")

    @property
    def ranks(self) -> int:
        return self.nodes * self.machine.ranks

    @property
    def sharing(self) -> int:
        """Ranks that hold one copy of the states together, tensor and pipeline ranks among them."""
        return self.parallel.sharing(self.ranks, self.machine.ranks)

    @property
    def shards(self) -> int:
        """Ranks among which what one tensor rank of one stage has is sharded; 1: it is whole."""
        return max(1, self.sharing // self.parallel.shared_by)

    @property
    def replicas(self) -> int:
        """Copies of the states."""
        return self.ranks // max(self.sharing, self.parallel.shared_by)

    @property
    def data_ranks(self) -> int:
        """Groups of ranks that each compute on samples of their own."""
        return self.ranks // self.parallel.shared_by

    @property
    def passes(self) -> int:
        """Forward and backward passes of a step: micro_batch is a maximum, evened out."""
        return math.ceil(self.sequences_per_rank / self.train.micro_batch)

    @property
    def sequences_per_rank(self) -> int:
        """Of a step, on a rank that has most of them."""
        return math.ceil(self.train.global_batch / self.data_ranks)

    @property
    def sequences_per_pass(self) -> int:
        """That one pass computes, on a rank that has most of them."""
        return math.ceil(self.sequences_per_rank / self.passes)

    @property
    def tokens_per_pass(self) -> int:
        """Of one rank."""
        return self.sequences_per_pass * self.sequence_length

    @property
    def tokens_per_step(self) -> int:
        """Of all ranks together."""
        return self.train.global_batch * self.sequence_length
