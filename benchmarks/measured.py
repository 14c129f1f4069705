"""What the benchmarks share: the `--out` option and its record, ratios over pairs, and CPU time of processes."""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from convoy.gang.workers.processes import descendants, parents_by_pid
from convoy.stats import interval


def option_parser(description: str | None) -> argparse.ArgumentParser:
    """A script's options, of which all scripts have --out."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    return parser


def at_least_fewest(text: str) -> int:
    """A number of pairs or rounds that an interval can be made of."""
    if int(text) < interval.FEWEST:
        raise argparse.ArgumentTypeError(f"{text}: must be at least {interval.FEWEST}, for an interval")
    return int(text)


def write_record(out: Path | None, result: Mapping[str, Any]) -> None:
    """Write the result with its origin. out: None for nowhere."""
    if out is not None:
        out.write_text(json.dumps({**provenance(), **result}, indent=1, default=str) + "\n")


def provenance() -> dict[str, Any]:
    """Where, when and with what this was measured."""
    from convoy.benchmark.measure.provenance import commit_of_sources  # slow, and torchrun's workers import this module

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit_of_sources(),
        "hardware": {"cpu": cpu, "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "torch": importlib.metadata.version("torch")},
        "command": " ".join(sys.argv),
    }


def ratio(pairs: Sequence[tuple[float, float]], of: interval.Statistic = "median") -> dict[str, float]:
    """Median or mean of the first values over that of the second ones, and its 95 % bootstrap interval over pairs."""
    estimated = interval.paired_ratio(pairs, of)
    return {"ratio": estimated.estimate, "low": estimated.low, "high": estimated.high, "pairs": estimated.n}


def ratio_text(ratio: Mapping[str, float]) -> str:
    return f"{ratio['ratio']:.4f}, 95 % interval {ratio['low']:.4f} to {ratio['high']:.4f}"


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90 and the maximum."""
    p90 = statistics.quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]
    return {"p50": statistics.median(values), "p90": p90, "max": max(values)}


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far, ended ones included; 0 if it is gone."""
    # The clock of another process, as pthread_getcpuclockid makes it: /proc/<pid>/stat has ticks of 10 ms only.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def process_tree(root: int) -> list[int]:
    """A process and all below it, those too that have ended and were not waited for."""
    try:
        process = psutil.Process(root)
        return [root, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds_of_tree(root: int) -> float:
    """CPU time so far of a process and of all that it and those below it have started and, if they have ended, have
    waited for."""
    return sum(cpu_seconds(pid) + _waited_for_seconds(pid) for pid in process_tree(root))


def _waited_for_seconds(pid: int) -> float:
    """Of its children that have ended, and theirs."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.children_user + times.children_system)


def cpu_seconds_below() -> float:
    """CPU time so far of the processes that this one and those below it have started, and that still run."""
    return sum(map(cpu_seconds, descendants(parents_by_pid(), os.getpid())))
