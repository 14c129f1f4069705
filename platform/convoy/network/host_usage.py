"""CPU time, context switches and memory that a rank, and Convoy's own processes, use during a measurement."""

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
"""What clear_refs takes in order to begin a new peak of resident memory: proc(5)."""


class CpuUse(NamedTuple):
    """Of all threads of a process together."""

    user_seconds: float
    system_seconds: float
    voluntary_switches: float
    involuntary_switches: float


@dataclass(frozen=True)
class Heap:
    """glibc's heap at one moment, in bytes; all arenas together."""

    arena: int
    """Taken from the system, other than by mmap for single large blocks."""
    mapped: int
    """In blocks that have a mapping of their own."""
    free: int
    """The part of `arena` that is in no block in use."""

    @property
    def fragmentation(self) -> float:
        """Share of the arenas that is free but has not gone back to the system."""
        return self.free / self.arena if self.arena else 0.0


@dataclass(frozen=True)
class GpuMemory:
    """torch's allocator of a rank's GPU, in bytes."""

    peak: int
    """Tensors at most, since the watch began."""
    reserved: int
    """Taken from CUDA at the end."""
    inactive: int
    """The part of `reserved` that is free within blocks that are partly in use: it serves no larger tensor."""

    @property
    def fragmentation(self) -> float:
        """Share of what is reserved that fragmentation holds back."""
        return self.inactive / self.reserved if self.reserved else 0.0


@dataclass(frozen=True)
class ProcessUse:
    """One of Convoy's own processes meanwhile."""

    pid: int
    role: Role
    cpu_seconds: float
    switches: int
    """Voluntary and involuntary, of all its threads."""
    resident_bytes: int
    """At the end."""


@dataclass(frozen=True)
class HostUsage:
    """What a rank used. Those of several blocks can be added."""

    seconds: float
    """Wall time."""
    cpu: CpuUse
    peak_bytes: int | None
    """Resident memory at most; None: this kernel does not let a process begin a new peak."""
    heap: Heap | None
    """At the end; None: not glibc 2.33 or newer."""
    gpu: GpuMemory | None
    """None: no GPU."""
    convoy: tuple[ProcessUse, ...] = field(default=())
    """Empty: no agent watches this rank, and it has no writer."""

    @property
    def switches_per_second(self) -> float:
        """Context switches of all threads of the rank."""
        return (self.cpu.voluntary_switches + self.cpu.involuntary_switches) / self.seconds

    def __add__(self, later: "HostUsage") -> "HostUsage":
        """Of both together: sums of what is used up, the larger peak, and the later state."""
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
    """Holds what was used, once its context has ended."""

    usage: HostUsage


@contextlib.contextmanager
def watch_host(device: "torch.device | None" = None) -> Iterator[HostWatch]:
    """Watch this rank and Convoy's processes around it. device: the rank's GPU, or any other device for none.

    Beginning and ending take some tenths of a millisecond, which belong outside of what is timed.
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
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return CpuUse(used.ru_utime, used.ru_stime, float(used.ru_nvcsw), float(used.ru_nivcsw))


def cpu_seconds_of(pid: int) -> float:
    """CPU time of any process so far; 0 if it has ended."""
    # The clock of another process, as pthread_getcpuclockid makes it: /proc/<pid>/stat has ticks of 10 ms only.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def child_pids(pid: int | None = None) -> list[int]:
    """Living processes that a process started; None: this one."""
    children = []
    for task in _tasks(os.getpid() if pid is None else pid):
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            children += [int(child) for child in (task / "children").read_text().split()]
    return children


def switches_of(pid: int) -> int:
    """Context switches of all threads that a process has; 0 if it has ended."""
    return sum(
        int(status[name])
        for task in _tasks(pid)
        for status in [_status(task)]
        for name in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
        if name in status
    )


def convoy_processes(rank: int | None = None) -> dict[int, Role]:
    """Convoy's own processes around a rank. rank: its pid; None: this process."""
    rank = os.getpid() if rank is None else rank
    agent = _agent_of(rank)
    found: dict[int, Role] = {} if agent is None else {agent: "agent"}
    return found | {pid: "writer" for pid in child_pids(rank) if _WRITER in _command(pid)}


def heap() -> Heap | None:
    """glibc's heap of this process now; None: the C library does not report it."""
    try:
        report = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    report.restype = _Mallinfo2
    now = report()
    return Heap(arena=now.arena, mapped=now.hblkhd, free=now.fordblks)


class _Mallinfo2(ctypes.Structure):
    """See mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _agent_of(rank: int) -> int | None:
    """The rank's parent is the process that ranks are forked from, whose first argument names the agent."""
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
    """place: of a process or thread in /proc. Empty if it has ended."""
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
