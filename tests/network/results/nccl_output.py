"""Output of nccl-tests as its versions print it, from the formats in its sources.

These are src/util.cu of 2.19.6, src/common.cu of 2.0.0 to 2.16.9, and the functions `*PrintHeader` and `*PrintLine` of
the programs before 2.13.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from convoy.network.bandwidth import ALL_SEND_ALL, bus_factor
from convoy.network.results.nccl_run import PROGRAMS, TYPE_BYTES, NcclOperation


@dataclass(frozen=True)
class Output:
    """A run to print. Sizes follow from counts: of a rank where the buffer is all ranks'."""

    operation: NcclOperation = "all_reduce"
    ranks: int = 16
    hosts: int = 2
    dtype: str = "float"
    times: Sequence[tuple[int, float, float]] = field(
        default=((2, 12.9, 12.87), (256, 20.3, 19.9), (2**22, 812.3, 799.0))
    )
    """Counts, and microseconds out of place and in place."""
    prefix: str = ""
    suffix: str = ""

    @property
    def program(self) -> str:
        return next(name for name, operation in PROGRAMS.items() if operation == self.operation)

    @property
    def reduces(self) -> bool:
        return self.operation in ("all_reduce", "reduce_scatter", "reduce")

    @property
    def root(self) -> int:
        return 0 if self.operation in ("broadcast", "reduce", "gather", "scatter") else -1

    def size(self, count: int) -> int:
        return count * TYPE_BYTES[self.dtype] * (self.ranks if self.operation in ALL_SEND_ALL else 1)

    def bandwidths(self, count: int, microseconds: float) -> tuple[float, float]:
        algbw = self.size(count) / 1e9 / (microseconds / 1e6)
        return algbw, algbw * bus_factor(self.operation, self.ranks)

    def lines(self, lines: Sequence[str]) -> str:
        return "".join(f"{self.prefix}{line}{self.suffix}\n" for line in lines)


def device_lines(output: Output) -> list[str]:
    each = output.ranks // output.hosts
    return [
        f"#  Rank {rank:2d} Group {0:2d} Pid {4000 + rank:6d} on {f'host{rank // each}':>10} device {rank % each:2d} "
        f"[0000:{16 + rank % each:02x}:00] NVIDIA A100-SXM4-40GB"
        for rank in range(output.ranks)
    ]


def old_time(microseconds: float) -> str:
    if microseconds >= 10000.0:
        return f"{microseconds:7.0f}"
    return f"{microseconds:7.1f}" if microseconds >= 100.0 else f"{microseconds:7.2f}"


def new_number(value: float, width: int) -> str:
    """getFloatStr of 2.17 and newer."""
    for digits in (2, 1, 0):
        if len(text := f"{value:{width}.{digits}f}") <= width:
            return text
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


def text_of_2_4(output: Output) -> str:
    """Before 2.13: a column `error`, `redop` only of reductions, `root` only of operations with one."""
    columns = ["type", *(["redop"] if output.reduces else []), *(["root"] if output.root >= 0 else [])]
    figures = "   time   algbw   busbw  error"
    header = f"#       size         count  {'  '.join(f'{each:>6}' for each in columns)}  {figures}  {figures}"
    devices = [
        f"#   Rank {rank:2d} Pid {4000 + rank:6d} on {f'host{rank * output.hosts // output.ranks}':>10} device "
        f"{rank % 8:2d} [0x{16 + rank % 8:02x}] Tesla V100-SXM2-16GB"
        for rank in range(output.ranks)
    ]
    lines = [
        f"mpirun -np {output.ranks} ./build/{output.program} -b 8 -e 16M -f 2 -g 1",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 16777216 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 ",
        "#", "# Using devices", *devices, "#", header,
    ]  # fmt: skip
    for count, *times in output.times:
        row = f"{output.size(count):12d}  {count:12d}  {output.dtype:>6}"
        row += "     sum" if output.reduces else ""
        row += f"  {output.root:6d}" if output.root >= 0 else ""
        for microseconds in times:
            algbw, busbw = output.bandwidths(count, microseconds)
            row += f"  {old_time(microseconds)}  {algbw:6.2f}  {busbw:6.2f}  {2e-7:5.0e}"
        lines.append(row)
    return output.lines([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0 "])


def text_of_2_13(output: Output, wrong: str = "0") -> str:
    figures = "   time   algbw   busbw #wrong"
    lines = [
        f"+ {output.program} -b 8",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 graph: 0",
        *device_lines(output),
        f"#       size         count      type   redop    root  {figures}  {figures}",
    ]
    for count, *times in output.times:
        row = f"{output.size(count):12d}  {count:12d}  {output.dtype:>8}  {'sum' if output.reduces else 'none':>6}"
        row += f"  {output.root:6d}"
        for microseconds in times:
            algbw, busbw = output.bandwidths(count, microseconds)
            row += f"  {old_time(microseconds)}  {algbw:6.2f}  {busbw:6.2f}  {wrong:>5}"
        lines.append(row)
    return output.lines(lines)


def text_of_2_19(output: Output, per_iteration: bool = False, clock: bool = False) -> str:
    figures = "time   algbw   busbw  #wrong" + ("  i_min  i_max  i_p99  i_cv%" if per_iteration else "")
    lines = [
        "# nccl-tests version 2.19.6 nccl-headers=22907 nccl-library=22807",
        f"# Collective test starting: {output.program}",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 16777216 step: 2(factor) warmup iters: 1 iters: 20 unalign: 0",
        "#", "# Using devices", *device_lines(output), "#",
        f"#       size         count      type   redop    root  {figures}  {figures}{'  timestamp' if clock else ''}",
    ]  # fmt: skip
    for count, *times in output.times:
        row = f"{output.size(count):12d}  {count:12d}  {output.dtype:>8}  {'sum' if output.reduces else 'none':>6}"
        row += f"  {output.root:6d}"
        for microseconds in times:
            algbw, busbw = output.bandwidths(count, microseconds)
            row += f"  {new_number(microseconds, 7)}  {new_number(algbw, 6)}  {new_number(busbw, 6)}  {0:6g}"
            if per_iteration:
                spread = (0.9 * microseconds, 1.4 * microseconds, 1.3 * microseconds, 7.25)
                row += "".join(f"  {new_number(each, 7)}" for each in spread)
        lines.append(row + (f"{'2026-05-01 12:00:01':>21}" if clock else ""))
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0 ", "#"]
    return output.lines([*lines, f"# Collective test concluded: {output.program}"])


def json_of(output: Output, version: int = 3, per_iteration: bool = False) -> str:
    """As `-J` writes it: numbers with six decimals, truth as text, one device for each process."""
    each = output.ranks // output.hosts
    devices = [
        {"rank": rank, "group": 0, "pid": 1, "hostname": f"host{rank // each}", "device": 0, "device_hex": "0000:10:00",
         "device_info": "NVIDIA H100 80GB HBM3"}
        for rank in range(output.ranks)
    ]  # fmt: skip
    rows = []
    for count, *times in output.times:
        row: dict[str, object] = {
            "size": output.size(count), "count": count, "type": output.dtype,
            "redop": "sum" if output.reduces else "none", "root": f"{output.root:6d}",
        }  # fmt: skip
        for name, microseconds in zip(("out_of_place", "in_place"), times, strict=True):
            algbw, busbw = output.bandwidths(count, microseconds)
            row[name] = {"time": six(microseconds), "alg_bw": six(algbw), "bus_bw": six(busbw), "nwrong": 0.0}
            if per_iteration:
                row[f"{name}_per_iter"] = per_iteration_json(microseconds, version)
        rows.append({**row, "actual_iterations": 20, "experiment_name": ""})
    return json.dumps(
        {
            "version": version, "start_time": "2026-05-01 12:00:00", "args": [f"/opt/{output.program}", "-b", "8"],
            "env": ["NCCL_DEBUG=INFO", "AWS_SECRET_ACCESS_KEY=abc", "FI_PROVIDER=efa", "HOME=/root"],
            "nccl_version": 22807,
            "config": {"nthreads": 1, "ngpus": 1, "iterations": 20, "graph": 0, "parallel_init": "false",
                       "devices": devices},
            "results": rows, "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"}, "errors": [],
            "end_time": "2026-05-01 12:01:00",
        }
    )  # fmt: skip


def six(value: float) -> float:
    return float(f"{value:f}")


def per_iteration_json(microseconds: float, version: int) -> dict[str, object]:
    times = [six(microseconds * factor) for factor in (3.0, 0.9, 1.0, 1.1)]
    counted = times[1:] if version == 3 else times
    return {
        **({"skipped_iterations": 1} if version == 3 else {}),
        "min_us": min(counted), "max_us": max(counted), "avg_us": six(sum(counted) / len(counted)),
        "p50_us": sorted(counted)[len(counted) // 2], "p95_us": max(counted), "p99_us": max(counted),
        "stdev_us": six(0.08 * microseconds), "cv_pct": 8.0, "times_us": times,
        "per_process_max_times_us": [times, [six(0.99 * each) for each in times]],
    }  # fmt: skip
