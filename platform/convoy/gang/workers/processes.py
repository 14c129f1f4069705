"""Processes as the kernel reports them: their states and descendants, how to kill a whole tree, and prctl(2).

Below a process that adopts orphans (`adopt_orphans`) nothing is lost when an intermediate parent ends. Should that
process itself be killed, everything below it can be found by a tag that all inherit in their environment.
"""

import contextlib
import ctypes
import os
import secrets
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

State = Literal["running", "stopped", "uninterruptible", "gone"]
"""running: or ready to, or asleep. stopped: by SIGSTOP or the like, until SIGCONT. uninterruptible: it waits in the
kernel, usually for storage, and no signal ends it; any process does for moments. gone: ended, perhaps not reaped
yet."""

TAG = "CONVOY_GANG"
"""Environment variable that says which gang a process belongs to."""

KILL_SECONDS = 15.0
"""A process that has not ended after this hangs in the kernel, and ends when it returns from there. One with a GPU and
pinned memory takes seconds to release them."""

_STATES: dict[str, State] = {"T": "stopped", "D": "uninterruptible", "Z": "gone", "X": "gone", "x": "gone"}
# Not `t`, a debugger's stop: py-spy and gdb stop a process this way for a moment.

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Stat:
    """A process at one moment."""

    state: State
    parent: int
    cpu_seconds: float = field(default=0.0, compare=False)
    """Of all its threads, in user and kernel mode, since its start."""
    started_ticks: int = field(default=0, compare=False)
    """Clock ticks since the machine's start."""


def state_of(pid: int) -> State:
    """The state of a process, which is that of its first thread: a signal that stops it stops them all."""
    stat = read_stat(pid)
    return "gone" if stat is None else stat.state


def read_stat(pid: int) -> Stat | None:
    """None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return parse_stat(file.read(4096).decode(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def parse_stat(text: str) -> Stat:
    """text: of /proc/<pid>/stat; see proc(5). The name, in parentheses, may hold anything, parentheses too."""
    fields = text.rpartition(")")[2].split()
    state, parent, threads = _STATES.get(fields[0], "running"), int(fields[1]), int(fields[17])
    cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    # A first thread that ended before the others stays as a zombie for as long as they live.
    return Stat("running" if state == "gone" and threads > 1 else state, parent, cpu_seconds, int(fields[19]))


def name_of(pid: int) -> str:
    """What `ps -o comm` shows; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def command_of(pid: int) -> str:
    """Its command line; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def environment_of(pid: int) -> list[bytes]:
    """`NAME=value` entries at its start; empty if it has ended, or belongs to another user."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def parents_by_pid() -> dict[int, int]:
    """All processes that have not ended, and the parent of each."""
    stats = ((pid, read_stat(pid)) for pid in _pids())
    return {pid: stat.parent for pid, stat in stats if stat is not None and stat.state != "gone"}


def descendants(parents: Mapping[int, int], root: int) -> set[int]:
    """All processes below `root`, at any depth; not itself. parents: of each process."""
    children = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    below = set[int]()
    new = children[root]
    while new:
        below.update(new)
        new = [grandchild for child in new for grandchild in children[child] if grandchild not in below]
    return below - {root}


def new_tag() -> str:
    """A value of the environment variable TAG that no other process has."""
    return secrets.token_hex(16)


def pids_with_tag(tag: str) -> set[int]:
    """Living processes, except this one, that had the tag in their environment at their start."""
    entry = f"{TAG}={tag}".encode()
    return {pid for pid in _pids() if pid != os.getpid() and entry in environment_of(pid)}


def kill_below(root: int, seconds: float = KILL_SECONDS) -> set[int]:
    """Kill all descendants of a process, but not itself, until none is left; those still alive after `seconds`."""
    return _kill_until_none(lambda: descendants(parents_by_pid(), root), seconds)


def kill_tagged(tag: str, seconds: float = KILL_SECONDS) -> set[int]:
    """Kill all processes that inherited a tag, except this one, until none is left; those still alive after
    `seconds`."""
    return _kill_until_none(lambda: pids_with_tag(tag), seconds)


def _kill_until_none(find: Callable[[], set[int]], seconds: float) -> set[int]:
    """Two looks in a row must find none: a process whose parent ends during a look is missing from that look."""
    deadline, pause, nones = time.monotonic() + seconds, 0.001, 0
    while True:
        left = find()
        nones = 0 if left else nones + 1
        if nones == 2 or time.monotonic() > deadline:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def signal_at_end_of_parent(number: int) -> None:
    """Have this process sent a signal when the *thread* that started it ends, which may be before its process does.

    Not inherited by children. Raises OSError.
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Orphans below this process become its children, instead of init's. Not inherited by children. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_process_name(name: str) -> None:
    """Set what `ps -o comm` and `top` show for this thread, cut to 15 bytes. Raises OSError."""
    _prctl(_PR_SET_NAME, name.encode())


def _prctl(option: int, value: int | bytes) -> None:
    argument, nothing = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value), ctypes.c_ulong(0)
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, nothing, nothing, nothing) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
