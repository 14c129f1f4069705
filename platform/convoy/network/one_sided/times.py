"""What one-sided transfers took, and the arithmetic of how many of them are in flight. Pure.

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
"""Transfers of an operation move so many bytes at most, unless two transfers are more."""


@dataclass(frozen=True)
class PythonCosts:
    """Where the time of a blocking transfer is spent, in seconds: means over transfers that were timed apart."""

    post: float
    """In the call that posts it."""
    nixl_post: float
    """The part of it that NIXL reports as its own."""
    transfer: float
    """From the beginning of the post until NIXL saw it done, as NIXL reports."""
    total: float
    """From the beginning of the post until Python saw it done."""
    polls: float
    """Calls that asked for its state."""
    hand_over: float
    """From its submission until the proxy thread took it from the queue, in mode queue."""

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
    """Bytes of a transfer."""
    window: int
    """Transfers in flight at most."""
    transfers: int
    """Transfers of an operation."""
    blocks: tuple[float, ...]
    """Seconds of a transfer, by block: an operation's seconds over its transfers."""
    operations: tuple[float, ...]
    """The same for each operation."""
    wrong_bytes: int
    """Bytes that were not what they should be where they arrived, over all blocks."""
    checked_bytes: int
    costs: PythonCosts
    """The same for all modes of an operation and size."""


@dataclass(frozen=True)
class OneSidedResult:
    """All that was measured between two ranks, or why nothing was."""

    backend: str
    """NIXL's, such as UCX."""
    transport: str
    """As UCX_TLS restricts it; empty: the backend chose."""
    times: tuple[OneSidedTimes, ...] = ()
    not_measured: str = ""
    """Reason in one line; empty: it was measured."""


def transfers_of_operation(size: int, window: int) -> int:
    """How many transfers of so many bytes are timed as one operation: two windows where they are small."""
    return max(2, min(2 * window, OPERATION_BYTES // size))


def transfer_seconds(size: int, round_trip: float, rate: float, window: int, transfers: int) -> float:
    """Seconds of so many transfers of `size` bytes with at most `window` in flight, each done when it is acknowledged.

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
    """How many times as long the same transfers take if each is waited for. Arguments: as `transfer_seconds`."""
    blocking = transfer_seconds(size, round_trip, rate, 1, transfers)
    return blocking / transfer_seconds(size, round_trip, rate, window, transfers)
