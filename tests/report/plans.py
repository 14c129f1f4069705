"""Plans of jobs whose logs `synthetic` has."""

from typing import Any

from convoy.catalog.measured_machine import CollectiveTiming, MeasuredMachine
from convoy.config.run import RunConfig
from convoy.planner.measurements import Measurements
from convoy.planner.plan import plan
from convoy.planner.plan_schema import Plan
from tests.report.synthetic import DEVICE, MATMUL_TFLOPS, TOKENS

_LINE = CollectiveTiming(latency_seconds=1e-4, bytes_per_second=1e9, ranks=2)

MACHINE = MeasuredMachine(
    device=DEVICE, kind="cpu", dtype="bf16", threads=1, ranks=2, matmul_flops=1e12 * MATMUL_TFLOPS,
    attention_flops=1e11, memory_bytes_per_second=1e10, operation_seconds=2e-5, gather=_LINE, reduce=_LINE,
    all_reduce=_LINE,
)  # fmt: skip
"""What the jobs of `synthetic` compute on."""

_SAVES = {"checkpoint": {"every_steps": 85}, "train": {"steps": 170}}
"""As `synthetic.Log.steps` has them."""


def rented(**cluster: Any) -> RunConfig:
    """The default job on two machines with a GPU each."""
    kept = {"backend": "batch", "nodes": 2, "instance_type": "g5.xlarge", "nproc_per_node": 1, **cluster}
    return RunConfig.model_validate({"cluster": kept, **_SAVES})


def planned(**cluster: Any) -> Plan:
    return plan(rented(**cluster))


def planned_here() -> Plan:
    """Of the machines that the jobs of `synthetic` compute on, and of as many tokens a step."""
    local = RunConfig.model_validate({"cluster": {"nproc_per_node": 1}, **_SAVES})
    sequences = TOKENS // local.data.sequence_length
    train = local.train.model_copy(update={"global_batch": sequences})
    return plan(local.model_copy(update={"train": train}), Measurements(host_bytes=8 * 2**30, measured=MACHINE))


def unknown() -> Plan:
    """Of this host, of which nothing was measured."""
    return plan(RunConfig(), Measurements(host_bytes=8 * 2**30))
