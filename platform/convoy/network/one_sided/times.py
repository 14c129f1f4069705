"""Times of one-sided transfers, and the arithmetic of windows of transfers in flight. Pure.

A transfer that is waited for costs a round trip each time. With a window, the next one is posted while earlier ones are
on their way, so that the link is never idle once the window holds a round trip's bytes.
"""

from dataclasses import dataclass
from typing import Literal

TransferOperation = Literal["WRITE", "READ"]
"""WRITE puts bytes into the target's memory, READ fetches them from there; NIXL's names."""

Mode = Literal["blocking", "window", "queue"]
"""blocking: each transfer is waited for. window: several are in flight. queue: a window as well, but the agent belongs
to a proxy thread, which takes the transfers from a queue."""

MODES: tuple[Mode, ...] = ("blocking", "window", "queue")

OPERATION_BYTES = 8 * 2**20
"""Largest number of bytes that the transfers of an operation move, unless two transfers exceed it."""


@dataclass(frozen=True)
class PythonCosts:
    """The parts of the time of a blocking transfer in seconds, as means over transfers that were timed separately."""

    post: float
    """Time of the call that posts it."""
    nixl_post: float
    """The part of `post` that NIXL reports as its own."""
    transfer: float
    """Time from the beginning of the post until the completion, as NIXL reports it."""
    total: float
    """Time from the beginning of the post until Python saw the completion."""
    polls: float
    """Number of calls that asked for its state."""
    hand_over: float
    """Time from its submission until the proxy thread took it from the queue, in mode queue."""

    @property
    def python(self) -> float:
        """Seconds of a blocking transfer that Python adds to what NIXL reports."""
        return max(0.0, self.total - self.transfer)


@dataclass(frozen=True)
class OneSidedTimes:
    """Transfers of one size in one mode, between two ranks; the same on all ranks."""

    operation: TransferOperation
    mode: Mode
    size: int
    """Transfer size in bytes."""
    window: int
    """Largest number of transfers in flight."""
    transfers: int
    """Number of transfers in an operation."""
    blocks: tuple[float, ...]
    """Seconds per transfer, by block: the seconds of an operation over its transfers."""
    operations: tuple[float, ...]
    """Seconds per transfer, by operation."""
    wrong_bytes: int
    """Bytes that differed from the expected ones where they arrived, over all checks."""
    checked_bytes: int
    costs: PythonCosts
    """The same for all modes of an operation and size."""


@dataclass(frozen=True)
class OneSidedResult:
    """Everything that was measured between two ranks, or the reason why nothing was."""

    backend: str
    """NIXL's backend, such as UCX."""
    transport: str
    """The transports to which UCX_TLS restricts the backend; empty: the backend chose."""
    times: tuple[OneSidedTimes, ...] = ()
    not_measured: str = ""
    """Reason in one line; empty: it was measured."""


def transfers_of_operation(size: int, window: int) -> int:
    """Number of transfers of `size` bytes timed as one operation: at least 2, two windows if they are small."""
    return max(2, min(2 * window, OPERATION_BYTES // size))


def transfer_seconds(size: int, round_trip: float, rate: float, window: int, transfers: int) -> float:
    """Seconds of `transfers` transfers of `size` bytes, at most `window` of them in flight, until all are acknowledged.

    The link carries one transfer at a time, and a transfer begins when the link is free and the one `window` before it
    is acknowledged. round_trip: seconds. rate: bytes per second of the link. A window of 1 is blocking.
    """
    on_link = size / rate
    done: list[float] = []
    link_free = 0.0
    for number in range(transfers):
        begins = max(link_free, done[number - window] if number >= window else 0.0)
        link_free = begins + on_link
        done.append(link_free + round_trip)
    return done[-1]


def blocking_over_window(size: int, round_trip: float, rate: float, window: int, transfers: int) -> float:
    """Time of the transfers in mode blocking over their time with a window. Arguments: as for `transfer_seconds`."""
    blocking = transfer_seconds(size, round_trip, rate, 1, transfers)
    return blocking / transfer_seconds(size, round_trip, rate, window, transfers)
