"""Reader of the output of libfabric's fi_pingpong: latency and bandwidth of round trips by message size. Pure."""

import re
from dataclasses import dataclass, field

HEADER = ("bytes", "#sent", "#ack", "total", "time", "MB/sec", "usec/xfer", "Mxfers/sec")

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}

_SIZE = re.compile(r"(\d+)(?:\.(\d))?([kmg]?)")


@dataclass(frozen=True)
class FiPingpongRow:
    """Result at one message size."""

    size: int
    """Message size in bytes. It is printed with one decimal at most, which is exact for the sizes of `-S all`."""
    half_round_trip_seconds: float
    """`usec/xfer`: half of the round-trip time."""
    bytes_per_second: float
    """`MB/sec`, of 10^6 bytes: the message size over half of the round-trip time."""
    are_all_answered: bool
    """Whether `#ack` is `=`: as many messages came back as were sent."""
    line: int = field(default=0, compare=False)
    """Number of the line, from 1."""


def parse_fi_pingpong(text: str) -> list[FiPingpongRow]:
    """All rows of either end's output, in its order, without lines of other kinds. Raises ValueError if it has none."""
    lines = [line.split() for line in text.splitlines()]
    headers = [at for at, words in enumerate(lines) if tuple(words) == HEADER]
    if not headers:
        raise ValueError(f"not an output of fi_pingpong: it has no line `{' '.join(HEADER)}`")
    rows = [
        _row(words, number)
        for number, words in enumerate(lines, 1)
        if number > headers[0] + 1 and len(words) == len(HEADER) and _is_row(words)
    ]
    if not rows:
        raise ValueError("an output of fi_pingpong without a row")
    return rows


def _is_row(words: list[str]) -> bool:
    return _SIZE.fullmatch(words[0]) is not None and words[2][:1] in ("=", "-", "+") and words[4].endswith("s")


def _row(words: list[str], number: int) -> FiPingpongRow:
    size = _SIZE.fullmatch(words[0])
    assert size is not None
    unit = _UNITS[size[3]]
    try:
        return FiPingpongRow(
            size=int(size[1]) * unit + int(size[2] or 0) * unit // 10,
            half_round_trip_seconds=1e-6 * float(words[6]),
            bytes_per_second=1e6 * float(words[5]),
            are_all_answered=words[2].startswith("="),
            line=number,
        )
    except ValueError:
        raise ValueError(f"not a row of fi_pingpong: {' '.join(words)}") from None
