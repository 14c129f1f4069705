"""How the model is spread over ranks."""

from typing import Literal

from pydantic import Field, model_validator

from convoy.config.base import FrozenConfig


class ParallelConfig(FrozenConfig):
    """Data parallelism: fully sharded (FSDP2), flat or hybrid, or the whole model on every rank."""

    strategy: Literal["fsdp", "hsdp", "ddp"] = "fsdp"
    """`fsdp` shards over all ranks; `hsdp` shards within groups of `shard_size` and replicates across them; with `ddp`
    every rank holds the whole model and optimizer, and torch's DistributedDataParallel reduces gradients."""
    shard_size: int | None = Field(None, ge=1)
    """Ranks per sharding group of `hsdp`; must divide the world size. Default: the ranks of one node."""
    reshard_after_forward: bool = True
    """Free a block's full parameters after its forward (ZeRO-3); false keeps them for backward (ZeRO-2). On CPUs the
    model is then gathered, and its gradients are reduced, as one, which is quicker and takes memory for all gradients
    at once. Not of `ddp`."""
    wrap: Literal["block", "linear"] = "block"
    """Unit that is gathered at a time: a whole decoder block, or each of its linear layers (less memory, more messages;
    not with `train.activation_checkpointing: selective`)."""
    reduce_every_pass: bool = True
    """Reduce gradients after each micro batch, so that a rank keeps only its share of them. False: reduce once per
    step, and keep whole gradients between its passes. Between replicas (`hsdp`, `ddp`), and in a pipeline, gradients
    are reduced once per step in any case."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer state in host memory, where the update is made; each gather copies its part
    to the GPU. Refused without a GPU, where everything is in host memory already, and with `tensor` or `pipeline`."""
    tensor: int = Field(1, ge=1)
    """Ranks that share each matrix product of a decoder block, neighbours on one node; only with `fsdp`, which then
    shards over the remaining ranks. Must divide heads, key and value heads, and the MLP's width. These ranks add up
    activations, and the gradients of the head and of the norm before it, in `train.param_dtype`, once per pass. If
    gradients are reduced once per step of several passes, those two gradients are in `train.reduce_dtype`."""
    pipeline: int = Field(1, ge=1)
    """Stages into which the blocks are divided, each on ranks of its own; only with `fsdp`. Micro batches pass through
    them in 1F1B order. A step needs at least as many micro batches as there are stages."""

    @property
    def ranks_per_sample(self) -> int:
        """How many ranks compute on the same samples."""
        return self.tensor * self.pipeline

    def ranks_per_state_copy(self, ranks: int, ranks_per_node: int) -> int:
        """How many of `ranks` hold one copy of weights, gradients and moments together."""
        match self.strategy:
            case "fsdp":
                return ranks
            case "hsdp":
                return self.shard_size or ranks_per_node
            case "ddp":
                return 1

    def shards_as_one_fsdp_unit(self, *, on_cpu: bool) -> bool:
        """Whether FSDP2 gathers a rank's whole model at once, and reduces all of its gradients at once.

        A block at a time saves nothing where all of them stay until backward, and a CPU computes nothing while it
        communicates: gathering block by block would only add messages and waits.
        """
        stays = not self.reshard_after_forward and self.strategy != "ddp"
        return on_cpu and stays and self.wrap == "block" and self.pipeline == 1

    @property
    def uses_ddp(self) -> bool:
        """Whether torch's DistributedDataParallel reduces gradients. It cannot offload: then FSDP2 has replicas."""
        return self.strategy == "ddp" and not self.cpu_offload

    def adds_in_rank_order(self, ranks: int, reduce_dtype: str, *, on_cpu: bool) -> bool:
        """Whether DDP gathers the gradients of all ranks, for each rank to add them in the order of ranks, and does not
        all-reduce them.

        The order in which gloo adds depends on where in a bucket a gradient is, and DDP arranges its buckets anew after
        the first step, so that a job that was interrupted would be another one. Of two ranks any order gives the same
        sums, but torch has no all-reduce of DDP in bf16 for CPUs.
        """
        return self.uses_ddp and on_cpu and (ranks > 2 or reduce_dtype == "bf16")

    @model_validator(mode="after")
    def _shard_size_only_hsdp(self) -> "ParallelConfig":
        if self.shard_size is not None and self.strategy != "hsdp":
            raise ValueError(f"shard_size = {self.shard_size}: only with strategy: hsdp, not {self.strategy}")
        return self

    @model_validator(mode="after")
    def _model_parallel_only_fsdp(self) -> "ParallelConfig":
        for name, size in (("tensor", self.tensor), ("pipeline", self.pipeline)):
            if size > 1 and self.strategy != "fsdp":
                raise ValueError(f"{name} = {size}: only with strategy: fsdp, not {self.strategy}")
            if size > 1 and self.cpu_offload:
                raise ValueError(f"{name} = {size}: not with cpu_offload")
        return self
