"""What a gang left behind on this machine, which should be nothing. Ports are held by processes, which tell of them."""

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")

GRACE_SECONDS = 3.0
"""For processes that were told to end with their agent."""

_OWNED = re.compile(r"convoy-(\d+)-\d+-.*")
"""A worker's folder there, by its process id; what a worker left that was killed is removed by a later one."""


def processes_left(living: Callable[[], set[int]]) -> list[str]:
    """Processes of the gang that do not end, after a moment; one line each."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := living()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"process {pid} is left: {_command(pid)}" for pid in sorted(left)]


def memory_left(pids: set[int], folder: Path = SHARED_MEMORY) -> list[str]:
    """Shared memory of these processes, which have ended; one line each."""
    found = []
    for path in folder.glob("convoy-*"):
        owner = _OWNED.fullmatch(path.name)
        if owner and int(owner[1]) in pids:
            found.append(f"{path} is left")
    return sorted(found)


def files_left(folder: Path) -> list[str]:
    """What is in a folder for temporary files after the processes that used it have ended; one line each."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [f"temporary file {name} is left" for name in names]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return ""
