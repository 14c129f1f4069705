"""The JSON format of nccl-tests (`-J`): reader of versions 1 to 3, and writer of version 3. Pure.

Truth values are text, the root is padded text, and `devices` has one entry for each process, whatever its number of
GPUs. Source: nccl-tests, src/util.cu.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from convoy.network.results.nccl_checks import find_ranks
from convoy.network.results.nccl_run import (
    PROGRAMS,
    TYPE_BYTES,
    IterationTimes,
    NcclOperation,
    NcclRow,
    NcclRun,
    Printed,
    Timing,
    version_text,
)

VERSION = 3

_HALF = 0.5e-6
"""Numbers have six decimals."""


def is_nccl_json(document: object) -> bool:
    """Whether it is a result of nccl-tests, of whatever version."""
    return isinstance(document, Mapping) and "nccl_version" in document and "version" in document


def parse_nccl_json(
    document: Mapping[str, Any], operation: NcclOperation | None = None, ranks: int | None = None
) -> NcclRun:
    """The run in a document. operation, ranks: used if the document does not name them.

    Raises ValueError for a newer version, for a document without rows, and if something is missing, which it names.
    """
    if document["version"] not in range(1, VERSION + 1):
        raise ValueError(f"version = {document['version']}: must be a version of nccl-tests' JSON, 1 to {VERSION}")
    try:
        rows = tuple(_row(index, row) for index, row in enumerate(document["results"]))
        config = document.get("config") or {}
        operation = _operation(document.get("args") or ()) or operation
        if not rows:
            raise ValueError("results = []: the run has no row")
        if operation is None:
            raise ValueError("args: name none of nccl-tests' programs; give --op")
        count, inferred = find_ranks(operation, rows, named=_ranks(config), given=ranks)
        devices, code = config.get("devices") or [], document["nccl_version"]
        return NcclRun(
            operation=operation,
            ranks=count,
            hosts=len({device["hostname"] for device in devices if device["group"] == devices[0]["group"]}) or None,
            rows=rows,
            devices=tuple(dict.fromkeys(device["device_info"] for device in devices)),
            counts_cpu_time=any("cpu_time" in (row.get("in_place") or {}) for row in document["results"]),
            ranks_inferred=inferred,
            nccl_version=version_text(code) if code else "",
            iterations=config.get("iterations"),
            started=document.get("start_time") or "",
            environment=tuple(document.get("env") or ()),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a complete result of nccl-tests: {error!r}") from None


def _operation(args: Sequence[str]) -> NcclOperation | None:
    return next((PROGRAMS[name] for arg in args if (name := PurePath(arg).name) in PROGRAMS), None)


def _ranks(config: Mapping[str, Any]) -> int | None:
    """Ranks of one communicator: processes of the first group times `nthreads` times `ngpus`; None: not named."""
    devices = config.get("devices") or []
    processes = sum(device["group"] == devices[0]["group"] for device in devices)
    return processes * int(config["nthreads"]) * int(config["ngpus"]) or None


def _row(index: int, row: Mapping[str, Any]) -> NcclRow:
    if row["type"] not in TYPE_BYTES:
        raise ValueError(f"results[{index}]: type = {row['type']}: must be one of {', '.join(TYPE_BYTES)}")
    return NcclRow.written(
        f"results[{index}]", int(row["size"]), int(row["count"]), row["type"],
        redop=row["redop"], root=int(row["root"]),
        out_of_place=_timing(row.get("out_of_place"), row.get("out_of_place_per_iter")),
        in_place=_timing(row.get("in_place"), row.get("in_place_per_iter")),
    )  # fmt: skip


def _timing(figures: Mapping[str, Any] | None, iterations: Mapping[str, Any] | None) -> Timing | None:
    if figures is None:
        return None
    wrong = figures["nwrong"]
    return Timing(
        microseconds=_printed(figures["cpu_time"] if "cpu_time" in figures else figures["time"]),
        algbw=_printed(figures["alg_bw"]),
        busbw=_printed(figures["bus_bw"]),
        wrong=None if wrong is None else float(wrong),
        iterations=None if iterations is None else _iterations(iterations),
    )


def _printed(value: float) -> Printed:
    return Printed(float(value), _HALF)


def _iterations(figures: Mapping[str, Any]) -> IterationTimes:
    def number(name: str) -> float | None:
        return None if figures.get(name) is None else float(figures[name])

    return IterationTimes(
        minimum=number("min_us"), maximum=number("max_us"), mean=number("avg_us"), p50=number("p50_us"),
        p95=number("p95_us"), p99=number("p99_us"), cv_percent=number("cv_pct"),
        skipped=int(figures.get("skipped_iterations") or 0), times=tuple(map(float, figures.get("times_us") or ())),
        process_times=tuple(tuple(map(float, own)) for own in figures.get("per_process_max_times_us") or ()),
    )  # fmt: skip


def format_nccl_json(run: NcclRun) -> str:
    """A run in the JSON format of nccl-tests, from which `parse_nccl_json` reads the same run. Unknown facts are null
    or empty."""
    program = next(name for name, operation in PROGRAMS.items() if operation == run.operation)
    timings = [timing for row in run.rows for timing in row.timings]
    wrong = sum(timing.wrong or 0 for timing in timings)
    document = {
        "version": VERSION,
        "start_time": run.started,
        "args": [program],
        "env": list(run.environment),
        "nccl_version": _version_code(run.nccl_version),
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "iterations": run.iterations,
            "devices": [_device(rank, run) for rank in range(run.ranks)] if run.hosts else [],
        },
        "results": [_row_document(row, run) for row in run.rows],
        "out_of_bounds": {"count": wrong, "okay": "true" if wrong == 0 else "false"},
        "average_bus_bandwidth": {
            "bandwidth": sum(timing.busbw.value for timing in timings) / len(timings),
            "okay": "unchecked",
        },
        "errors": [],
        "end_time": "",
    }
    return json.dumps(document, indent=1)


def _device(rank: int, run: NcclRun) -> dict[str, Any]:
    """Hosts are numbered, since the run does not keep their names; ranks are host by host."""
    assert run.hosts is not None
    return {
        "rank": rank, "group": 0, "pid": None, "hostname": f"host-{rank * run.hosts // run.ranks}", "device": None,
        "device_hex": None, "device_info": run.devices[0] if run.devices else "",
    }  # fmt: skip


def _row_document(row: NcclRow, run: NcclRun) -> dict[str, Any]:
    document: dict[str, Any] = {
        "size": row.size, "count": row.count, "type": row.dtype, "redop": row.redop or "none",
        "root": f"{-1 if row.root is None else row.root:6d}",
    }  # fmt: skip
    for name, timing in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        document[name] = None
        if timing is not None:
            document[name] = {
                "time": timing.microseconds.value, "alg_bw": timing.algbw.value, "bus_bw": timing.busbw.value,
                "nwrong": timing.wrong,
            }  # fmt: skip
            if timing.iterations is not None:
                document[f"{name}_per_iter"] = _iterations_document(timing.iterations)
    return {**document, "actual_iterations": run.iterations, "experiment_name": ""}


def _iterations_document(times: IterationTimes) -> dict[str, Any]:
    deviation = None
    if times.cv_percent is not None and times.mean is not None:
        deviation = times.cv_percent / 100 * times.mean
    document: dict[str, Any] = {
        "skipped_iterations": times.skipped, "min_us": times.minimum, "max_us": times.maximum, "avg_us": times.mean,
        "p50_us": times.p50, "p95_us": times.p95, "p99_us": times.p99,
        "stdev_us": deviation, "cv_pct": times.cv_percent,
        "times_us": times.times,
    }  # fmt: skip
    return {**document, "per_process_max_times_us": times.process_times} if times.process_times else document


def _version_code(version: str) -> int | None:
    """NCCL_VERSION_CODE; None: not known."""
    numbers = version.split(".")
    if len(numbers) != 3 or not all(each.isdecimal() for each in numbers):
        return None
    major, minor, patch = map(int, numbers)
    return (major * 10000 if (major, minor) > (2, 8) else major * 1000) + minor * 100 + patch
