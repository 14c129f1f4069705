"""Cases, and a whole benchmark, that were never measured, with known figures."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel

from convoy.benchmark.results import values
from convoy.benchmark.results.case import Block, Case, Hardware, MeasuredStore, Provenance
from convoy.benchmark.results.values import BEYOND, DETECTED, DURABLE, RECOVERED, RESTORE, SAVE, STALL
from convoy.catalog.measured_machine import CollectiveTiming, MeasuredMachine
from convoy.config.benchmark import CampaignConfig

M = TypeVar("M", bound=BaseModel)


def replaced(fact: M, /, **changes: Any) -> M:
    """A copy with other values."""
    return fact.model_copy(update=changes)


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
    gather=CollectiveTiming(latency_seconds=2e-4, bytes_per_second=1e9, ranks=2),
    reduce=CollectiveTiming(latency_seconds=2e-4, bytes_per_second=1e9, ranks=2),
    all_reduce=CollectiveTiming(latency_seconds=3e-4, bytes_per_second=5e8, ranks=2),
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


GPUS = replaced(
    HARDWARE,
    device="NVIDIA A100-SXM4-40GB",
    nodes=4,
    ranks=32,
    threads=12,
    cores=96,
    memory_bytes=1_236_950_581_248,
    instance_type="p4d.24xlarge",
    peak_tflops=312.0,
    matmul_tflops=260.0,
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
    ours = replaced(ours, blocks=tuple(replaced(b, parts=parts) for b in ours.blocks))
    return [
        ours,
        a_case("baseline", 1.0, seed=2, baseline="ours", memory_peak_bytes=1_600_000_000),
        a_case("eager", 0.5 / 0.9, seed=3, **beside),
        a_case("fused AdamW", 0.5, seed=4, **beside),
    ]


def scaling() -> list[Case]:
    """One rank at 1,024 tokens per second, two at 1,843 (weak, 90 %) and 1,638 (strong, 80 %), two jobs at 1,946."""
    one = replaced(HARDWARE, ranks=1)
    shared: dict[str, Any] = {"suite": "scaling", "group": "n2", "baseline": None}
    jobs = replaced(HARDWARE, jobs=2)
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
    return [replaced(case, not_measured=missing) if case.suite == "throughput" else case for case in cases]


def runs_of(case: Case, rates: Sequence[float]) -> list[Case]:
    """Earlier runs of a case, one a day, the newest yesterday, whose blocks all had such a rate."""
    return [
        replaced(
            case,
            provenance=replaced(PROVENANCE, measured=PROVENANCE.measured - timedelta(days=len(rates) - i)),
            blocks=tuple(replaced(b, seconds=case.tokens_per_step / rate) for b in case.blocks),
        )
        for i, rate in enumerate(rates)
    ]


def saves(**changed: Any) -> list[Case]:
    """1.2 GB over two writers: 0.6 s to save and 0.3 s to restore, so 1 and 2 GB/s for each of them."""
    shared: dict[str, Any] = {"suite": "checkpoint", "group": "checkpoint-tiny"}
    samples = {
        STALL: (0.02, 0.021, 0.019, 0.02, 0.022, 0.02),
        DURABLE: (1.5, 1.6, 1.4, 1.5, 1.5, 1.5),
        SAVE: (0.6,) * 6,
        RESTORE: (0.3,) * 6,
    }
    told = {
        values.SAVED_BYTES: 1.2e9,
        values.FIRST_STALL_SECONDS: 0.2,
        values.FIRST_SAVE_SECONDS: 0.9,
        values.PREDICTED_WRITERS: 2.0,
        **changed.pop("values", {}),
    }
    return [
        a_case("without saves", 0.5, seed=1, baseline=None, **shared),
        a_case(
            "a save in each block",
            0.52,
            seed=2,
            baseline="without saves",
            samples=samples,
            values=told,
            **shared | changed,
        ),
    ]


def a_store(uri: str, kind: Literal["folder", "s3", "gs"], region: str | None = None, **changed: Any) -> Case:
    """2 GiB over two ranks: 2 GB/s to save and 4 GB/s to restore; of a folder also by gzip + pickle."""
    size = 2.0**31
    samples = {DURABLE: (1.5,) * 6, SAVE: (size / 2e9,) * 6, RESTORE: (size / 4e9,) * 6}
    told = {values.SAVED_BYTES: 1.2e9, values.REST_BYTES: size}
    if kind == "folder":
        told[values.GZIP_BYTES] = 1.9e9
        samples |= {values.GZIP_SAVE: (40.0,), values.GZIP_RESTORE: (8.0,)}
    else:
        told |= {values.SAVE_PUTS: 2000.0, values.SAVE_GETS: 200.0}
        told |= {values.RESTORE_PUTS: 1.0, values.RESTORE_GETS: 3000.0}
    facts: dict[str, Any] = {
        "suite": "checkpoint", "group": "checkpoint-tiny-stores", "baseline": None, "blocks": (), "values": told,
        "samples": samples, "config": {}, "store": MeasuredStore(uri=uri, kind=kind, region=region),
    }  # fmt: skip
    facts |= changed
    facts["config"] = {"cluster": {"region": "us-east-1"}, **facts["config"]}
    return a_case(uri, **facts)


def a_drill(name: str, detected: tuple[float, ...], recovered: tuple[float, ...], **changed: Any) -> Case:
    """All trials as they should be, unless `changed` says otherwise."""
    n = float(len(recovered))
    told = {
        values.TRIALS: n,
        values.RECOVERED_TRIALS: n,
        values.STEPS_RECOMPUTED: 3.0,
        values.SAMPLES_LOST: 0.0,
        values.SAMPLES_REPEATED: 0.0,
        values.STATES_COMPARED: n,
        values.STATES_EQUAL: n,
        values.TARGET_DETECTED_SECONDS: 0.5,
        values.TARGET_RECOVERED_SECONDS: 8.0,
        **changed.pop("values", {}),
    }
    facts: dict[str, Any] = {
        "suite": "recovery",
        "group": "recovery",
        "baseline": None,
        "blocks": (),
        "losses": (),
        "hardware": replaced(HARDWARE, ranks=3),
        "samples": {DETECTED: detected, RECOVERED: recovered, BEYOND: tuple(s + 1 for s in recovered)},
        "values": told,
        "config": {"campaign": CampaignConfig(bad_day_hours=None).model_dump(mode="json")},
    }
    return a_case(name, **(facts | changed))


def faults() -> list[Case]:
    """A lost node, back after 5 s, three times; and a notice, which is seen after 0.4 s."""
    return [
        a_drill("node-kill", (0.2, 0.3, 0.25), (5.0, 4.8, 5.4)),
        a_drill("spot-notice", (0.4,), (6.0,), values={values.STEPS_RECOMPUTED: 0.0}),
    ]


def with_campaign(cases: list[Case], **setting: Any) -> list[Case]:
    """With that setting of the campaign; without bad days, unless they are set."""
    told = {"campaign": CampaignConfig(**({"bad_day_hours": None} | setting)).model_dump(mode="json")}
    return [replaced(case, config=told) if case.suite == "recovery" else case for case in cases]


def survival() -> list[Case]:
    return [*saves(), *faults()]
