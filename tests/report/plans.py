"""Plans of jobs whose logs `synthetic` has."""

from typing import Any

from convoy.catalog.measured import Line, MeasuredMachine
from convoy.config.run import RunConfig
from convoy.planner.given import Given
from convoy.planner.plan import plan
from convoy.results.plan import Plan

_LINE = Line(latency_seconds=1e-4, bytes_per_second=1e9, ranks=2)

MACHINE = MeasuredMachine(
    device="AMD EPYC 7R13", kind="cpu", dtype="bf16", threads=1, ranks=2, matmul_flops=5e10, attention_flops=2e10,
    memory_bytes_per_second=1e10, operation_seconds=2e-5, gather=_LINE, reduce=_LINE, all_reduce=_LINE,
)  # fmt: skip


def rented(**cluster: Any) -> RunConfig:
    """The default job on two machines with a GPU each, with saves as `synthetic.Log.steps` has them."""
    kept = {"backend": "batch", "nodes": 2, "instance_type": "g5.xlarge", "nproc_per_node": 1, **cluster}
    return RunConfig.model_validate({"cluster": kept, "checkpoint": {"every_steps": 85}, "train": {"steps": 170}})


def planned(**cluster: Any) -> Plan:
    return plan(rented(**cluster))


def unknown() -> Plan:
    """Of this host, of which nothing was measured."""
    return plan(RunConfig(), Given(host_bytes=8 * 2**30))
