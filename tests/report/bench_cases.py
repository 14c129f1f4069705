"""A whole benchmark that was never measured, with known figures."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from tests.benchmark.results.cases import HARDWARE, PROVENANCE, a_case

GPUS = HARDWARE.model_copy(
    update={
        "device": "NVIDIA A100-SXM4-40GB",
        "nodes": 4,
        "ranks": 32,
        "threads": 12,
        "cores": 96,
        "memory_bytes": 1_236_950_581_248,
        "instance_type": "p4d.24xlarge",
        "peak_tflops": 312.0,
        "matmul_tflops": 260.0,
    }
)
"""Four machines with a price."""

GPU_CONFIG = {"train": {"param_dtype": "bf16"}, "cluster": {"region": "us-east-1"}}

SECTIONS = [
    "Benchmark",
    "Throughput",
    "Strategies side by side",
    "Scaling",
    "Cost and time to train (computed)",
    "Step time",
    "Memory",
    "Refused and failed",
    "Not measured here",
    "Audit of these figures",
    "Provenance",
]
"""Headings of the whole benchmark's page."""


def throughput() -> list[Case]:
    """Ours at 4,096 tokens per second; the frozen baseline at half of that, eager at 0.9, and one that is the same."""
    beside: dict[str, Any] = {"baseline": "ours"}
    parts = {"data": 0.01, "forward": 0.15, "backward": 0.25, "optimizer": 0.05, "exchange": 0.02}
    ours = a_case("ours", 0.5, seed=1, baseline=None)
    ours = ours.model_copy(update={"blocks": tuple(b.model_copy(update={"parts": parts}) for b in ours.blocks)})
    return [
        ours,
        a_case("baseline", 1.0, seed=2, baseline="ours", memory_peak_bytes=1_600_000_000),
        a_case("eager", 0.5 / 0.9, seed=3, **beside),
        a_case("fused AdamW", 0.5, seed=4, **beside),
    ]


def scaling() -> list[Case]:
    """One rank at 1,024 tokens per second, two at 1,843 (weak, 90 %) and 1,638 (strong, 80 %), two jobs at 1,946."""
    one = HARDWARE.model_copy(update={"ranks": 1})
    shared: dict[str, Any] = {"suite": "scaling", "group": "n2", "baseline": None}
    jobs = HARDWARE.model_copy(update={"jobs": 2})
    communication = {
        values.COMMUNICATION_SECONDS: 0.05,
        values.NETWORK_BYTES: 14.4e6,
        values.LINK_BYTES_PER_SECOND: 1e9,
    }
    return [
        a_case("one rank", 0.5, seed=1, hardware=one, tokens_per_step=512, **shared),
        a_case("weak", 0.5 / 0.9, seed=2, tokens_per_step=1024, values={values.WEAK: 1, **communication}, **shared),
        a_case("strong", 0.25 / 0.8, seed=3, tokens_per_step=512, values={values.WEAK: 0, **communication}, **shared),
        a_case(
            "two jobs",
            0.5 / 0.95,
            seed=4,
            hardware=jobs,
            tokens_per_step=1024,
            values={values.INDEPENDENT: 1},
            **shared,
        ),
    ]


def strategies() -> list[Case]:
    """On four p4d: one refused, one failed, and one whose losses are others."""
    shared: dict[str, Any] = {
        "suite": "strategies",
        "group": "gpt-1b",
        "model": "gpt-1b",
        "parameters": 1_200_000_000,
        "hardware": GPUS,
        "config": GPU_CONFIG,
        "tokens_per_step": 1_048_576,
        "flops_per_token": 7.2e9,
    }
    return [
        a_case("ddp", 1.4, seed=1, baseline=None, memory_peak_bytes=28 * 10**9, **shared),
        a_case("fsdp", 1.3, seed=2, baseline="ddp", memory_peak_bytes=9 * 10**9, **shared),
        a_case("zero-3", 1.5, seed=3, baseline="ddp", losses=(8.3, 8.2, 8.4), **shared),
        a_case("pipeline", baseline="ddp", status="refused", reason="needs 80 GB, has 40 GB", blocks=(), **shared),
        a_case("tensor", baseline="ddp", status="failed", reason="rank 3: CUDA error", blocks=(), **shared),
    ]


def whole() -> list[Case]:
    """All suites, and what this machine cannot show."""
    cases = [*throughput(), *scaling(), *strategies()]
    missing = {"GPU utilisation": "no GPU: NVML has nothing to tell"}
    return [case.model_copy(update={"not_measured": missing}) if case.suite == "throughput" else case for case in cases]


def runs_of(case: Case, rates: Sequence[float]) -> list[Case]:
    """Earlier runs of a case, one a day, the newest yesterday, whose blocks all had such a rate."""
    return [
        case.model_copy(
            update={
                "provenance": PROVENANCE.model_copy(
                    update={"measured": PROVENANCE.measured - timedelta(days=len(rates) - i)}
                ),
                "blocks": tuple(b.model_copy(update={"seconds": case.tokens_per_step / rate}) for b in case.blocks),
            }
        )
        for i, rate in enumerate(rates)
    ]
