"""CPU time, context switches and memory that a rank and Convoy's own processes use during a measurement."""

import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import torch

PROC = Path("/proc")

Role = Literal["agent", "writer"]
"""agent: the process that watches this host's ranks. writer: the one that uploads a rank's checkpoints."""

_WRITER = "convoy.checkpoint.writer"

_RESET_PEAK = "5"
"""Value that resets the peak of resident memory when written to clear_refs. Source: proc(5)."""


class CpuUse(NamedTuple):
    """CPU use of all threads of a process."""

    user_seconds: float
    system_seconds: float
    voluntary_switches: float
    involuntary_switches: float


@dataclass(frozen=True)
class Heap:
    """State of glibc's heap at one moment, in bytes, summed over all arenas."""

    arena: int
    """Memory obtained from the system, without large blocks that have mappings of their own."""
    mapped: int
    """Memory in large blocks, each of which has a mapping (mmap) of its own."""
    free: int
    """The part of `arena` that belongs to no block in use."""

    @property
    def fragmentation(self) -> float:
        """Share of the arenas that is free but was not returned to the system."""
        return self.free / self.arena if self.arena else 0.0


@dataclass(frozen=True)
class GpuMemory:
    """GPU memory of a rank, as torch's allocator reports it, in bytes."""

    peak: int
    """Largest amount of memory in tensors since the watch began."""
    reserved: int
    """Memory reserved from CUDA when the watch ended."""
    inactive: int
    """The part of `reserved` that is free within blocks partly in use, and thus cannot serve larger tensors."""

    @property
    def fragmentation(self) -> float:
        """Share of the reserved memory that is unusable because of fragmentation."""
        return self.inactive / self.reserved if self.reserved else 0.0


@dataclass(frozen=True)
class ProcessUse:
    """Resources that one of Convoy's own processes used during a watch."""

    pid: int
    role: Role
    cpu_seconds: float
    switches: int
    """Voluntary and involuntary context switches of all its threads."""
    resident_bytes: int
    """Resident memory when the watch ended."""


@dataclass(frozen=True)
class HostUsage:
    """Resources that a rank used during a watch. The usage of several watches can be added."""

    seconds: float
    """Wall time."""
    cpu: CpuUse
    peak_bytes: int | None
    """Peak of resident memory; None: this kernel does not let a process reset the peak."""
    heap: Heap | None
    """State of the heap when the watch ended; None: the C library is not glibc 2.33 or newer."""
    gpu: GpuMemory | None
    """GPU memory when the watch ended; None: the rank has no GPU."""
    convoy: tuple[ProcessUse, ...] = field(default=())
    """Convoy's processes around the rank; empty: no agent watches this rank, and it has no writer."""

    @property
    def switches_per_second(self) -> float:
        """Voluntary and involuntary context switches of all threads of the rank, per second."""
        return (self.cpu.voluntary_switches + self.cpu.involuntary_switches) / self.seconds

    def __add__(self, later: "HostUsage") -> "HostUsage":
        """Usage of two consecutive watches: sums of times and switches, the larger peaks, and the later states."""
        peaks = [each for each in (self.peak_bytes, later.peak_bytes) if each is not None]
        gpu = later.gpu
        if gpu is not None and self.gpu is not None:
            gpu = replace(gpu, peak=max(gpu.peak, self.gpu.peak))
        earlier = {each.pid: each for each in self.convoy}
        return HostUsage(
            seconds=self.seconds + later.seconds,
            cpu=CpuUse(*(first + second for first, second in zip(self.cpu, later.cpu, strict=True))),
            peak_bytes=max(peaks, default=None),
            heap=later.heap,
            gpu=gpu,
            convoy=tuple(
                replace(each, cpu_seconds=each.cpu_seconds + then.cpu_seconds, switches=each.switches + then.switches)
                if (then := earlier.get(each.pid))
                else each
                for each in later.convoy
            ),
        )


class HostWatch:
    """Holds the usage once the context of `watch_host` has ended."""

    usage: HostUsage


@contextlib.contextmanager
def watch_host(device: "torch.device | None" = None) -> Iterator[HostWatch]:
    """Measure what this rank and Convoy's processes around it use. device: the rank's GPU, if it has one.

    Entering and leaving the context take some tenths of a millisecond, and should not be part of a timed section.
    """
    watch, cuda = HostWatch(), device is not None and device.type == "cuda"
    if cuda:
        _reset_gpu_peak(device)
    can_peak = _begin_peak()
    own = convoy_processes()
    before = {pid: (cpu_seconds_of(pid), switches_of(pid)) for pid in own}
    cpu, began = cpu_use(), time.perf_counter()
    yield watch
    seconds, used = time.perf_counter() - began, cpu_use()
    watch.usage = HostUsage(
        seconds=seconds,
        cpu=CpuUse(*(now - then for now, then in zip(used, cpu, strict=True))),
        peak_bytes=_status_bytes(os.getpid(), "VmHWM") if can_peak else None,
        heap=heap(),
        gpu=_gpu_memory(device) if cuda else None,
        convoy=tuple(
            ProcessUse(
                pid=pid,
                role=role,
                cpu_seconds=max(0.0, cpu_seconds_of(pid) - before[pid][0]),
                switches=max(0, switches_of(pid) - before[pid][1]),
                resident_bytes=_status_bytes(pid, "VmRSS"),
            )
            for pid, role in own.items()
        ),
    )


def cpu_use() -> CpuUse:
    """CPU use of this process since its start."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return CpuUse(used.ru_utime, used.ru_stime, float(used.ru_nvcsw), float(used.ru_nivcsw))


def cpu_seconds_of(pid: int) -> float:
    """CPU time of any process since its start, in seconds; 0 if it has ended."""
    # The clock of another process, as pthread_getcpuclockid makes it: /proc/<pid>/stat has ticks of 10 ms only.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def child_pids(pid: int | None = None) -> list[int]:
    """Process ids of the living children of a process. pid: None: this process."""
    children = []
    for task in _tasks(os.getpid() if pid is None else pid):
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            children += [int(child) for child in (task / "children").read_text().split()]
    return children


def switches_of(pid: int) -> int:
    """Context switches of all current threads of a process; 0 if it has ended."""
    return sum(
        int(status[name])
        for task in _tasks(pid)
        for status in [_status(task)]
        for name in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
        if name in status
    )


def convoy_processes(rank: int | None = None) -> dict[int, Role]:
    """Roles of Convoy's own processes around a rank, by process id. rank: its process id; None: this process."""
    rank = os.getpid() if rank is None else rank
    agent = _agent_of(rank)
    found: dict[int, Role] = {} if agent is None else {agent: "agent"}
    return found | {pid: "writer" for pid in child_pids(rank) if _WRITER in _command(pid)}


def heap() -> Heap | None:
    """State of this process's heap; None: the C library has no mallinfo2. Source: mallinfo(3)."""
    try:
        report = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    report.restype = _Mallinfo2
    now = report()
    return Heap(arena=now.arena, mapped=now.hblkhd, free=now.fordblks)


class _Mallinfo2(ctypes.Structure):
    """The C structure that mallinfo2 returns. Source: mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _agent_of(rank: int) -> int | None:
    """Process id of the agent of a rank; None: the rank has none.

    The parent of the rank is the process that ranks are forked from, and its first argument is the agent's process id.
    """
    server = _parent(rank)
    words = _command(server)
    if words[1:2] == ["-m"] and words[3:4] == [str(_parent(server))]:
        return int(words[3])
    return None


def _parent(pid: int) -> int:
    return int(_status(PROC / str(pid)).get("PPid", "0"))


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_text(errors="replace").split("\0")
    return []


def _tasks(pid: int) -> list[Path]:
    with contextlib.suppress(OSError):
        return list((PROC / str(pid) / "task").iterdir())
    return []


def _status(place: Path) -> Mapping[str, str]:
    """Lines of the file `status` by name; empty if the process has ended. place: its folder in /proc, or a thread's."""
    with contextlib.suppress(OSError):
        lines = (line.partition(":") for line in (place / "status").read_text(errors="replace").splitlines())
        return {name: value.strip() for name, _, value in lines}
    return {}


def _status_bytes(pid: int, name: str) -> int:
    return 1024 * int(_status(PROC / str(pid)).get(name, "0 kB").split()[0])


def _begin_peak() -> bool:
    try:
        (PROC / "self" / "clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def _reset_gpu_peak(device: "torch.device | None") -> None:
    import torch

    torch.cuda.reset_peak_memory_stats(device)


def _gpu_memory(device: "torch.device | None") -> GpuMemory:
    import torch

    now = torch.cuda.memory_stats(device)
    return GpuMemory(
        peak=now["allocated_bytes.all.peak"],
        reserved=now["reserved_bytes.all.current"],
        inactive=now["inactive_split_bytes.all.current"],
    )
