"""A run of one of nccl-tests' programs as plain data, whether it was read from text or from JSON. Pure."""

from dataclasses import dataclass
from typing import Literal

from convoy.config.network import OPERATIONS, Operation

NcclOperation = Operation | Literal["sendrecv"]

PROGRAMS: dict[str, NcclOperation] = {
    **{f"{each}_perf": each for each in OPERATIONS if each != "all_to_all"},
    "alltoall_perf": "all_to_all",
    "sendrecv_perf": "sendrecv",
}
"""Operations by the names of nccl-tests' programs."""

TYPE_BYTES = {
    "char": 1, "int8": 1, "uint8": 1, "half": 2, "bfloat16": 2, "float": 4, "double": 8, "int": 4, "int32": 4,
    "uint32": 4, "int64": 8, "uint64": 8, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element, by every name that a version of nccl-tests has for its type."""


@dataclass(frozen=True)
class Printed:
    """A number as it was printed, rounded."""

    value: float
    half: float
    """Half of the last printed digit."""

    @property
    def low(self) -> float:
        """The smallest number that rounds to the printed one; never below 0."""
        return max(0.0, self.value - self.half)

    @property
    def high(self) -> float:
        """The largest number that rounds to the printed one."""
        return self.value + self.half


@dataclass(frozen=True)
class IterationTimes:
    """Times of single iterations in microseconds, each the slowest process's; None: not reported."""

    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    cv_percent: float | None = None
    """Coefficient of variation in per cent."""
    skipped: int = 0
    """First iterations that the figures above leave out."""
    times: tuple[float, ...] = ()
    """Times in the order of iterations; empty: not reported."""
    process_times: tuple[tuple[float, ...], ...] = ()
    """Times by process, each of its slowest rank; empty: not reported."""


@dataclass(frozen=True)
class Timing:
    """The figures of a row, out of place or in place."""

    microseconds: Printed
    algbw: Printed
    """Algorithm bandwidth in GB/s of 10^9 bytes; so is the bus bandwidth."""
    busbw: Printed
    wrong: float | None = None
    """Wrong elements; None: not checked, as the text's `N/A`."""
    error: float | None = None
    """Largest difference that versions before 2.13 reported in place of wrong elements."""
    iterations: IterationTimes | None = None


@dataclass(frozen=True)
class NcclRow:
    """The figures at one size of the buffer."""

    where: str
    """`line 12`, or `results[3]` of JSON."""
    size: int
    count: int
    dtype: str
    redop: str
    """Reduction operation; empty: none."""
    root: int | None
    out_of_place: Timing | None
    in_place: Timing | None

    @staticmethod
    def written(
        where: str, size: int, count: int, dtype: str, *, redop: str, root: int | None,
        out_of_place: Timing | None, in_place: Timing | None,
    ) -> "NcclRow":  # fmt: skip
        """A row from what the program wrote, where `none` is no reduction and -1 is no root."""
        return NcclRow(
            where, size, count, dtype, "" if redop == "none" else redop, None if root == -1 else root,
            out_of_place, in_place,
        )  # fmt: skip

    @property
    def timings(self) -> list[Timing]:
        """The timings that were measured, out of place first."""
        return [timing for timing in (self.out_of_place, self.in_place) if timing is not None]


@dataclass(frozen=True)
class NcclRun:
    """One run of a program, of one size or more."""

    operation: NcclOperation
    ranks: int
    """Number of ranks in one communicator."""
    hosts: int | None
    """Number of hosts; None: the file does not name them."""
    rows: tuple[NcclRow, ...]
    devices: tuple[str, ...] = ()
    """Names of the GPUs, each once."""
    counts_cpu_time: bool = False
    """Times are CPU time (`-C 1`), from which no bandwidth follows."""
    ranks_inferred: bool = False
    """The ranks were inferred from the rows, because the file does not name them."""
    nccl_version: str = ""
    tests_version: str = ""
    iterations: int | None = None
    started: str = ""
    """Start time as printed: local time of an unknown time zone."""
    environment: tuple[str, ...] = ()
    """`NAME=VALUE`, all that the file has."""


def version_text(code: int) -> str:
    """NCCL's version from NCCL_VERSION_CODE: 22807 is 2.28.7, and before 2.9 2708 is 2.7.8."""
    major, minor, patch = (code // 10000, code // 100 % 100, code % 100)
    if code < 10000:
        major, minor, patch = code // 1000, code // 100 % 10, code % 100
    return f"{major}.{minor}.{patch}"
