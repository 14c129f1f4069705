"""What the machine can do and what the run uses: matmul rate, memory, versions; and the seconds of any call that all
ranks make at once."""

import platform
import resource
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist

from convoy import __version__
from convoy.catalog.gpus import peak_tflops
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.engine import EngineConfig, engine_text
from convoy.job.events.registry import Environment, MemoryPeak
from convoy.parallel.fsdp import DTYPES
from convoy.training.process_groups import Ranks

OWN_ENGINE = EngineConfig()

_SIDE = {"cpu": 1024, "cuda": 8192}


def environment(
    ranks: Ranks,
    param_dtype: str,
    matmul_tflops: float | None = None,
    machine: MeasuredMachine | None = None,
    engine: EngineConfig = OWN_ENGINE,
) -> Environment:
    """Versions and hardware of this rank."""
    library = _library_version(engine)
    name, gpu_versions = device_name(ranks.device), {}
    if ranks.device.type == "cuda":
        gpu_versions = {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return Environment(
        versions={
            "convoy": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **gpu_versions,
            **library,
        },
        device=name,
        threads=torch.get_num_threads(),
        matmul_tflops=matmul_tflops,
        peak_tflops=peak_tflops(name, param_dtype) if ranks.device.type == "cuda" else None,
        machine=machine,
        engine="" if engine.name == OWN_ENGINE.name else " ".join([engine_text(engine), *library.values()]),
    )


def _library_version(engine: EngineConfig) -> dict[str, str]:
    """Of the engine's package, by its name; empty for Convoy's own engine, and for a package that is not installed."""
    try:
        return {} if engine.name == OWN_ENGINE.name else {engine.name: metadata.version(engine.name)}
    except metadata.PackageNotFoundError:
        return {}


def measure_matmul(ranks: Ranks, param_dtype: str, seconds: float) -> float:
    """TFLOP/s of square matmuls on this rank while every rank does the same: the best of the timed batches."""
    side = _SIDE[ranks.device.type]
    a = torch.randn(side, side, device=ranks.device, dtype=DTYPES[param_dtype])
    b = torch.randn_like(a)
    torch.mm(a, b)
    dist.barrier(group=ranks.control)
    best, deadline = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        synchronize(ranks.device)
        began = time.perf_counter()
        for _ in range(4):
            torch.mm(a, b)
        synchronize(ranks.device)
        best = min(best, (time.perf_counter() - began) / 4)
    return 2 * side**3 / best / 1e12


def memory_peak(ranks: Ranks, step: int) -> MemoryPeak:
    """Peak bytes of this rank so far."""
    if ranks.device.type == "cuda":
        return MemoryPeak(step=step, bytes=torch.cuda.max_memory_allocated(ranks.device), device="cuda")
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return MemoryPeak(step=step, bytes=kib * 1024, device="host")


def device_name(device: torch.device) -> str:
    """The GPU's name as CUDA reports it, or the CPU's model name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


TIMES = 5
"""Least number of repetitions: the median of fewer may have been disturbed."""

MAX_TIMES = 200


def median_seconds_here(call: Callable[[], object], ranks: Ranks, seconds: float) -> float:
    """Median seconds of one call on this rank, while every rank does the same."""
    call()
    dist.barrier(group=ranks.control)
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < TIMES or (time.perf_counter() < ends and len(times) < MAX_TIMES):
        times.append(_time_call(call, ranks))
    return statistics.median(times)


def slowest_seconds(call: Callable[[], object], ranks: Ranks) -> float:
    """Seconds of a call, of the slowest rank, on all ranks."""
    return max_over_ranks(seconds_here(call, ranks), ranks)


def seconds_here(call: Callable[[], object], ranks: Ranks) -> float:
    """Seconds of a call that all ranks begin together, on this one."""
    synchronize(ranks.device)
    dist.barrier(group=ranks.control)
    return _time_call(call, ranks)


def _time_call(call: Callable[[], object], ranks: Ranks) -> float:
    synchronize(ranks.device)
    began = time.perf_counter()
    call()
    synchronize(ranks.device)
    return time.perf_counter() - began


def max_over_ranks(seconds: float, ranks: Ranks) -> float:
    """Seconds of the slowest rank, on all ranks."""
    most = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=ranks.control)
    return float(most)


def random_tensor(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    noise = torch.Generator(device).manual_seed(0)  # of its own: the model's is not touched
    return torch.randn(shape, device=device, generator=noise, dtype=dtype)  # in fp32 it would take memory twice


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that is enqueued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
