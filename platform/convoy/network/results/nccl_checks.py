"""Checks of nccl-tests' rows: bandwidths are recomputed from times, to the printed digits. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convoy.network.bandwidth import ALL_SEND_ALL, bus_factor, busbw_bound
from convoy.network.results.nccl_run import TYPE_BYTES, NcclOperation, NcclRow, NcclRun, Printed, Timing

MOST_RANKS = 4096
"""Largest number of ranks that is inferred."""

_ROUNDING = 1e-9
"""Relative error of the arithmetic itself, of ours and of the program's."""


class Contradiction(NamedTuple):
    """A row that cannot be true."""

    where: str
    """Line of the file, or index of a JSON list."""
    text: str
    """Description of the contradiction."""


def contradictions(run: NcclRun, link_bytes_per_second: float | None = None) -> list[Contradiction]:
    """Rows that cannot be true, in their order. link_bytes_per_second: what a host's network carries in each direction,
    against which bandwidths are checked if the file names at least two hosts."""
    legacy = is_legacy(run)
    found = []
    for row in run.rows:
        texts = [*_size_contradictions(run, row)]
        for place, timing in (("out of place", row.out_of_place), ("in place", row.in_place)):
            if timing is not None:
                texts += [f"{place}: {text}" for text in _timing_contradictions(run, row, timing, legacy)]
                texts += [f"{place}: {text}" for text in _beyond_links(run, timing, link_bytes_per_second)]
        found += [Contradiction(row.where, f"{row.size} bytes, {text}") for text in texts]
    return found


def is_legacy(run: NcclRun) -> bool:
    """Whether bandwidths are those of all-gathers and reduce-scatters before June 2020: both (n - 1)/n of the size over
    the time."""
    if run.operation not in ("all_gather", "reduce_scatter"):
        return False
    timings = [(row, timing) for row in run.rows for timing in row.timings]
    counts = [sum(not any(_timing_contradictions(run, *each, old)) for each in timings) for old in (False, True)]
    return counts[1] > counts[0]


def _size_contradictions(run: NcclRun, row: NcclRow) -> Iterator[str]:
    """The column `count` is of one rank in operations whose buffer is that of all ranks."""
    ranks = run.ranks if run.operation in ALL_SEND_ALL else 1
    of_count = row.count * TYPE_BYTES[row.dtype] * ranks
    if of_count != row.size:
        each = f" of {ranks} ranks" if ranks > 1 else ""
        yield f"count: {row.count} elements of {row.dtype}{each} are {of_count} bytes"


def _timing_contradictions(run: NcclRun, row: NcclRow, timing: Timing, legacy: bool) -> Iterator[str]:
    factor = bus_factor(run.operation, run.ranks)
    scale = factor if legacy else 1.0
    low, high = _bandwidth_range(row.size, timing.microseconds)
    if not run.counts_cpu_time:
        if not _overlap(timing.algbw, low * scale, high * scale):
            yield f"algbw {timing.algbw.value:g} GB/s: {_allowed(low * scale, high * scale, timing)}"
        if not _overlap(timing.busbw, low * factor, high * factor):
            yield f"busbw {timing.busbw.value:g} GB/s: {_allowed(low * factor, high * factor, timing)}"
    ratio = 1.0 if legacy else factor
    if not _overlap(timing.busbw, timing.algbw.low * ratio, timing.algbw.high * ratio):
        yield (
            f"busbw {timing.busbw.value:g} GB/s: must be {ratio:.4g} times the algbw of {timing.algbw.value:g} GB/s "
            f"for {run.operation} of {run.ranks} ranks"
        )


def _allowed(low: float, high: float, timing: Timing) -> str:
    time = f"the time of {timing.microseconds.value:g} µs"
    return f"{time} allows {low:.6g} to {high:.6g} GB/s"


def _bandwidth_range(size: int, microseconds: Printed) -> tuple[float, float]:
    """GB/s of a size over the times that are printed so."""
    low = size / microseconds.high / 1e3 if microseconds.high else 0.0
    return low, size / microseconds.low / 1e3 if microseconds.low else float("inf")


def _overlap(printed: Printed, low: float, high: float) -> bool:
    return printed.high >= low * (1 - _ROUNDING) and printed.low <= high * (1 + _ROUNDING)


def _beyond_links(run: NcclRun, timing: Timing, link_bytes_per_second: float | None) -> Iterator[str]:
    bound = run_bound(run, link_bytes_per_second)
    if bound is not None and timing.busbw.low * 1e9 > bound:
        yield f"busbw {timing.busbw.value:g} GB/s: links of {run.hosts} hosts allow at most {bound / 1e9:.4g} GB/s"


def run_bound(run: NcclRun, link_bytes_per_second: float | None) -> float | None:
    """Most bus bandwidth, bytes per second, that links between hosts allow; None: it is not known, or there is one
    host."""
    if link_bytes_per_second is None or run.hosts is None or run.hosts < 2 or run.ranks < run.hosts:
        return None
    return busbw_bound(run.operation, run.hosts, run.ranks / run.hosts, link_bytes_per_second)


def find_ranks(
    operation: NcclOperation, rows: Sequence[NcclRow], *, named: int | None, given: int | None
) -> tuple[int, bool]:
    """Ranks of one communicator, and whether they were inferred from the rows.

    named: by the file. given: by the user, for a file that does not name them. Raises ValueError as `infer_ranks`.
    """
    known = named or given
    return (infer_ranks(operation, rows), True) if known is None else (known, False)


def infer_ranks(operation: NcclOperation, rows: Sequence[NcclRow]) -> int:
    """Ranks that a file does not name, from its rows: from count and size where the count is of one rank, else from
    the ratio of its bandwidths. Raises ValueError where no number of ranks, or more than one, explains as many rows."""
    if operation in ALL_SEND_ALL:
        ranks = {row.size // (row.count * TYPE_BYTES[row.dtype]) for row in rows if row.count}
        if len(ranks) == 1 and (found := ranks.pop()) > 1:
            return found
    timings = [timing for row in rows for timing in row.timings if timing.algbw.low > 0]
    votes = {
        n: sum(_has_ratio(timing, bus_factor(operation, n)) for timing in timings) for n in range(2, MOST_RANKS + 1)
    }
    most = max(votes.values())
    best = [n for n, count in votes.items() if count == most]
    if not timings or len(best) > 1:
        between = f" (between {best[0]} and {best[-1]})" if 1 < len(best) < MOST_RANKS - 1 else ""
        raise ValueError(f"the ranks are not named, and the rows allow several numbers{between}: give --ranks")
    return best[0]


def _has_ratio(timing: Timing, ratio: float) -> bool:
    return _overlap(timing.busbw, timing.algbw.low * ratio, timing.algbw.high * ratio)
