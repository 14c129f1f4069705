"""Names under which cases keep one-sided transfers and transports of other tools, and what they are made from. Pure.

Cases of the group `network-one-sided` are named by NIXL's backend, the operation and the mode, such as
`UCX over tcp, WRITE, window of 16`; those of `network-transports` by the tool and its transport, such as
`iperf3, TCP cubic`; and those of `network-copies` by the host's memory and the direction, such as `pinned, GPU to
host`. `samples` hold `seconds.BYTES` as for collectives (`network.py`): the seconds of one transfer, message or copy,
by block or by run. A transport that is not measured by size has samples of `RATE`.
"""

import statistics
from collections.abc import Iterable, Sequence

from convoy.benchmark.results.network import NetworkResult, seconds_name
from convoy.network.one_sided.times import OneSidedResult, OneSidedTimes
from convoy.network.transports import TransportResult

ONE_SIDED_GROUP = "network-one-sided"
TRANSPORTS_GROUP = "network-transports"
COPIES_GROUP = "network-copies"

RATE = "bytes_per_second"
"""Sample, by run: payload that arrived."""

RETRANSMITS, PACKETS, LOST_PACKETS = "retransmits", "packets", "lost_packets"
"""Values of iperf3, over all runs: segments that TCP sent again, datagrams sent, and datagrams that did not arrive."""

ROUND_TRIP_SECONDS, JITTER_SECONDS = "round_trip_seconds", "jitter_seconds"
"""Values of iperf3: medians over the runs."""

WRONG, CHECKED = "wrong_bytes", "checked_bytes"
"""`NAME.BYTES` in the values of one-sided transfers: bytes where they arrived, over all checks."""

WINDOW, TRANSFERS = "window", "transfers"
"""`NAME.BYTES`: transfers in flight at most, and those of one timed operation."""

POST, NIXL_POST, NIXL_TRANSFER, PYTHON, POLLS, HAND_OVER = (
    "post_seconds", "nixl_post_seconds", "nixl_transfer_seconds", "python_seconds", "polls", "hand_over_seconds",
)  # fmt: skip
"""`NAME.BYTES`: where the time of a transfer goes, see `PythonCosts`. The first five are of blocking transfers, the
last of those through a queue."""


def one_sided_cases(result: OneSidedResult, memory: str = "") -> dict[str, NetworkResult]:
    """The figures of each case by its name, all sizes together; empty if nothing was measured. memory: in which the
    buffers were, where there are several kinds of it."""
    cases: dict[str, NetworkResult] = {}
    for times in result.times:
        name = one_sided_case_name(result.backend, result.transport, times, memory)
        case = cases.setdefault(name, NetworkResult({}, {}, {}))
        case.samples[seconds_name(times.size)] = times.blocks
        case.values.update((f"{figure}.{times.size}", value) for figure, value in _one_sided_values(times))
    return cases


def one_sided_case_name(backend: str, transport: str, times: OneSidedTimes, memory: str = "") -> str:
    """Such as `UCX over tcp, READ, blocking`. transport: as UCX_TLS names it; empty: not restricted."""
    modes = {"blocking": "blocking", "window": "window", "queue": "window by a proxy thread"}
    where = f" over {transport}" if transport else ""
    buffers = f", {memory}" if memory else ""
    return f"{backend}{where}{buffers}, {times.operation}, {modes[times.mode]}"


def _one_sided_values(times: OneSidedTimes) -> Iterable[tuple[str, float]]:
    yield from ((WRONG, times.wrong_bytes), (CHECKED, times.checked_bytes))
    yield from ((WINDOW, times.window), (TRANSFERS, times.transfers))
    costs = times.costs
    if times.mode == "blocking":
        yield from ((POST, costs.post), (NIXL_POST, costs.nixl_post), (NIXL_TRANSFER, costs.transfer))
        yield from ((PYTHON, costs.python), (POLLS, costs.polls))
    elif times.mode == "queue":
        yield HAND_OVER, costs.hand_over


def transport_case_name(result: TransportResult) -> str:
    """Such as `fi_pingpong, udp;ofi_rxd`."""
    return f"{result.tool}, {result.name}"


def transport_figures(result: TransportResult) -> NetworkResult:
    """Of one transport. Sizes that not every run reached are left out, and said to be."""
    readings = result.readings
    if not readings:
        return NetworkResult({}, {}, {transport_case_name(result): result.not_measured})
    samples = {
        seconds_name(size): tuple(reading.seconds_by_size[size] for reading in readings)
        for size in sorted(set.intersection(*(set(reading.seconds_by_size) for reading in readings)))
    }
    rates = [reading.bytes_per_second for reading in readings if reading.bytes_per_second is not None]
    if rates:
        samples[RATE] = tuple(rates)
    counts = _columns([reading.counts for reading in readings])
    times = _columns([reading.times for reading in readings])
    values = {name: sum(column) for name, column in counts.items()}
    values |= {name: statistics.median(column) for name, column in times.items()}
    stopped = next((reading.stopped for reading in readings if reading.stopped), "")
    return NetworkResult(samples, values, {"larger sizes": stopped} if stopped else {})


def _columns(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [row[name] for row in rows if name in row] for name in rows[0]}
