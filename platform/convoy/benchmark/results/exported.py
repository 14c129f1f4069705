"""Results of nccl-tests from cases. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC

from convoy.benchmark.results.case import Case
from convoy.benchmark.results.imported import ITERATION_SECONDS, LAB, TIME_FORMAT, allowed_environment
from convoy.benchmark.results.network import (
    IN_PLACE_SUFFIX,
    SUITE_NAME,
    Figure,
    figure_name,
    measured_sizes,
    seconds_name,
)
from convoy.network.bandwidth import ALL_SEND_ALL, bus_factor
from convoy.network.results.nccl_run import (
    PROGRAMS,
    TYPE_BYTES,
    IterationTimes,
    NcclOperation,
    NcclRow,
    NcclRun,
    Printed,
    Timing,
)

_DTYPES = {"fp32": "float", "bf16": "bfloat16", "fp16": "half", "fp64": "double", "int32": "int32"}
"""nccl-tests' names of the types of `NetworkConfig`."""


def exported_run(cases: Sequence[Case]) -> NcclRun:
    """A run of nccl-tests from a case of a collective, and its case in place if there is one.

    Each block is a row, as each cycle of `-N` is. The first row of a size has what is known of all blocks together: the
    wrong elements, and figures of single operations. Raises ValueError for a case of no collective, which has no such
    form.
    """
    first = cases[0]
    operation = case_operation(first)
    dtype, redop, root = _element(first, operation)
    timings: dict[tuple[int, int], dict[bool, Timing]] = {}
    for case in cases:
        for size in measured_sizes(case.samples):
            for block, seconds in enumerate(case.samples[seconds_name(size)]):
                in_place = case.name.endswith(IN_PLACE_SUFFIX)
                timings.setdefault((block, size), {})[in_place] = _timing(case, size, operation, seconds, block)
    each_rank = first.hardware.ranks if operation in ALL_SEND_ALL else 1
    rows = [
        NcclRow(
            where=f"results[{index}]", size=size, count=size // TYPE_BYTES[dtype] // each_rank, dtype=dtype,
            redop=redop, root=root, out_of_place=timings[block, size].get(False),
            in_place=timings[block, size].get(True),
        )
        for index, (block, size) in enumerate(sorted(timings))
    ]  # fmt: skip
    environment = allowed_environment(first.provenance.environment)
    imported = first.config.get("imported")
    return NcclRun(
        operation=operation,
        ranks=first.hardware.ranks,
        hosts=None if "hosts" in first.not_measured else first.hardware.nodes,
        rows=tuple(rows),
        devices=(_device_text(first),) if first.hardware.device else (),
        nccl_version=first.provenance.versions.get("nccl", ""),
        iterations=imported.get("iterations") if isinstance(imported, Mapping) else None,
        started="" if "date" in first.not_measured else first.provenance.measured.astimezone(UTC).strftime(TIME_FORMAT),
        environment=tuple(f"{name}={value}" for name, value in environment.items()),
    )


def _device_text(case: Case) -> str:
    """With the lab, so that nobody takes its figures for those of real machines."""
    return f"{case.hardware.device}{LAB}{case.lab}" if case.lab else case.hardware.device


def case_operation(case: Case) -> NcclOperation:
    """Of a case with times by size. Raises ValueError for any other."""
    name = case.group.removeprefix(f"{SUITE_NAME}-")
    operation = next((each for each in PROGRAMS.values() if each == name), None)
    if case.suite != SUITE_NAME or operation is None or not measured_sizes(case.samples):
        raise ValueError(f"{case.key}: is no collective with times by size, which is all that nccl-tests' format holds")
    return operation


def _element(case: Case, operation: NcclOperation) -> tuple[str, str, int | None]:
    """Type, reduction and root."""
    imported = case.config.get("imported")
    if isinstance(imported, Mapping):
        return imported["dtype"], imported["redop"], imported["root"]
    dtype = _DTYPES[case.config["network"]["dtype"]]
    reduces = operation in ("all_reduce", "reduce_scatter", "reduce")
    return dtype, "sum" if reduces else "", 0 if operation in ("broadcast", "reduce", "gather", "scatter") else None


def _timing(case: Case, size: int, operation: NcclOperation, seconds: float, block: int) -> Timing:
    microseconds = _scaled(seconds, 1e6)
    algbw = size / microseconds / 1e3
    return Timing(
        microseconds=_exact(microseconds),
        algbw=_exact(algbw),
        busbw=_exact(algbw * bus_factor(operation, case.hardware.ranks)),
        wrong=case.values.get(figure_name("wrong", size)) if block == 0 else None,
        iterations=_exported_iterations(case, size) if block == 0 else None,
    )


def _exported_iterations(case: Case, size: int) -> IterationTimes | None:
    """None: the case has no figures of single operations."""

    def value(figure: Figure) -> float | None:
        seconds = case.values.get(figure_name(figure, size))
        return None if seconds is None else _scaled(seconds, 1e6)

    if value("p99") is None:
        return None
    times = tuple(_scaled(each, 1e6) for each in case.samples.get(f"{ITERATION_SECONDS}{size}", ()))
    operations = case.values.get(figure_name("operations", size))
    skipped = len(times) - int(operations) if times and operations is not None else 0
    counted, cv = times[skipped:], case.values.get(figure_name("cv", size))
    return IterationTimes(
        minimum=min(counted, default=None), maximum=max(counted, default=None), mean=value("mean"), p50=value("p50"),
        p95=value("p95"), p99=value("p99"), cv_percent=None if cv is None else _scaled(cv, 100),
        skipped=skipped, times=times,
    )  # fmt: skip


def _scaled(value: float, factor: float) -> float:
    """To 15 digits, so that a number in another unit reads back as it was."""
    return float(f"{value * factor:.15g}")


def _exact(value: float) -> Printed:
    return Printed(value, 0.5e-6)
