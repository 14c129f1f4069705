"""Names under which a case of the network suite keeps what was measured by size. Pure.

A collective's case is named by its algorithm (`backend`, `ring`, …), and its group by the operation
(`network-all_reduce`). A case that was measured in place, or read from another tool's file, says so in its name
(`backend, in place`). `samples` hold the seconds of one operation in each block, in the order of rounds, so that two
cases of a group can be compared in pairs; further figures by size are in `values`.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

SUITE_NAME = "network"

IN_PLACE_SUFFIX = ", in place"

SECONDS = "seconds."
"""`seconds.BYTES` in `samples`: seconds of one operation on a buffer of so many bytes, the slowest rank's, by block."""

Figure = Literal["p50", "p95", "p99", "cv", "wrong", "operations", "worst_rank", "mean"]
"""Figures by size in `values`, as `FIGURE.BYTES`: percentiles and mean of single operations in seconds, their
coefficient of variation (a fraction), the number of wrong elements on all ranks, the number of operations timed, and
the rank that took longest."""


HostFigure = Literal[
    "host.user_cores",
    "host.system_cores",
    "host.switches_per_second",
    "host.peak_bytes",
    "host.fragmentation",
    "host.agent_cores",
    "host.writer_cores",
]
"""What a rank used of its host while its case was measured, in `values`; means over ranks, and of the peak the largest.
Cores are CPU seconds per second; `agent` and `writer` are Convoy's own processes around the rank, if it has any."""


class NetworkResult(NamedTuple):
    """What was measured of a case; by the names of `Case`."""

    samples: dict[str, tuple[float, ...]]
    values: dict[str, float]
    not_measured: dict[str, str]


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
