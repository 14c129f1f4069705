"""The reader of any tool's result, which it recognises by content, and checks for contradictions. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from convoy.network.results.fi_pingpong import HEADER, parse_fi_pingpong
from convoy.network.results.ib_write_bw import parse_ib_write_bw
from convoy.network.results.ibstat import IbPort, contradiction_of, is_ibstat, parse_ibstat
from convoy.network.results.iperf3 import Iperf3Report, parse_iperf3
from convoy.network.results.nccl_checks import Contradiction, contradictions
from convoy.network.results.nccl_json import is_nccl_json, parse_nccl_json
from convoy.network.results.nccl_run import NcclOperation, NcclRun
from convoy.network.results.nccl_text import is_nccl_text, parse_nccl_text
from convoy.network.results.nvbandwidth import CopyTest, is_nvbandwidth, parse_nvbandwidth
from convoy.network.results.nvbandwidth import contradiction_of as copy_contradiction

Tool = Literal["nccl-tests", "perftest", "ibstat", "fi_pingpong", "iperf3", "nvbandwidth"]

_PERFTEST = re.compile(r"#bytes\s+#iterations\s+BW peak\[")
_VERBS = {"Send": "ib_send_bw", "RDMA_Write": "ib_write_bw", "RDMA_Read": "ib_read_bw"}
_TITLE = re.compile(r"\b(Send|RDMA_Write|RDMA_Read) (Bidirectional )?(?:Post List )?BW Test")
_CONNECTION = re.compile(r"Connection type\s*:\s*(\S+)")
_LINK = re.compile(r"Link type\s*:\s*(\S+)")

_PERFTEST_HALF = (0.005, 0.0000005)
"""Half of the last printed digit of a bandwidth in MB/s, and of a message rate in millions."""

_PINGPONG_HALF = 0.005
"""Half of the last printed digit, of MB/s and of microseconds."""


@dataclass(frozen=True)
class PairRow:
    """Time of one message size between two ends."""

    where: str
    size: int
    seconds: float
    """Time of one message: half of a round trip, or the message size over the bandwidth of many in flight."""


@dataclass(frozen=True)
class PairRun:
    """A tool's measurement between two ends."""

    tool: str
    transport: str
    """The transport, as far as the output names it."""
    rows: tuple[PairRow, ...] = ()
    """Empty: the tool sent one stream of bytes."""
    stream: Iperf3Report | None = None


@dataclass(frozen=True)
class NetworkResult:
    """The content of one file."""

    tool: Tool
    runs: tuple[NcclRun, ...] = ()
    pairs: tuple[PairRun, ...] = ()
    ports: tuple[IbPort, ...] = ()
    copies: tuple[CopyTest, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    """Software versions by name, unless `runs` have them."""
    contradictions: tuple[Contradiction, ...] = ()
    """Contradictions in the order of the file."""


def read_result(
    text: str,
    operation: NcclOperation | None = None,
    ranks: int | None = None,
    link_bytes_per_second: float | None = None,
) -> NetworkResult:
    """Read a file of whichever tool. operation, ranks: of an excerpt of nccl-tests that does not name them.
    link_bytes_per_second: what each host's network carries in each direction, to check bandwidths against.

    Raises ValueError for a text of none of the tools, and for one that cannot be read.
    """
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ValueError(f"not complete JSON: {error}") from None
        if is_nvbandwidth(document):
            tests, versions = parse_nvbandwidth(document)
            wrong = [Contradiction(each.where, copy_contradiction(each)) for each in tests if copy_contradiction(each)]
            return NetworkResult("nvbandwidth", copies=tuple(tests), versions=versions, contradictions=tuple(wrong))
        if not is_nccl_json(document):
            return _stream(parse_iperf3(text), document["end"])
        return _collectives((parse_nccl_json(document, operation, ranks),), link_bytes_per_second)
    if is_ibstat(text):
        ports = parse_ibstat(text)
        wrong = [Contradiction(port.where, contradiction_of(port)) for port in ports if contradiction_of(port)]
        return NetworkResult("ibstat", ports=tuple(ports), contradictions=tuple(wrong))
    if _PERFTEST.search(text):
        return _perftest(text)
    if any(tuple(line.split()) == HEADER for line in text.splitlines()):
        return _pingpong(text)
    if is_nccl_text(text):
        return _collectives(tuple(parse_nccl_text(text, operation, ranks)), link_bytes_per_second)
    tools = "nccl-tests, ib_write_bw, ibstat, fi_pingpong, iperf3 --json or nvbandwidth --json"
    raise ValueError(f"not a result that is known: must be the output of {tools}")


def _collectives(runs: tuple[NcclRun, ...], link_bytes_per_second: float | None) -> NetworkResult:
    wrong = [each for run in runs for each in contradictions(run, link_bytes_per_second)]
    return NetworkResult("nccl-tests", runs=runs, contradictions=tuple(wrong))


def _perftest(text: str) -> NetworkResult:
    title, connection, link = _TITLE.search(text), _CONNECTION.search(text), _LINK.search(text)
    tool = _VERBS[title[1]] if title else "ib_write_bw"
    transport = " ".join(found[1] for found in (connection, link) if found)
    if title and title[2]:
        transport = f"{transport} both ways".strip()
    rows, wrong = [], []
    bandwidth_half, rate_half = _PERFTEST_HALF
    unit = 125e6 if "BW average[Gb/sec]" in text else 2**20
    for row in parse_ib_write_bw(text):
        where = f"line {row.line}"
        if row.bytes_per_second <= 0:
            continue
        rows.append(PairRow(where, row.size, row.size / row.bytes_per_second))
        moved, half = row.messages_per_second * row.size, bandwidth_half * unit + 1e6 * rate_half * row.size
        if abs(moved - row.bytes_per_second) > half * 1.001:
            at_rate = f"{row.messages_per_second:g} messages a second of {row.size} bytes are {moved / 1e6:.4g} MB/s"
            wrong.append(Contradiction(where, f"BW average of {row.bytes_per_second / 1e6:.4g} MB/s: {at_rate}"))
        if row.peak_bytes_per_second is not None and row.peak_bytes_per_second < row.bytes_per_second - half:
            wrong.append(Contradiction(where, f"{row.size} bytes: BW peak is below BW average"))
    return NetworkResult("perftest", pairs=(PairRun(tool, transport, tuple(rows)),), contradictions=tuple(wrong))


def _pingpong(text: str) -> NetworkResult:
    rows, wrong = [], []
    for row in parse_fi_pingpong(text):
        where, half = f"line {row.line}", _PINGPONG_HALF
        micro = 1e6 * row.half_round_trip_seconds
        rows.append(PairRow(where, row.size, row.half_round_trip_seconds))
        low = row.size / (micro + half) - half
        high = row.size / (micro - half) + half if micro > half else float("inf")
        if not low * (1 - 1e-6) <= row.bytes_per_second / 1e6 <= high * (1 + 1e-6):  # the program divides floats
            rate = f"{row.bytes_per_second / 1e6:g} MB/s"
            wrong.append(
                Contradiction(where, f"{row.size} bytes: {rate}, but {micro:g} µs allow {low:.4g} to {high:.4g}")
            )
        if not row.are_all_answered:
            wrong.append(Contradiction(where, f"{row.size} bytes: not as many messages came back as were sent"))
    return NetworkResult("fi_pingpong", pairs=(PairRun("fi_pingpong", "", tuple(rows)),), contradictions=tuple(wrong))


def _stream(report: Iperf3Report, end: Mapping[str, Any]) -> NetworkResult:
    wrong = []
    for name in ("sum", "sum_sent", "sum_received"):
        figures = end.get(name) or {}
        moved, seconds, rate = (float(figures.get(key, 0)) for key in ("bytes", "seconds", "bits_per_second"))
        if moved and seconds and abs(8 * moved / seconds - rate) > 1e-3 * rate:
            right = f"{moved:.0f} bytes in {seconds:g} s are {8e-6 * moved / seconds:.4g} Mbit/s"
            wrong.append(Contradiction(f"end.{name}", f"{1e-6 * rate:.4g} Mbit/s: {right}"))
    if report.packets is not None and report.lost_packets is not None and report.lost_packets > report.packets:
        wrong.append(Contradiction("end.sum", f"{report.lost_packets} datagrams lost of {report.packets}"))
    pair = PairRun("iperf3", " ".join([report.protocol, report.congestion]).strip(), stream=report)
    return NetworkResult("iperf3", pairs=(pair,), contradictions=tuple(wrong))
