"""What a machine can do at best: figures of data sheets, or what its ranks measured; all per rank unless they say
otherwise."""

import math
from dataclasses import dataclass, replace

from convoy.catalog.gpus import rented_gpu
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.planner.workload import Machine

PCIE_BYTES_PER_SECOND = 16e9
"""Between GPUs without NVLink, per direction: PCIe 4.0 x16 has 32 GB/s, and what goes by way of the host passes it
twice."""


@dataclass(frozen=True)
class Hardware:
    """Peaks; how near training comes to them is a matter of the calibration."""

    chip: str
    """AWS's short name of the GPU, by which the calibration has its efficiencies."""
    flops: float
    """Dense matrix products in the type of the parameters, operations/s."""
    memory_bytes_per_second: float
    """Of the GPU's own memory."""
    inside_bytes_per_second: float
    """To the other GPUs of the machine, per direction."""
    between_bytes_per_second: float
    """Of the whole machine to others, per direction."""
    attention_flops: float = 0.0
    """Fused attention, where that was measured; 0: what it reaches of `flops` is a matter of the calibration."""
    operation_seconds: float = 0.0
    """To start a small operation with autograd, where that is a part of the step's time; 0: it is not, or not known."""
    hides: bool = True
    """Collectives run beside computation."""


def hardware(machine: Machine, dtype: str = "bf16", ranks: int = 1) -> Hardware:
    """From what was measured, where the machine has that, else from the catalog. dtype: of parameters and activations,
    `bf16` or `fp32`. ranks: that send each other. Raises ValueError for what was measured in another type or without
    anybody to send to, and for a GPU that the catalog does not have: a plan for it would be a guess."""
    if machine.measured is not None:
        return _measured(machine.measured, dtype, ranks)
    gpu = rented_gpu(machine.gpu)
    peak = {str(known): tflops for known, tflops in gpu.tflops.items()}.get(dtype) if gpu else None
    if gpu is None or peak is None:
        raise ValueError(f"{machine.gpu}: its {dtype} peak is not in the catalog, so no time can be planned")
    return Hardware(
        chip=machine.gpu,
        flops=peak * 1e12,
        memory_bytes_per_second=gpu.memory_bytes_per_second(machine.memory_bytes),
        inside_bytes_per_second=machine.nvlink_bytes_per_second or PCIE_BYTES_PER_SECOND,
        between_bytes_per_second=machine.network_bytes_per_second,
    )


def _measured(found: MeasuredMachine, dtype: str, ranks: int) -> Hardware:
    if found.dtype != dtype:
        raise ValueError(f"{found.device}: it was measured in {found.dtype}, so no time can be planned in {dtype}")
    link = _link(found)
    if ranks > 1 and math.isinf(link):
        who = "one rank" if found.ranks == 1 else f"{found.ranks} ranks without a collective of weights or gradients"
        raise ValueError(f"{found.device}: {who} measured it, so nothing is known of what {ranks} send")
    return Hardware(
        chip=found.kind,
        flops=found.matmul_flops,
        memory_bytes_per_second=found.memory_bytes_per_second,
        inside_bytes_per_second=link,
        between_bytes_per_second=link,
        attention_flops=found.attention_flops or 0.0,
        operation_seconds=found.operation_seconds if found.kind == "cpu" else 0.0,
        hides=found.kind == "cuda",
    )


def _link(found: MeasuredMachine) -> float:
    """Bytes/s of a rank, each way: a ring carries (n - 1) / n of a message through each of its links, of an all-reduce
    twice. Infinite where nobody sent anything."""
    line, rounds = (found.gather, 1) if found.gather is not None else (found.all_reduce, 2)
    return math.inf if line is None else rounds * line.bytes_per_second * (line.ranks - 1) / line.ranks


def limited(machine: Machine, watts: float | None, memory_bytes_per_second: float | None) -> Hardware:
    """Of GPUs held to so much power, or with other memory than the data sheet's; None: as the data sheet has it.

    Power grows with voltage squared and clock, and voltage with the clock, so that the clock goes with the cube root of
    power; the data sheets of H100 SXM (989 TFLOP/s, 700 W) and NVL (835, 400 W) have an exponent of 0.30. Raises
    ValueError as `hardware`, and for a limit on a GPU whose power the catalog does not have.
    """
    found = hardware(machine)
    if memory_bytes_per_second is not None:
        found = replace(found, memory_bytes_per_second=memory_bytes_per_second)
    if watts is None:
        return found
    gpu = rented_gpu(machine.gpu)
    if gpu is None or gpu.watts is None:
        raise ValueError(f"{machine.gpu}: its power is not in the catalog, so that no limit of it can be reckoned with")
    return replace(found, flops=found.flops * min(1.0, watts / gpu.watts) ** (1 / 3))
