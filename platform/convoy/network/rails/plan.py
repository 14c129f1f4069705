"""The plan of rails: buffers sent over one rail, split over all, or round-robin over them. Pure."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from convoy.network.interfaces import Interface

RailMode = Literal["one rail", "split", "round-robin"]
"""one rail: all buffers on the first one. split: each buffer in equal parts over all. round-robin: each buffer as a
whole, on rail (target + source + number of the buffer) mod n, so that the pairs of a host spread over its rails."""

RAIL_MODES: tuple[RailMode, ...] = get_args(RailMode)

SIZES = (2**6, *(2**power for power in range(10, 25, 2)))
"""Buffer sizes in bytes: the smallest, whose time is the latency of a message, and 1 KiB to 16 MiB."""

MANY = 4
"""Number of independent buffers that are compared with a single one."""


class RailTask(NamedTuple):
    """Buffers that one rank sends another one at once."""

    mode: RailMode
    buffers: int
    size: int
    """Bytes of each buffer."""


class RailTimes(NamedTuple):
    """Times of a task, the same on all ranks."""

    blocks: tuple[float, ...]
    """Seconds until all buffers have arrived and the target has answered, by round: the median of the block."""
    wrong: int
    """Wrong bytes received, over two checks."""


class RailMessage(NamedTuple):
    """A part of the buffers, which lie one after the other, that is sent over one rail."""

    rail: int
    start: int
    stop: int
    """Bytes."""


def rail_tasks(largest: int) -> list[RailTask]:
    """One buffer at all sizes up to `largest` bytes, and many at the smallest and the largest of them."""
    sizes = [size for size in SIZES if size <= largest] or [largest]
    amounts = [(1, size) for size in sizes] + [(MANY, size) for size in dict.fromkeys((sizes[0], sizes[-1]))]
    return [RailTask(mode, buffers, size) for buffers, size in amounts for mode in RAIL_MODES]


def rail_messages(task: RailTask, rails: int, source: int, target: int) -> list[RailMessage]:
    """The messages of the source in order, one for each part of a buffer. Parts without bytes are left out."""
    messages = []
    for number in range(task.buffers):
        start = number * task.size
        if task.mode == "split":
            bounds = [start + task.size * part // rails for part in range(rails + 1)]
            messages += [RailMessage(rail, bounds[rail], bounds[rail + 1]) for rail in range(rails)]
        else:
            rail = 0 if task.mode == "one rail" else (target + source + number) % rails
            messages.append(RailMessage(rail, start, start + task.size))
    return [each for each in messages if each.stop > each.start]


def common_rails(source: Sequence[Interface], target: Sequence[Interface]) -> list[tuple[Interface, Interface]]:
    """Interfaces of two hosts that are on one network, in the order of the source's. A network of which both hosts have
    the same address, such as a container bridge, is each host's own."""
    rails: list[tuple[Interface, Interface]] = []
    for own in source:
        taken = {peer for _, peer in rails}
        peer = next((each for each in target if each.network == own.network and each not in taken), None)
        if peer is not None and peer.address != own.address:
            rails.append((own, peer))
    return rails
