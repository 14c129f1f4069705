"""Cases of the network suite that were never measured, on links of known latency and rate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convoy.benchmark.results.case import Case
from convoy.benchmark.results.network import figure_name, seconds_name
from convoy.config.cluster import ClusterConfig
from convoy.config.network import NetworkConfig, Operation
from tests.benchmark.cases import HARDWARE, PROVENANCE, replaced

SIZES = (1024, 16384, 2**18, 2**22)

LINE = {"backend": (1e-3, 40e6), "ring": (4e-3, 46e6), "recursive doubling": (2e-4, 20e6)}
"""Latency in seconds, and bytes of the buffer per second, of each algorithm."""


def network_case(
    name: str = "backend",
    operation: Operation = "all_reduce",
    sizes: Sequence[int] = SIZES,
    line: tuple[float, float] | None = None,
    ranks: int = 4,
    hosts: int = 4,
    link_gbps: float | None = 0.8,
    figures: Mapping[str, float] | None = None,
    seed: int = 0,
    **changed: Any,
) -> Case:
    """Twelve blocks of each size, with noise of 1 %. figures: further ones by name, or others."""
    latency, rate = line or LINE[name]
    noise = 1 + 0.01 * np.random.default_rng(seed).standard_normal(12)
    times = {size: [(latency + size / rate) * float(each) for each in noise] for size in sizes}
    values = {
        figure_name(figure, size): value
        for size, blocks in times.items()
        for figure, value in (("p50", blocks[0]), ("p95", max(blocks)), ("p99", max(blocks)), ("wrong", 0.0))
    }
    values |= {"host.user_cores": 0.2, "host.system_cores": 0.5, "host.peak_bytes": 3e8, "host.agent_cores": 0.01}
    fields: dict[str, Any] = {
        "suite": "network",
        "group": f"network-{operation}",
        "name": name,
        "baseline": None if name == "backend" else "backend",
        "model": "",
        "parameters": 0,
        "tokens_per_step": 0,
        "config": {
            "network": NetworkConfig(operations=(operation,), links=(), link_gbps=link_gbps).model_dump(mode="json"),
            "cluster": ClusterConfig().model_dump(mode="json"),
        },
        "hardware": replaced(HARDWARE, ranks=ranks, nodes=hosts),
        "provenance": PROVENANCE,
        "samples": {seconds_name(size): tuple(blocks) for size, blocks in times.items()},
        "values": values | dict(figures or {}),
    }
    return Case(**fields | changed)


def algorithms(**changed: Any) -> list[Case]:
    """The backend and two others, as one gang measured them."""
    return [network_case(name, **changed) for name in LINE]
