"""Reader of the output of perftest's ib_write_bw, ib_read_bw and ib_send_bw: bandwidth by message size. Pure."""

import re
from dataclasses import dataclass, field

_HEADER = re.compile(r"#bytes\s+#iterations\s+BW peak\[(\S+)\]\s+BW average\[(\S+)\]\s+MsgRate\[Mpps\]")

_BYTES_PER_SECOND = {"MB/sec": 2**20, "MiB/sec": 2**20, "Gb/sec": 125_000_000}
"""perftest's MB is 2^20 bytes; newer versions write MiB for the same figure. Gb is 10^9 bits."""


@dataclass(frozen=True)
class PerftestRow:
    """Result at one message size in bytes."""

    size: int
    iterations: int
    peak_bytes_per_second: float | None
    """Peak bandwidth; None: not measured, as in a run with a fixed duration."""
    bytes_per_second: float
    """Average bandwidth."""
    messages_per_second: float
    line: int = field(default=0, compare=False)
    """Number of the line, from 1."""


def parse_ib_write_bw(text: str) -> list[PerftestRow]:
    """All rows, in their order, lines of other kinds left out. Raises ValueError if there is none."""
    unit, rows = None, []
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.search(line)
        if header:
            if header[2] not in _BYTES_PER_SECOND:
                raise ValueError(f"bandwidth in {header[2]}: must be in {', '.join(_BYTES_PER_SECOND)}")
            unit = _BYTES_PER_SECOND[header[2]]
        elif unit is not None and (row := _row(line.split(), unit, number)):
            rows.append(row)
    if unit is None:
        raise ValueError("not an output of ib_write_bw: it has no line with `BW average`")
    if not rows:
        raise ValueError("an output of ib_write_bw without a row")
    return rows


def _row(words: list[str], unit: int, number: int) -> PerftestRow | None:
    try:
        size, iterations = int(words[0]), int(words[1])
        peak, average, messages = (float(word) for word in words[2:5])
    except (IndexError, ValueError):
        return None
    return PerftestRow(size, iterations, peak * unit or None, average * unit, 1e6 * messages, number)
