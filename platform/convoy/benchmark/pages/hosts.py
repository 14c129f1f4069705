"""The section of a benchmark's page on what each node used: memory, and bytes on its network adapters."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from convoy.benchmark.analysis.report import BenchReport, CaseFigures, GroupFigures
from convoy.benchmark.results.case import HostUse
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Text, columns

MOST_ROWS = 8
"""Nodes that have a row each for a case; more share one row."""

_HOW = (
    "The memory of ranks is that of tensors at the peak of each rank's step, added up over the node's ranks: on its "
    "GPUs if there are any, else on the host. Host memory in use is that of everything on the node, with all cases of "
    "a gang in memory. Bytes are those of a step, on network interfaces other than the loopback, and on RDMA adapters "
    "such as EFA, which count their own: what GPUs of one node exchange passes through neither. Processes that share a "
    "host are one node."
)


class _Row(NamedTuple):
    case: CaseFigures
    node: str
    hosts: Sequence[HostUse]


def hosts_section(report: BenchReport) -> tuple[Block, ...]:
    """A table for each group whose nodes were measured."""
    metered = [group for group in report.groups if any(case.hosts for case in group.cases)]
    blocks: list[Block] = []
    for group in metered:
        if len(metered) > 1:
            blocks.append(Text(f"{group.name}:"))
        blocks.append(
            columns(
                list(_rows(group)),
                Column("Case", lambda row: row.case.name),
                Column("Node", lambda row: row.node),
                Column("Ranks at work", _range(lambda host: host.ranks, str)),
                Column("Memory of its ranks", _range(lambda host: host.memory_peak_bytes, formatting.size)),
                Column("Offloaded", _range(lambda host: host.offloaded_bytes or None, formatting.size)),
                Column("Host memory in use", _range(lambda host: host.memory_used_bytes, formatting.size)),
                Column("Sent", _range(lambda host: host.sent_bytes, formatting.size)),
                Column("Received", _range(lambda host: host.received_bytes, formatting.size)),
                Column("Sent by RDMA", _range(lambda host: host.rdma_sent_bytes, formatting.size)),
                Column("Received by RDMA", _range(lambda host: host.rdma_received_bytes, formatting.size)),
                drop_empty=True,
            )
        )
    return (Heading("Nodes"), Text(_HOW, quiet=True), *blocks) if blocks else ()


def _rows(group: GroupFigures) -> Iterator[_Row]:
    for case in group.cases:
        if len(case.hosts) > MOST_ROWS:
            yield _Row(case, f"all {len(case.hosts)}", case.hosts)
        else:
            yield from (_Row(case, str(host.host), (host,)) for host in case.hosts)


def _range(of: Callable[[HostUse], float | None], form: formatting.Form) -> Callable[[_Row], str | None]:
    """The figure of the row's node, or its range over several."""

    def cell(row: _Row) -> str | None:
        known = [value for host in row.hosts if (value := of(host)) is not None]
        if not known:
            return None
        low, high = form(min(known)), form(max(known))
        return low if low == high else f"{low} to {high}"

    return cell
