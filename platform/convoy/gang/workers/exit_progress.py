"""Whether a worker whose script has run its last line makes progress, as the kernel accounts for it.

What such a worker still does, in threads and exit handlers, passes no point that it could mark on the board, and a
thread that holds Python's lock while it hangs keeps any other from marking one. So the agent looks from outside.
"""

import contextlib
import ctypes
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from convoy.gang.workers.process_state import read_stat
from convoy.gang.workers.process_tree import descendants, living

CORE_SHARE = 0.05
"""Of one core. Threads of communication libraries poll even when there is nothing to do: those of each gloo process
group use 0.1 % of a core."""

BYTES_PER_SECOND = 32 * 1024
"""Read or written, sent or received, such as by a slow upload, which takes hardly any processor time."""

COMPUTING_ALONE = 20
"""Times the time without progress after which a worker is ended: so long it may use a core while it reads and writes
less, in all, than counts as progress. A thread that spins for ever looks like one that computes."""

LOOKS = 20
"""In the time without progress after which a worker is ended."""


@dataclass(frozen=True)
class Use:
    """What a process has used since its start."""

    cpu_seconds: float = 0.0
    io_bytes: int = 0

    def __add__(self, other: "Use") -> "Use":
        return Use(self.cpu_seconds + other.cpu_seconds, self.io_bytes + other.io_bytes)


class ExitProgress:
    """Of one worker, with all processes below it."""

    def __init__(self, pid: int, began: float, seconds: float) -> None:
        """began: when the script's last line had run. seconds: progress is judged over so long."""
        self._pid, self._seconds = pid, seconds
        self.at = began
        """When it last made progress. Moments are seconds by `time.monotonic`."""
        self.count = 0
        """How often it was seen to."""
        self._look_at = began
        self._last = used_below(pid)
        self._since = Use()
        """What was used since `at`."""
        self._moved_at = began
        """When it last read or wrote what counts."""
        self._moved = Use()
        """What was used since then."""

    def look(self, now: float) -> None:
        """To be called often. Asks the kernel no more than it needs to."""
        if now < self._look_at:
            return
        self._look_at = now + self._seconds / LOOKS
        before, self._last = self._last, used_below(self._pid)
        self.take(now, grown(before, self._last))

    def take(self, now: float, used: Use) -> None:
        """used: since the last look."""
        self._since, self._moved = self._since + used, self._moved + used
        if moves(self._moved, self._seconds):
            self._moved_at, self._moved = now, Use()
        elif not (computes(self._since, self._seconds) and now - self._moved_at < COMPUTING_ALONE * self._seconds):
            return
        self.at, self.count, self._since = now, self.count + 1, Use()


def computes(used: Use, seconds: float) -> bool:
    """used: since the last progress. seconds: without progress, after which the worker is ended."""
    return used.cpu_seconds >= CORE_SHARE * seconds


def moves(used: Use, seconds: float) -> bool:
    """used: since it last read or wrote what counts. seconds: as for `computes`."""
    return used.io_bytes >= BYTES_PER_SECOND * seconds


def grown(before: dict[int, Use], after: dict[int, Use]) -> Use:
    """What all processes have used between two looks. A process that is gone takes nothing away."""
    cpu_seconds, io_bytes = 0.0, 0
    for pid, use in after.items():
        known = before.get(pid, Use())
        cpu_seconds += max(0.0, use.cpu_seconds - known.cpu_seconds)
        io_bytes += max(0, use.io_bytes - known.io_bytes)
    return Use(cpu_seconds, io_bytes)


def used_below(root: int) -> dict[int, Use]:
    """What a process and each one below it have used."""
    return {pid: _used(pid) for pid in (root, *descendants(living(), root))}


def _used(pid: int) -> Use:
    stat, io_bytes = read_stat(pid), 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", "rb", buffering=0) as file:
        fields = dict(line.split(b": ") for line in file.read(4096).splitlines())
        io_bytes = int(fields[b"rchar"]) + int(fields[b"wchar"])
    with contextlib.suppress(OSError):
        io_bytes += _tcp_bytes(pid)
    return Use(0.0 if stat is None else stat.cpu_seconds, io_bytes)


_PIDFD_GETFD = 438  # of asm-generic/unistd.h
_TCP_INFO_BYTES, _ACKED_AND_RECEIVED = 136, struct.Struct("@QQ")  # tcpi_bytes_acked, tcpi_bytes_received of linux/tcp.h
_LIBC = ctypes.CDLL(None, use_errno=True)


def _tcp_bytes(pid: int) -> int:
    """Sent and received by the connections that a process has open, which its io file leaves out. Raises OSError where
    the kernel does not let this process look at them."""
    total, process = 0, os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # one that is just closed
                if str(entry.readlink()).startswith("socket:"):
                    total += _of_socket(_LIBC.syscall(_PIDFD_GETFD, process, int(entry.name), 0))
    finally:
        os.close(process)
    return total


def _of_socket(descriptor: int) -> int:
    """Of a descriptor that is this process's own, and closed here: not by Python's socket, which may change what both
    processes share. 0 for what is no TCP connection."""
    if descriptor < 0:
        return 0  # it was just closed, or the kernel refuses
    info, length = ctypes.create_string_buffer(_TCP_INFO_BYTES), ctypes.c_uint32(_TCP_INFO_BYTES)
    try:
        failed = _LIBC.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(length))
    finally:
        os.close(descriptor)
    if failed or length.value < _TCP_INFO_BYTES:
        return 0
    return sum(_ACKED_AND_RECEIVED.unpack_from(info, _TCP_INFO_BYTES - _ACKED_AND_RECEIVED.size))
