"""Cases that were never measured, with known figures."""

from datetime import UTC, datetime
from typing import Any

import numpy as np

from convoy.benchmark.results.case import Block, Case, Hardware, Provenance
from convoy.catalog.measured_machine import Line, MeasuredMachine

HARDWARE = Hardware(
    device="AMD EPYC 7R13", nodes=1, ranks=2, threads=1, cores=2, memory_bytes=24 * 10**9, matmul_tflops=0.1
)
MEASURED = MeasuredMachine(
    device=HARDWARE.device,
    kind="cpu",
    dtype="fp32",
    threads=1,
    ranks=2,
    matmul_flops=6e10,
    attention_flops=3e10,
    memory_bytes_per_second=8e9,
    operation_seconds=1e-5,
    gather=Line(latency_seconds=2e-4, bytes_per_second=1e9, ranks=2),
    reduce=Line(latency_seconds=2e-4, bytes_per_second=1e9, ranks=2),
    all_reduce=Line(latency_seconds=3e-4, bytes_per_second=5e8, ranks=2),
)
"""Two ranks on two cores."""

PROVENANCE = Provenance(
    measured=datetime(2026, 11, 22, 12, 0, tzinfo=UTC),
    commit="0123456789abcdef",
    versions={"python": "3.11.9", "torch": "2.13.0+cpu", "convoy": "0.1.0"},
    environment={"OMP_NUM_THREADS": "1"},
    command="python benchmarks/run_benchmarks.py --suite throughput",
)


def a_case(name: str = "ours", seconds: float = 0.5, n: int = 20, seed: int = 0, **changed: Any) -> Case:
    """A step takes so long, with noise of 2 %; the CPU time of a step is twice that."""
    noise = 1 + 0.02 * np.random.default_rng(seed).standard_normal(n)
    blocks = tuple(
        Block(number=i, steps=5, seconds=seconds * float(x), cpu_seconds=2 * seconds * float(x))
        for i, x in enumerate(noise)
    )
    facts: dict[str, Any] = {
        "suite": "throughput",
        "group": "a1",
        "name": name,
        "baseline": None if name == "baseline" else "baseline",
        "model": "tiny",
        "parameters": 3_600_000,
        "tokens_per_step": 2048,
        "flops_per_token": 2.0e7,
        "config": {"train": {"param_dtype": "bf16", "compile": False}},
        "hardware": HARDWARE,
        "provenance": PROVENANCE,
        "warm_up_steps": 16,
        "blocks": blocks,
        "memory_peak_bytes": 800_000_000,
        "losses": (8.3, 8.1, 7.9),
    }
    return Case(**(facts | changed))
