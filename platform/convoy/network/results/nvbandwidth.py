"""Reader of the output of nvbandwidth --json: bandwidth of copies between GPUs, and between GPUs and the host. Pure.

Source: NVIDIA/nvbandwidth 0.8, json_output.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUM_DIGITS = 1e-4
"""Relative error of a sum of figures that are printed with six digits."""


@dataclass(frozen=True)
class CopyTest:
    """Result of one test."""

    where: str
    """`testcases[3]`."""
    name: str
    """Name of the test, such as `device_to_device_memcpy_read_ce`."""
    status: str
    """`Passed`, `Waived`, `Not Found` or `Error`."""
    bandwidths: tuple[tuple[float | None, ...], ...]
    """Bytes per second from the row's GPU, or host, to the column's; None: not measured. Empty: the test has none."""
    total: float | None
    """Sum of the bandwidths as printed, in bytes per second; None: not printed."""

    @property
    def measured(self) -> list[float]:
        """All bandwidths that were measured."""
        return [each for row in self.bandwidths for each in row if each is not None]


def is_nvbandwidth(document: Any) -> bool:
    """Whether JSON is nvbandwidth's."""
    return isinstance(document, Mapping) and isinstance(document.get("nvbandwidth"), Mapping)


def parse_nvbandwidth(document: Mapping[str, Any]) -> tuple[list[CopyTest], dict[str, str]]:
    """All tests in their order, and the versions that it names. Raises ValueError if it has no test, or a bandwidth
    that is no number."""
    root = document["nvbandwidth"]
    tests = [_read_test(f"testcases[{i}]", each) for i, each in enumerate(root.get("testcases") or [])]
    if not tests:
        raise ValueError(f"nvbandwidth has no test: {root.get('error', 'testcases is empty')}")
    names = {"CUDA Runtime Version": "cuda", "Driver Version": "driver", "version": "nvbandwidth"}
    return tests, {name: str(root[key]) for key, name in names.items() if key in root}


def _read_test(where: str, test: Mapping[str, Any]) -> CopyTest:
    try:
        rows = tuple(tuple(_bandwidth(cell) for cell in row or ()) for row in test.get("bandwidth_matrix") or ())
        total = None if test.get("sum") is None else 1e9 * float(test["sum"])
    except (TypeError, ValueError):
        raise ValueError(f"{where}: bandwidth_matrix and sum must be numbers, or N/A") from None
    return CopyTest(where, str(test.get("name", "")), str(test.get("status", "")), rows, total)


def _bandwidth(cell: object) -> float | None:
    """Bytes per second of a cell in GB/s of 10^9 bytes; None: not measured."""
    return None if cell == "N/A" else 1e9 * float(str(cell))


def contradiction_of(test: CopyTest) -> str:
    """The reason why a test's figures contradict each other; empty: they do not."""
    if test.status == "Passed" and not test.measured:
        return f"{test.name}: Passed, without a bandwidth"
    total = sum(test.measured)
    if test.total is not None and abs(total - test.total) > SUM_DIGITS * max(total, test.total):
        return f"{test.name}: sum of {test.total / 1e9:g} GB/s, but the matrix has {total / 1e9:.6g}"
    return ""
