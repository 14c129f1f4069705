"""What the benchmarks share: statistics over interleaved pairs, CPU time of processes, and where it was measured."""

import importlib.metadata
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BOOTSTRAPS = 10_000


def ratio(
    values: Sequence[tuple[float, float]], seed: int = 0, of: Callable[[Sequence[float]], float] = sum
) -> dict[str, float]:
    """Ratio of first to second values, and its 95 % percentile-bootstrap interval over the pairs.

    of: what of each side is compared, such as their sums or their medians.
    """

    def exact(pairs: Sequence[tuple[float, float]]) -> float:
        return of([a for a, _ in pairs]) / of([b for _, b in pairs])

    generator = random.Random(seed)
    drawn = sorted(exact(generator.choices(values, k=len(values))) for _ in range(BOOTSTRAPS))
    return {
        "ratio": exact(values),
        "low": drawn[int(0.025 * BOOTSTRAPS)],
        "high": drawn[int(0.975 * BOOTSTRAPS)],
        "pairs": len(values),
    }


def ratio_of_medians(values: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Median of the first values over that of the second ones, with its interval."""
    return ratio(values, of=statistics.median)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and quartiles, in seconds."""
    low, _, high = statistics.quantiles(seconds, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 3
    return {"median": statistics.median(seconds), "q1": low, "q3": high}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90 and the maximum."""
    p90 = statistics.quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]
    return {"p50": statistics.median(values), "p90": p90, "max": max(values)}


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far, ended ones included; 0 if it is gone."""
    # The clock of another process, as pthread_getcpuclockid makes it: /proc/<pid>/stat tells ticks of 10 ms only.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def descendants(pid: int) -> list[int]:
    """Processes that this one started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parents.setdefault(_parent(entry), []).append(int(entry.name))
    found, waiting = list[int](), [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # ended meanwhile
        return 0


def provenance() -> dict[str, Any]:
    """Where, when and with what this was measured."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    dirty = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=False).stdout.strip()
    cpu = next((x.partition(":")[2].strip() for x in _lines("/proc/cpuinfo") if x.startswith("model name")), "unknown")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit + ("+changes" if dirty else ""),
        "hardware": {"cpu": cpu, "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "torch": importlib.metadata.version("torch")},
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
