"""The page of `convoy net import`: what files of other tools say, and what in them cannot be true."""

from collections import Counter
from collections.abc import Sequence

from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.imported import COPY_RATE, PORT_GBPS
from convoy.benchmark.results.transports import RATE
from convoy.display import formatting
from convoy.display.page import Block, Callout, Column, Heading, Page, Table, Text, columns
from convoy.network.results.nccl_checks import run_bound
from convoy.network.results.nccl_run import NcclRow, NcclRun, Timing
from convoy.network.results.read import NetworkResult, PairRun


class ImportedRow(FrozenResult):
    """One size of a file, out of place or in place."""

    where: str
    """Line of the file, or index in JSON."""
    operation: str
    """Or the tool, of two ends."""
    size: int
    in_place: bool
    dtype: str = ""
    cycle: int = 1
    """Number of the repetition of all sizes (`-N`) that it is of; of Convoy's own results, of the block."""
    seconds: float
    algbw: float
    """Bytes per second."""
    busbw: float | None = None
    """Bytes per second; None: between two ends there is no other than algbw."""
    bound_share: float | None = None
    """busbw over its bound; None: that is not known, or the row is above it."""
    wrong: float | None = None
    """Wrong elements; None: not checked."""


class ImportedContradiction(FrozenResult):
    """A row that cannot be true."""

    path: str
    where: str
    text: str


class ImportedFile(FrozenResult):
    """What one file holds."""

    path: str
    tool: str
    summary: str
    """Operations, ranks and hosts, in one line."""
    rows: tuple[ImportedRow, ...]
    contradictions: tuple[ImportedContradiction, ...]
    cases: tuple[Case, ...]

    @staticmethod
    def of(path: str, result: NetworkResult, cases: Sequence[Case], link_gbps: float | None) -> "ImportedFile":
        """link_gbps: rate of a host's network per direction, in 10^9 bits per second; None: no share is shown."""
        bytes_per_second = None if link_gbps is None else link_gbps * 1e9 / 8
        rows = [row for run in result.runs for row in _run_rows(run, run_bound(run, bytes_per_second))]
        rows += [row for pair in result.pairs for row in _pair_rows(pair)]
        lines = [_run_summary(run) for run in result.runs] + [_case_summary(case) for case in cases if not result.runs]
        return ImportedFile(
            path=path,
            tool=result.tool,
            summary="; ".join(lines),
            rows=tuple(rows),
            contradictions=tuple(
                ImportedContradiction(path=path, where=each.where, text=each.text) for each in result.contradictions
            ),
            cases=tuple(cases),
        )


class Imports(FrozenResult):
    """All files of a command."""

    files: tuple[ImportedFile, ...]


def _run_rows(run: NcclRun, bound: float | None) -> list[ImportedRow]:
    """Rows in the file's order; a size that comes again is of the next cycle."""
    rows: list[ImportedRow] = []
    seen: Counter[tuple[object, ...]] = Counter()
    for row in run.rows:
        key = (row.size, row.dtype, row.redop, row.root)
        seen[key] += 1
        timings = [timing for timing in (row.out_of_place, row.in_place) if timing]
        rows += [_run_row(run, row, timing, bound, seen[key]) for timing in timings]
    return rows


def _run_row(run: NcclRun, row: NcclRow, timing: Timing, bound: float | None, cycle: int) -> ImportedRow:
    busbw = 1e9 * timing.busbw.value
    return ImportedRow(
        where=row.where, operation=run.operation, size=row.size, in_place=timing is row.in_place, dtype=row.dtype,
        cycle=cycle, seconds=timing.microseconds.value / 1e6, algbw=1e9 * timing.algbw.value, busbw=busbw,
        bound_share=busbw / bound if bound is not None and busbw <= bound else None, wrong=timing.wrong,
    )  # fmt: skip


def _pair_rows(pair: PairRun) -> list[ImportedRow]:
    return [
        ImportedRow(
            where=row.where, operation=pair.tool, size=row.size, in_place=False, seconds=row.seconds,
            algbw=row.size / row.seconds,
        )
        for row in pair.rows
        if row.seconds
    ]  # fmt: skip


def _run_summary(run: NcclRun) -> str:
    ranks = formatting.plural(run.ranks, "rank") + (" (inferred from the rows)" if run.ranks_inferred else "")
    hosts = formatting.plural(run.hosts, "host") if run.hosts else "hosts not named"
    version = f", NCCL {run.nccl_version}" if run.nccl_version else ""
    devices = f", on {', '.join(run.devices)}" if run.devices else ""
    return f"{run.operation}, {ranks}, {hosts}{version}{devices}"


def _case_summary(case: Case) -> str:
    rates = [formatting.bandwidth(rate) for rate in case.samples.get(RATE, ())]
    states = case.config["imported"].get("states", {})
    for name, gbps in case.values.items():
        if name.startswith(PORT_GBPS):
            port = name.removeprefix(PORT_GBPS)
            rates.append(f"{port} {gbps:g} Gbit/s, {states.get(port) or 'state not named'}")
    if copies := [value for name, value in case.values.items() if name.startswith(COPY_RATE)]:
        least, most = formatting.bandwidth(min(copies)), formatting.bandwidth(max(copies))
        rates.append(least if len(copies) == 1 else f"{least} to {most} over {len(copies)} pairs")
    return ": ".join([case.name, *(["; ".join(rates)] if rates else [])])


def imports_page(imports: Imports) -> Page:
    """A section for each file."""
    blocks: list[Block] = []
    for file in imports.files:
        blocks += [Heading(file.path), Text(f"{file.tool}: {file.summary}.")]
        if file.rows:
            blocks.append(_rows_table(file.rows))
        if file.contradictions:
            lines = [f"{each.where}: {each.text}" for each in file.contradictions]
            blocks.append(Callout(f"{formatting.plural(len(lines), 'figure')} cannot be true", "\n".join(lines)))
    return Page("Imported results", tuple(blocks))


def _rows_table(rows: Sequence[ImportedRow]) -> Table:
    has = {
        "cycles": any(row.cycle > 1 for row in rows),
        "in place": any(row.in_place for row in rows),
        "busbw": any(row.busbw is not None for row in rows),
        "of bound": any(row.bound_share is not None for row in rows),
    }
    table: list[Column[ImportedRow]] = [
        *([Column("Cycle", lambda row: row.cycle, right=True)] if has["cycles"] else []),
        Column("Size", lambda row: row.size, formatting.buffer_size, right=True),
        *([Column("Buffers", lambda row: "in place" if row.in_place else "out of place")] if has["in place"] else []),
        Column("Time", lambda row: row.seconds, formatting.duration, right=True),
        Column("algbw", lambda row: row.algbw, formatting.bandwidth, right=True),
    ]
    if has["busbw"]:
        table.append(Column("busbw", lambda row: row.busbw, formatting.bandwidth, right=True))
    if has["of bound"]:
        table.append(Column("Of bound", lambda row: row.bound_share, formatting.percent, right=True))
    if has["busbw"]:
        table.append(Column("Wrong", lambda row: row.wrong, lambda n: f"{n:.0f}", missing="not checked", right=True))
    return columns(rows, *table)
