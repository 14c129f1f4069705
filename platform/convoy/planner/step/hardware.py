"""What a machine can do at best: figures of data sheets, or what its ranks measured; all per rank unless they say
otherwise."""

import math
from dataclasses import dataclass, replace

from convoy.catalog.gpus import chip_peak
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.planner.workload import Machine

PCIE_BYTES_PER_SECOND = 16e9
"""Between GPUs without NVLink, per direction: PCIe 4.0 x16 has 32 GB/s, and what goes by way of the host passes it
twice."""


@dataclass(frozen=True)
class PeakRates:
    """Peaks; the calibration has how near training comes to them. Bandwidths are per direction."""

    chip: str
    """AWS's short name of the GPU, the key of the calibration's efficiencies."""
    flops: float
    """Dense matrix products in the type of the parameters, operations/s."""
    memory_bytes_per_second: float
    inside_bytes_per_second: float
    """From a GPU to the others of the machine."""
    between_bytes_per_second: float
    """From the whole machine to others."""
    attention_flops: float = 0.0
    """Fused attention, if that was measured; 0: the calibration has its share of `flops`."""
    operation_seconds: float = 0.0
    """To start a small operation with autograd, if that is a part of the step's time; 0: it is not, or not known."""
    hides: bool = True
    """Collectives overlap computation."""


def peak_rates(machine: Machine, dtype: str = "bf16", ranks: int = 1) -> PeakRates:
    """From the machine's measurement if it has one, else from the catalog. dtype: of parameters and activations, `bf16`
    or `fp32`. ranks: of the job. Raises ValueError for a measurement in another type, or of one rank alone for a job of
    several, and for a GPU that the catalog does not have: a plan for it would be a guess."""
    if machine.measured is not None:
        return _measured_rates(machine.measured, dtype, ranks)
    gpu = chip_peak(machine.gpu)
    peak = {str(name): tflops for name, tflops in gpu.tflops.items()}.get(dtype) if gpu else None
    if gpu is None or peak is None:
        raise ValueError(f"{machine.gpu}: its {dtype} peak is not in the catalog, so no time can be planned")
    return PeakRates(
        chip=machine.gpu,
        flops=peak * 1e12,
        memory_bytes_per_second=gpu.memory_bytes_per_second(machine.memory_bytes),
        inside_bytes_per_second=machine.nvlink_bytes_per_second or PCIE_BYTES_PER_SECOND,
        between_bytes_per_second=machine.network_bytes_per_second,
    )


def _measured_rates(rates: MeasuredMachine, dtype: str, ranks: int) -> PeakRates:
    if rates.dtype != dtype:
        raise ValueError(f"{rates.device}: it was measured in {rates.dtype}, so no time can be planned in {dtype}")
    link = _link_bytes_per_second(rates)
    if ranks > 1 and math.isinf(link):
        who = "one rank" if rates.ranks == 1 else f"{rates.ranks} ranks without a collective of weights or gradients"
        raise ValueError(f"{rates.device}: {who} measured it, so nothing is known of what {ranks} send")
    return PeakRates(
        chip=rates.kind,
        flops=rates.matmul_flops,
        memory_bytes_per_second=rates.memory_bytes_per_second,
        inside_bytes_per_second=link,
        between_bytes_per_second=link,
        attention_flops=rates.attention_flops or 0.0,
        operation_seconds=rates.operation_seconds if rates.kind == "cpu" else 0.0,
        hides=rates.kind == "cuda",
    )


def _link_bytes_per_second(rates: MeasuredMachine) -> float:
    """A rank's bytes/s in each direction: a ring carries (n - 1) / n of a message through each of its links, for an
    all-reduce twice. Infinite if no collective was rates."""
    line, rounds = (rates.gather, 1) if rates.gather is not None else (rates.all_reduce, 2)
    return math.inf if line is None else rounds * line.bytes_per_second * (line.ranks - 1) / line.ranks


def limited_rates(machine: Machine, watts: float | None, memory_bytes_per_second: float | None) -> PeakRates:
    """GPUs with a power limit, or with other memory than the data sheet's; None: as the data sheet has it.

    Power grows with voltage squared and clock, and voltage with the clock, so that the clock goes with the cube root of
    power; the data sheets of H100 SXM (989 TFLOP/s, 700 W) and NVL (835, 400 W) have an exponent of 0.30. Raises
    ValueError as `peak_rates`, and for a limit on a GPU whose power the catalog does not have.
    """
    peaks = peak_rates(machine)
    if memory_bytes_per_second is not None:
        peaks = replace(peaks, memory_bytes_per_second=memory_bytes_per_second)
    if watts is None:
        return peaks
    gpu = chip_peak(machine.gpu)
    if gpu is None or gpu.watts is None:
        raise ValueError(f"{machine.gpu}: its power is not in the catalog, so that no limit of it can be reckoned with")
    return replace(peaks, flops=peaks.flops * min(1.0, watts / gpu.watts) ** (1 / 3))
