"""Process trees: what a process has started, in whatever session and however it was detached, found and killed.

Below a process that adopts orphans (`prctl.adopt_orphans`) nothing is lost by the end of a parent between. Should that
process itself be killed, what it had below it is found by a marker that all inherit in their environment.
"""

import contextlib
import os
import secrets
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from convoy.gang.workers.process_state import read_stat

MARKER = "CONVOY_GANG"
"""Environment variable that tells whose a process is."""

KILL_SECONDS = 15.0
"""After so long, what has not ended hangs in the kernel, and ends when it comes back from there. One with a GPU and
pinned memory takes seconds to give them back."""


def new_marker() -> str:
    """A value for the environment variable MARKER that no other process has."""
    return secrets.token_hex(16)


def kill_below(root: int, seconds: float = KILL_SECONDS) -> set[int]:
    """Kill all that descends from a process, but not itself, until none is left; what still lives after `seconds`."""
    return _kill_until_none(lambda: descendants(living(), root), seconds)


def kill_marked(marker: str, seconds: float = KILL_SECONDS) -> set[int]:
    """Kill all processes that inherited a marker, but not this one, until none is left; what still lives after
    `seconds`."""
    return _kill_until_none(lambda: marked(marker), seconds)


def living() -> dict[int, int]:
    """All processes that have not ended, and the parent of each."""
    stats = ((pid, read_stat(pid)) for pid in _pids())
    return {pid: stat.parent for pid, stat in stats if stat is not None and stat.state != "gone"}


def descendants(parents: Mapping[int, int], root: int) -> set[int]:
    """Who comes below `root`, at any depth; not itself. parents: of each process."""
    children = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    found = set[int]()
    new = children[root]
    while new:
        found.update(new)
        new = [grandchild for child in new for grandchild in children[child] if grandchild not in found]
    return found - {root}


def marked(marker: str) -> set[int]:
    """Living processes, but for this one, whose environment at their start had the marker."""
    entry = f"{MARKER}={marker}".encode()
    return {pid for pid in _pids() if pid != os.getpid() and entry in _environment(pid)}


def _kill_until_none(find: Callable[[], set[int]], seconds: float) -> set[int]:
    """Two looks in a row must find none: one whose parent ends during a look belongs to nobody in it."""
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


def _environment(pid: int) -> list[bytes]:
    """Empty for what has ended, and for what is not ours to read."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return file.read().split(b"\0")
    except OSError:
        return []
