"""Whether a worker whose script has run its last line makes progress, by the kernel's accounts.

In its threads and exit handlers such a worker passes no point that it could mark on the board, and a thread that holds
Python's lock while it hangs keeps any other from marking one. So the agent watches from outside.
"""

import contextlib
import ctypes
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from convoy.gang.workers.processes import descendants, parents_by_pid, read_stat

CORE_SHARE = 0.05
"""Less than this share of one core is no progress. Threads of communication libraries poll even when idle: those of
each gloo process group use 0.1 % of a core."""

BYTES_PER_SECOND = 32 * 1024
"""Read or written, sent or received at this rate is progress: a slow upload takes hardly any processor time."""

COMPUTING_ALONE = 20
"""For this many times the time after which a worker without progress is ended, it may use a core while it reads and
writes less than counts as progress. A thread that spins for ever looks like one that computes."""

LOOKS = 20
"""Per time after which a worker without progress is ended."""


@dataclass(frozen=True)
class ResourceUse:
    """What a process has used since its start."""

    cpu_seconds: float = 0.0
    io_bytes: int = 0


class ExitProgress:
    """For one worker, with all processes below it."""

    def __init__(self, pid: int, began: float, seconds: float) -> None:
        """began: when the script's last line had run. seconds: progress is judged over this time."""
        self._pid, self._seconds = pid, seconds
        self.at = began
        """When it last made progress. Moments are seconds by `time.monotonic`."""
        self.count = 0
        """How often progress was noticed."""
        self._look_at = began
        self._last = resources_used_by_tree(pid)
        self._cpu_seconds = 0.0
        """Used since `at`."""
        self._moved_at = began
        """When it last read or wrote what counts."""
        self._io_bytes = 0
        """Read or written since then."""

    def update(self, now: float) -> None:
        """Call it often; it queries the kernel no more than necessary."""
        if now < self._look_at:
            return
        self._look_at = now + self._seconds / LOOKS
        before, self._last = self._last, resources_used_by_tree(self._pid)
        self.record_use(now, use_between(before, self._last))

    def record_use(self, now: float, used: ResourceUse) -> None:
        """used: since the last look."""
        self._cpu_seconds += used.cpu_seconds
        self._io_bytes += used.io_bytes
        if self._io_bytes >= BYTES_PER_SECOND * self._seconds:
            self._moved_at, self._io_bytes = now, 0
        elif self._cpu_seconds < CORE_SHARE * self._seconds or now - self._moved_at >= COMPUTING_ALONE * self._seconds:
            return
        self.at, self.count, self._cpu_seconds = now, self.count + 1, 0.0


def use_between(before: dict[int, ResourceUse], after: dict[int, ResourceUse]) -> ResourceUse:
    """What all processes have used between two looks. A process that has ended subtracts nothing."""
    cpu_seconds, io_bytes = 0.0, 0
    for pid, use in after.items():
        earlier = before.get(pid, ResourceUse())
        cpu_seconds += max(0.0, use.cpu_seconds - earlier.cpu_seconds)
        io_bytes += max(0, use.io_bytes - earlier.io_bytes)
    return ResourceUse(cpu_seconds, io_bytes)


def resources_used_by_tree(root: int) -> dict[int, ResourceUse]:
    """What a process and each one below it have used."""
    return {pid: _resources_used(pid) for pid in (root, *descendants(parents_by_pid(), root))}


def _resources_used(pid: int) -> ResourceUse:
    stat, io_bytes = read_stat(pid), 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", "rb", buffering=0) as file:
        fields = dict(line.split(b": ") for line in file.read(4096).splitlines())
        io_bytes = int(fields[b"rchar"]) + int(fields[b"wchar"])
    with contextlib.suppress(OSError):
        io_bytes += _tcp_bytes(pid)
    return ResourceUse(0.0 if stat is None else stat.cpu_seconds, io_bytes)


_PIDFD_GETFD = 438  # of asm-generic/unistd.h
_TCP_INFO_BYTES, _ACKED_AND_RECEIVED = 136, struct.Struct("@QQ")  # tcpi_bytes_acked, tcpi_bytes_received of linux/tcp.h
_LIBC = ctypes.CDLL(None, use_errno=True)


def _tcp_bytes(pid: int) -> int:
    """Sent and received by a process's open connections, which its io file leaves out. Raises OSError where the kernel
    does not let this process look at them."""
    total, process = 0, os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # one that is just closed
                if str(entry.readlink()).startswith("socket:"):
                    total += _count_bytes_and_close(_LIBC.syscall(_PIDFD_GETFD, process, int(entry.name), 0))
    finally:
        os.close(process)
    return total


def _count_bytes_and_close(descriptor: int) -> int:
    """By a descriptor of this process, which is closed here: not by Python's socket, which may change what both
    processes share. 0 for what is not a TCP connection."""
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
