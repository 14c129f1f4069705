"""A process that delays Ethernet frames: what is read from a TAP interface is written back to it later.

    python relay.py MICROSECONDS INTERFACE...

It is for kernels without netem, and imports only the standard library. It writes a line when it has started; for each
line that it reads, it writes its counts by interface, as JSON; when its input ends, so does it.
"""

import collections
import contextlib
import fcntl
import gc
import json
import os
import select
import struct
import sys
import time
from dataclasses import asdict, dataclass

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
"""From linux/if_tun.h."""

FRAME_BYTES = 2**14
"""More than any frame has."""

BATCH = 32
"""Frames read from one interface before those that are due are written."""


@dataclass
class RelayCounts:
    """Frames of one interface."""

    forwarded: int = 0
    held: int = 0
    """At the moment."""

    dropped: int = 0
    """That the kernel did not take back."""


class Relay:
    def __init__(self, delay_seconds: float, interfaces: dict[str, int]) -> None:
        """interfaces: open TAP devices by name, from which reading does not block."""
        self._delay = delay_seconds
        self.counts = {name: RelayCounts() for name in interfaces}
        self._of_device = {device: self.counts[name] for name, device in interfaces.items()}
        self._held: collections.deque[tuple[float, int, bytes]] = collections.deque()
        """When each frame is due, and where. All wait equally long, so they are due in the order of their arrival."""

    def take_in(self, device: int) -> None:
        counts, due = self._of_device[device], time.monotonic() + self._delay
        with contextlib.suppress(BlockingIOError):
            for _ in range(BATCH):
                self._held.append((due, device, os.read(device, FRAME_BYTES)))
                counts.held += 1

    def release(self) -> float | None:
        """Write what is due. Returns in how many seconds the next frame is; None: there is none."""
        held, now = self._held, time.monotonic()
        while held and held[0][0] <= now:
            _, device, frame = held.popleft()
            counts = self._of_device[device]
            counts.held -= 1
            try:
                os.write(device, frame)
                counts.forwarded += 1
            except OSError:
                counts.dropped += 1
        return max(0.0, held[0][0] - time.monotonic()) if held else None


def open_tap(name: str) -> int:
    """An existing TAP interface of this network namespace."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def main(microseconds: str, *names: str) -> None:
    gc.disable()  # its pauses would delay frames; there are no cycles here
    os.setpriority(os.PRIO_PROCESS, 0, -20)  # a link does not wait for the programs that use it
    interfaces = {name: open_tap(name) for name in names}
    relay = Relay(int(microseconds) / 1e6, interfaces)
    asked, devices = sys.stdin.fileno(), list(interfaces.values())
    print("started", flush=True)
    wait = None
    while True:
        # Not epoll, whose timeout is whole milliseconds.
        readable, _, _ = select.select([asked, *devices], [], [], wait)
        if asked in readable:
            readable.remove(asked)
            if not os.read(asked, 1):
                return
            print(json.dumps({name: asdict(counts) for name, counts in relay.counts.items()}), flush=True)
        for device in readable:
            relay.take_in(device)
        wait = relay.release()


if __name__ == "__main__":
    main(*sys.argv[1:])
