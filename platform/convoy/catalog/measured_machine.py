"""What ranks of one job measured of the machines they are on, once these are warm: the planner's figures for machines
that the catalog does not know."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _LoggedModel(BaseModel):
    """It is written into the event log, whose readers may be older."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, ser_json_inf_nan="strings")


class CollectiveTiming(_LoggedModel):
    """Seconds of one collective among these ranks: latency_seconds + bytes / bytes_per_second."""

    latency_seconds: float
    bytes_per_second: float
    """Of the whole tensor: what all ranks have after an all-gather, or before a reduce-scatter."""
    ranks: int
    """That took part: those of one group, which may be fewer than all that measured."""

    def seconds(self, tensor_bytes: float) -> float:
        """tensor_bytes: bytes of the whole tensor."""
        return self.latency_seconds + tensor_bytes / self.bytes_per_second


class MeasuredMachine(_LoggedModel):
    """Of one rank, while all ranks of the job did the same."""

    device: str
    """What computes, e.g. `NVIDIA H100 80GB HBM3` or the CPU's model name."""
    kind: Literal["cpu", "cuda"]
    dtype: Literal["bf16", "fp32"]
    """Of the operands."""
    threads: int
    ranks: int
    """That measured together."""
    matmul_flops: float
    """Matrix products, operations/s, at the job's own sizes."""
    attention_flops: float | None = None
    """Fused attention, forward and backward, operations/s at the job's own sizes; None: not measured."""
    memory_bytes_per_second: float
    """That an elementwise operation reads and writes, at the size of the job's activations."""
    operation_seconds: float
    """To start one small operation forward, with autograd."""
    gather: CollectiveTiming | None = None
    """All-gather among the ranks that shard; None: nothing is sharded (one rank, ddp), so nobody measured it."""
    reduce: CollectiveTiming | None = None
    """Reduce-scatter among the same; None as `gather`."""
    all_reduce: CollectiveTiming | None = None
    """Among copies of the model (ddp, hsdp); None: there is one."""


class MeasuredLinks(_LoggedModel):
    """Collectives by themselves, within hosts or between them, as the network suite measured them."""

    hosts: int
    """That took part; 1: nothing left the host."""
    gather: CollectiveTiming | None = None
    """All-gather; None, here and below: not measured."""
    reduce: CollectiveTiming | None = None
    """Reduce-scatter."""
    all_reduce: CollectiveTiming | None = None

    @property
    def ranks(self) -> int:
        """That took part."""
        return max(line.ranks for line in (self.gather, self.reduce, self.all_reduce) if line is not None)

    def of(self, machine: MeasuredMachine) -> MeasuredMachine:
        """The machine with these lines in place of its own."""
        lines = {"gather": self.gather, "reduce": self.reduce, "all_reduce": self.all_reduce}
        return machine.model_copy(update={name: line for name, line in lines.items() if line is not None})
