"""Names under which a case of the network suite keeps what was measured by size. Pure.

A collective's case is named by its algorithm (`backend`, `ring`, …), and its group by the operation
(`network-all_reduce`). A case that was measured in place, or read from another tool's file, says so in its name
(`backend, in place`). `samples` hold the seconds of one operation in each block, in the order of rounds, so that two
cases of a group can be compared in pairs; further figures by size are in `values`.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

SUITE_NAME = "network"

IN_PLACE_SUFFIX = ", in place"

SECONDS = "seconds."
"""`seconds.BYTES` in `samples`: seconds of one operation on a buffer of so many bytes, the slowest rank's, by block."""

Figure = Literal["p50", "p95", "p99", "cv", "wrong", "operations", "worst_rank", "mean"]
"""Figures by size in `values`, as `FIGURE.BYTES`: percentiles and mean of single operations in seconds, their
coefficient of variation (a fraction), the number of wrong elements on all ranks, the number of operations timed, and
the rank that took longest."""


_MERGED: dict[str, Callable[[list[float]], float]] = {"wrong": sum, "operations": sum, "worst_rank": statistics.mode}
"""How one figure is made of those of several gangs, where it is not the median."""


HostFigure = Literal[
    "host.user_cores",
    "host.system_cores",
    "host.switches_per_second",
    "host.peak_bytes",
    "host.fragmentation",
    "host.agent_cores",
    "host.writer_cores",
]
"""Host resources that a rank used during its case, in `values`: means over ranks, but the largest of all peaks.
Cores are CPU seconds per second; `agent` and `writer` are Convoy's own processes around the rank, if it has any."""


class NetworkResult(NamedTuple):
    """The measurements of a case, in fields named as those of `Case`."""

    samples: dict[str, tuple[float, ...]]
    values: dict[str, float]
    not_measured: dict[str, str]


def merge_gangs(results: Sequence[NetworkResult]) -> NetworkResult:
    """One case from those of gangs in one environment: each gang is a block. Figures are medians, and counts are sums.
    Sizes that a gang did not measure are left out."""
    samples = {
        name: tuple(statistics.median(each.samples[name]) for each in results)
        for name in results[0].samples
        if all(name in each.samples for each in results)
    }
    values = {}
    for name in results[0].values:
        merge = _MERGED.get(name.partition(".")[0], statistics.median)
        values[name] = merge([each.values[name] for each in results if name in each.values])
    missing = {name: why for result in results for name, why in result.not_measured.items()}
    return NetworkResult(samples, values, missing)


def seconds_name(size: int) -> str:
    """Name in `samples` of the block times of a size in bytes."""
    return f"{SECONDS}{size}"


def figure_name(figure: Figure, size: int) -> str:
    """Name in `values` of a figure of a size in bytes."""
    return f"{figure}.{size}"


def measured_sizes(samples: Mapping[str, tuple[float, ...]]) -> list[int]:
    """Sizes in bytes of a case with samples by size, from small to large; empty for any other case."""
    names = (name.removeprefix(SECONDS) for name in samples if name.startswith(SECONDS))
    return sorted(int(name) for name in names if name.isdecimal())
