"""Reader of the text output of nccl-tests, all versions since NCCL 2.4, with or without launchers' line prefixes. Pure.

The columns of a row are `size count type [redop] [root]`, then for out of place and in place `time algbw busbw` and
`#wrong` (`error` before 2.13), and with `-I 1` four figures of single iterations. Sources: nccl-tests, src/util.cu and
src/common.cu, and before 2.13 the functions `*PrintHeader` and `*PrintLine` of each program.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

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

_ROW = re.compile(rf"(?<![\w.])(\d+)\s+(\d+)\s+({'|'.join(TYPE_BYTES)})(?=\s)(.*)$")
_HEADER = re.compile(r"#\s+size\s+count\s+type\b(.*)$")
_OLD_HEADER = re.compile(r"#\s+bytes\s+N\s+type\b")
_BEGIN = re.compile(r"nThread \d+ nGpus \d+ minBytes")
_PROGRAM = re.compile(rf"\b({'|'.join(PROGRAMS)})(?:_mpi)?\b")
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)$"
)
_TESTS_VERSION = re.compile(r"nccl-tests version (\S+) .*nccl-library=(\d+)")
_NCCL_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_ITERATIONS = re.compile(r"(?<!warmup )\biters: (\d+)")
_CLOCK = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<\w+>:)?")
"""The tag that mpirun puts before each piece of output, which is not always a line."""

_REDOP = re.compile(r"sum|prod|max|min|avg|mulsum|none|all")
_NUMBER = re.compile(r"(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$")


@dataclass
class _Part:
    """Lines of one run, as far as they are read."""

    operation: NcclOperation | None = None
    ranks: dict[str, set[int]] = field(default_factory=dict)
    """Ranks by group."""
    hosts: dict[str, set[str]] = field(default_factory=dict)
    """Hosts by group."""
    devices: dict[str, None] = field(default_factory=dict)
    rows: list[NcclRow] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    nccl_version: str = ""
    tests_version: str = ""
    iterations: int | None = None
    is_cut: bool = False
    """The list of ranks was longer than the program's buffer."""


def is_nccl_text(text: str) -> bool:
    """Whether it has a header or a row of nccl-tests."""
    return any(
        _HEADER.search(line) or _OLD_HEADER.search(line) or _read_row(line, "", ()) for line in text.splitlines()
    )


def parse_nccl_text(text: str, operation: NcclOperation | None = None, ranks: int | None = None) -> list[NcclRun]:
    """All runs in a text, in order. operation, ranks: used if the text does not name them, as in an excerpt.

    Raises ValueError for a text without rows, of an operation that is not read, or whose operation or ranks are neither
    named nor given, nor follow from the rows.
    """
    parts = [part for part in _parts(text.splitlines()) if part.rows]
    if not parts:
        raise ValueError("no row of nccl-tests: must have lines `size count type … time algbw busbw …`")
    return [_run(part, operation, ranks) for part in parts]


def _parts(lines: Sequence[str]) -> list[_Part]:
    """The text by runs: each has a line of its settings, or, in an excerpt, a header of its columns."""
    parts = [_Part()]
    program: NcclOperation | None = None
    tests_version = nccl_version = ""
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip()
        if named := _PROGRAM.search(line):
            program = PROGRAMS[named[1]]
        if "Collective test concluded" in line:
            parts[-1].operation, program = parts[-1].operation or program, None
        if found := _TESTS_VERSION.search(line):
            tests_version, nccl_version = found[1], version_text(int(found[2]))
        elif found := _NCCL_VERSION.search(line):
            nccl_version = found[1]
        begins = _BEGIN.search(line)
        if parts[-1].rows and (begins or _HEADER.search(line)):
            parts.append(_Part())
        part = parts[-1]
        if begins:
            iterations = _ITERATIONS.search(line)
            part.iterations = int(iterations[1]) if iterations else None
        part.tests_version, part.nccl_version = tests_version, nccl_version or part.nccl_version
        _read_line(part, line, number)
        if part.rows and part.operation is None:
            part.operation, program = program, None
    return parts


def _read_line(part: _Part, line: str, number: int) -> None:
    if _OLD_HEADER.search(line):
        raise ValueError(f"line {number}: columns `bytes N type` of a version before NCCL 2.4, which are not read")
    if header := _HEADER.search(line):
        part.columns = tuple(header[1].split())
    elif rank := _RANK.search(line):
        part.ranks.setdefault(rank[2] or "0", set()).add(int(rank[1]))
        part.is_cut |= line.endswith("...")
        part.hosts.setdefault(rank[2] or "0", set()).add(rank[3])
        part.devices[rank[4].strip()] = None
    elif row := _read_row(line, f"line {number}", part.columns):
        part.rows.append(row)


def _read_row(line: str, where: str, columns: tuple[str, ...]) -> NcclRow | None:
    """The row in a line; None: the line is no row. where: the row's place in the file. columns: names in the header."""
    match = _ROW.search(_CLOCK.sub("", line))
    if match is None:
        return None
    words = _TAG.sub(" ", match[4]).split()
    redop = words.pop(0) if words and _REDOP.fullmatch(words[0]) else ""
    width = 8 if "i_min" in columns else 4
    root = int(words.pop(0)) if len(words) % 4 == 1 and re.fullmatch(r"-?\d+", words[0]) else None
    if len(words) not in (width, 2 * width):
        return None
    has_error = "error" in columns or (not columns and all("e" in words[i] for i in range(3, len(words), 4)))
    try:
        timings = [_timing(words[i : i + width], has_error) for i in range(0, len(words), width)]
    except ValueError:
        return None
    # A replay of a trace leaves out-of-place columns blank.
    if len(timings) == 1 and columns.count("algbw") == 2:
        timings.insert(0, None)
    return NcclRow.written(
        where, int(match[1]), int(match[2]), match[3], redop=redop, root=root,
        out_of_place=timings[0], in_place=timings[1] if len(timings) > 1 else None,
    )  # fmt: skip


def _timing(words: Sequence[str], has_error: bool) -> Timing | None:
    checked = None if words[3] == "N/A" else float(words[3])
    iterations = None
    if len(words) == 8:
        minimum, maximum, p99, cv = (parse_printed(word).value for word in words[4:])
        iterations = IterationTimes(minimum=minimum, maximum=maximum, p99=p99, cv_percent=cv)
    return Timing(
        microseconds=parse_printed(words[0]),
        algbw=parse_printed(words[1]),
        busbw=parse_printed(words[2]),
        wrong=None if has_error else checked,
        error=checked if has_error else None,
        iterations=iterations,
    )


def parse_printed(word: str) -> Printed:
    """A number and its rounding. Raises ValueError for a text that is no number of 0 or more."""
    match = _NUMBER.match(word)
    if match is None:
        raise ValueError(f"{word}: must be a number")
    return Printed(float(word), 0.5 * 10.0 ** (int(match[3] or 0) - len(match[2] or "")))


def _run(part: _Part, operation: NcclOperation | None, ranks: int | None) -> NcclRun:
    operation = part.operation or operation or _infer_operation(part)
    named = len(next(iter(part.ranks.values()))) if part.ranks and not part.is_cut else None
    count, inferred = find_ranks(operation, part.rows, named=named, given=ranks)
    hosts = len(next(iter(part.hosts.values()))) if named else None
    return NcclRun(
        operation=operation,
        ranks=count,
        hosts=hosts,
        rows=tuple(part.rows),
        devices=tuple(part.devices),
        counts_cpu_time="cputime" in part.columns,
        ranks_inferred=inferred,
        nccl_version=part.nccl_version,
        tests_version=part.tests_version,
        iterations=part.iterations,
    )


def _infer_operation(part: _Part) -> NcclOperation:
    """The operation of rows whose text does not name it. Raises ValueError unless their columns fit a single one."""
    rows = [row for row in part.rows if row.count]
    reduced, rooted = {bool(row.redop) for row in rows}, {row.root is not None for row in rows}
    whole = {row.size == row.count * TYPE_BYTES[row.dtype] for row in rows}
    # Programs of point-to-point exchanges print `sum` too, and do not check what they did in place.
    both = [(row.out_of_place.wrong, row.in_place.wrong) for row in rows if row.out_of_place and row.in_place]
    if any(out_of_place is not None and in_place is None for out_of_place, in_place in both):
        reduced = set()
    kind = (reduced, rooted, whole)
    if kind == ({True}, {True}, {True}):
        return "reduce"
    if kind == ({True}, {False}, {True}):
        return "all_reduce"
    if kind == ({True}, {False}, {False}):
        return "reduce_scatter"
    if kind == ({False}, {True}, {True}):
        return "broadcast"
    raise ValueError("the operation is not named, and does not follow from the columns: give --op")
