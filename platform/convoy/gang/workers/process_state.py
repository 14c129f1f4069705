"""Whether a process runs, was stopped, hangs in the kernel, or is gone: what the kernel tells in /proc/<pid>/stat."""

import os
from dataclasses import dataclass, field
from typing import Literal

State = Literal["running", "stopped", "uninterruptible", "gone"]
"""running: or ready to, or asleep. stopped: by SIGSTOP or its like, until SIGCONT. uninterruptible: it waits in the
kernel, usually for storage, and no signal ends it; for moments any process does. gone: ended, be it not reaped yet."""

_STATES: dict[str, State] = {"T": "stopped", "D": "uninterruptible", "Z": "gone", "X": "gone", "x": "gone"}
# Not `t`, which is a debugger's: py-spy and gdb stop a process so for a moment.


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stat:
    """A process at one moment."""

    state: State
    parent: int
    cpu_seconds: float = field(default=0.0, compare=False)
    """Of all its threads, in user and kernel mode, since its start."""


def state_of(pid: int) -> State:
    """The state of a process, as its first thread has it: a signal that stops it stops them all."""
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
    return Stat("running" if state == "gone" and threads > 1 else state, parent, cpu_seconds)
