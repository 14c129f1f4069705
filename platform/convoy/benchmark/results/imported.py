"""Cases from results of other tools. Pure.

A file that does not say when, on how many hosts or with which cores it was measured has no such fact in its case: the
case names it in `not_measured`, and its field has the least value that is allowed.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from convoy.benchmark.results.case import Case, Hardware, Provenance
from convoy.benchmark.results.network import (
    IN_PLACE_SUFFIX,
    SUITE_NAME,
    Figure,
    figure_name,
    seconds_name,
)
from convoy.benchmark.results.transports import (
    JITTER_SECONDS,
    LOST_PACKETS,
    PACKETS,
    RATE,
    RETRANSMITS,
    ROUND_TRIP_SECONDS,
    TRANSPORTS_GROUP,
)
from convoy.network.results.ibstat import IbPort
from convoy.network.results.nccl_run import IterationTimes, NcclRow, NcclRun, Timing
from convoy.network.results.nvbandwidth import CopyTest
from convoy.network.results.read import NetworkResult, PairRun

IMPORTED = "imported"

PORTS_GROUP = f"{SUITE_NAME}-ports"

COPIES_GROUP = f"{SUITE_NAME}-copies"

COPY_RATE = "bytes_per_second."
"""`bytes_per_second.ROW.COLUMN` in `values` of a test of nvbandwidth: from the row's GPU or host to the column's."""

ITERATION_SECONDS = "iteration_seconds."
"""`iteration_seconds.BYTES` in `samples`: seconds of single operations, the slowest process's, in their order."""

PORT_GBPS = "port_gbps."
"""`port_gbps.DEVICE.PORT` in `values`: rate of a port in each direction, in 10^9 bits per second."""

ENVIRONMENT = ("NCCL_", "FI_", "GLOO_", "OMP_", "UCX_", "OFI_", "RDMAV_", "EFA_", "TORCH_NCCL_")
"""How the names of variables begin that say how the network is used."""

TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
"""Of nccl-tests' JSON, without a time zone."""

LAB = " in a lab of "
"""After a device in nccl-tests' JSON that Convoy wrote of a lab; the lab follows. The format has no other place."""

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SESSION", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"(?=[A-Za-z0-9+/=_-]{20,}$)(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_-]+$|://[^/]*@|-----BEGIN")
"""Long words of letters and digits, URLs with a password, and PEM."""

_FIGURES: dict[Figure, str] = {"p50": "p50", "p95": "p95", "p99": "p99", "mean": "mean"}
"""Figures of single operations, and their names in `IterationTimes`."""

_NOT_SAID = {
    "date": "the file does not say when it was measured; the case has the date of the file",
    "hosts": "the file does not name its hosts",
    "cores": "the tool reports neither threads nor cores",
}


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that say how the network is used, without any that may hold a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(ENVIRONMENT) and not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value)
    }


def imported_cases(result: NetworkResult, file_date: datetime) -> list[Case]:
    """The cases of a file's content, of which those of nccl-tests are one for out of place and one for in place, by
    type and reduction if there are several. A further run of an operation has its number in its cases' names.
    file_date: when the file was changed last, with its time zone."""
    cases: list[Case] = []
    for index, run in enumerate(result.runs):
        number = 1 + sum(other.operation == run.operation for other in result.runs[:index])
        cases += _run_cases(run, IMPORTED if number == 1 else f"{IMPORTED} {number}", file_date)
    cases += [_pair_case(pair, file_date) for pair in result.pairs]
    if result.ports:
        cases.append(_ports_case(result.ports, file_date))
    cases += [_copy_case(test, result.versions, file_date) for test in result.copies if test.measured]
    return cases


def _run_cases(run: NcclRun, base: str, file_date: datetime) -> list[Case]:
    kinds = list(dict.fromkeys((row.dtype, row.redop, row.root) for row in run.rows))
    cases = []
    for kind in kinds:
        rows = [row for row in run.rows if (row.dtype, row.redop, row.root) == kind and row.size]
        differs = kind if len(kinds) > 1 else ()
        name = " ".join([base, *(str(each) for each in differs if each not in ("", None))])
        out_of_place = [(row, row.out_of_place) for row in rows if row.out_of_place]
        in_place = [(row, row.in_place) for row in rows if row.in_place]
        cases += [
            _collective_case(run, each_name, timings, file_date)
            for each_name, timings in ((name, out_of_place), (name + IN_PLACE_SUFFIX, in_place))
            if timings
        ]
    return cases


def _collective_case(run: NcclRun, name: str, timings: Sequence[tuple[NcclRow, Timing]], file_date: datetime) -> Case:
    samples: dict[str, tuple[float, ...]] = {}
    values: dict[str, float] = {}
    for row, timing in timings:
        block = samples.get(seconds_name(row.size), ())
        samples[seconds_name(row.size)] = (*block, timing.microseconds.value / 1e6)
        if timing.wrong is not None:
            wrong = figure_name("wrong", row.size)
            values[wrong] = values.get(wrong, 0.0) + timing.wrong
        if timing.iterations is not None:
            values |= _iteration_values(timing.iterations, row.size)
            if timing.iterations.times:
                samples[f"{ITERATION_SECONDS}{row.size}"] = tuple(each / 1e6 for each in timing.iterations.times)
    environment = dict(each.split("=", 1) for each in run.environment if "=" in each)
    versions = {"nccl": run.nccl_version, "nccl-tests": run.tests_version}
    first = timings[0][0]
    not_said = {
        "date": "" if run.started else _NOT_SAID["date"],
        "hosts": "" if run.hosts else _NOT_SAID["hosts"],
        "wrong": "" if any(timing.wrong is not None for _, timing in timings) else "results were not checked",
        "time": "CPU time was counted, not the operation's (-C 1)" if run.counts_cpu_time else "",
        "time zone": "the file's times name no time zone, and are taken as UTC" if run.started else "",
    }
    imported = {
        "tool": "nccl-tests", "operation": run.operation, "dtype": first.dtype, "redop": first.redop,
        "root": first.root, "iterations": run.iterations,
    }  # fmt: skip
    return _case(
        group=f"{SUITE_NAME}-{run.operation}",
        name=name,
        imported=imported,
        hardware=_hardware([device.partition(LAB)[0] for device in run.devices], run.hosts or 1, run.ranks),
        lab=next((lab for device in run.devices if (lab := device.partition(LAB)[2])), ""),
        provenance=Provenance(
            measured=_start_time(run.started) or file_date,
            commit="",
            versions={name: version for name, version in versions.items() if version},
            environment=allowed_environment(environment),
        ),
        samples=samples,
        values=values,
        not_said={name: text for name, text in not_said.items() if text},
    )


def _iteration_values(times: IterationTimes, size: int) -> dict[str, float]:
    found: dict[Figure, float | None] = {figure: getattr(times, name) for figure, name in _FIGURES.items()}
    values = {figure_name(figure, size): value / 1e6 for figure, value in found.items() if value is not None}
    if times.cv_percent is not None:
        values[figure_name("cv", size)] = times.cv_percent / 100
    if times.times:
        values[figure_name("operations", size)] = float(len(times.times) - times.skipped)
    return values


def _start_time(started: str) -> datetime | None:
    """None: it is not in nccl-tests' form."""
    try:
        return datetime.strptime(started, TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def _pair_case(pair: PairRun, file_date: datetime) -> Case:
    values: dict[str, float] = {}
    samples: dict[str, tuple[float, ...]] = {seconds_name(row.size): (row.seconds,) for row in pair.rows}
    if stream := pair.stream:
        counts = {
            RETRANSMITS: stream.retransmits, PACKETS: stream.packets, LOST_PACKETS: stream.lost_packets,
            ROUND_TRIP_SECONDS: stream.round_trip_seconds, JITTER_SECONDS: stream.jitter_seconds,
        }  # fmt: skip
        values = {name: float(value) for name, value in counts.items() if value is not None}
        samples[RATE] = (stream.bytes_per_second,)
    return _case(
        group=TRANSPORTS_GROUP,
        name=", ".join(each for each in (pair.tool, pair.transport) if each),
        imported={"tool": pair.tool, "transport": pair.transport, "streams": stream.streams if stream else None},
        hardware=_hardware((), 1, 2),
        provenance=Provenance(
            measured=file_date, commit="", versions={pair.tool: stream.version} if stream else {}, environment={}
        ),
        samples=samples,
        values=values,
        not_said={name: _NOT_SAID[name] for name in ("date", "hosts")},
    )


def _ports_case(ports: Sequence[IbPort], file_date: datetime) -> Case:
    return _case(
        group=PORTS_GROUP,
        name="ibstat",
        imported={"tool": "ibstat", "states": {f"{port.device}.{port.port}": port.state for port in ports}},
        hardware=_hardware((), 1, 1),
        provenance=Provenance(measured=file_date, commit="", versions={}, environment={}),
        samples={},
        values={
            f"{PORT_GBPS}{port.device}.{port.port}": port.rate_gbps for port in ports if port.rate_gbps is not None
        },
        not_said={"date": _NOT_SAID["date"], "bandwidth": "ibstat reports the rates of ports and measures nothing"},
    )


def _copy_case(test: CopyTest, versions: dict[str, str], file_date: datetime) -> Case:
    return _case(
        group=COPIES_GROUP,
        name=test.name,
        imported={"tool": "nvbandwidth", "status": test.status},
        hardware=_hardware((), 1, max(len(test.bandwidths), *map(len, test.bandwidths))),
        provenance=Provenance(measured=file_date, commit="", versions=versions, environment={}),
        samples={},
        values={
            f"{COPY_RATE}{source}.{target}": rate
            for source, row in enumerate(test.bandwidths)
            for target, rate in enumerate(row)
            if rate is not None
        },
        not_said={"date": _NOT_SAID["date"]},
    )


def _case(
    group: str, name: str, imported: dict[str, Any], hardware: Hardware, provenance: Provenance,
    samples: dict[str, tuple[float, ...]], values: dict[str, float], not_said: dict[str, str], lab: str = "",
) -> Case:  # fmt: skip
    return Case(
        suite=SUITE_NAME, group=group, name=name, model="", parameters=0, tokens_per_step=0,
        config={"imported": imported}, hardware=hardware, provenance=provenance, samples=samples, values=values,
        lab=lab, not_measured={**not_said, "cores": _NOT_SAID["cores"]},
    )  # fmt: skip


def _hardware(devices: Sequence[str], hosts: int, ranks: int) -> Hardware:
    return Hardware(device=", ".join(devices), nodes=hosts, ranks=ranks, threads=1, cores=1, memory_bytes=0)
