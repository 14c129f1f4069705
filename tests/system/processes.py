"""What the kernel tells of processes."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 20.0


def state_of(process: int, thread: int | None = None) -> str:
    """`D`: it waits in the kernel, and no signal ends it."""
    place = f"/proc/{process}/stat" if thread is None else f"/proc/{process}/task/{thread}/stat"
    return Path(place).read_text().rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    """Raises AssertionError if it does not come true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


def hangs(process: int) -> bool:
    """Whether any of its threads does, as the state `D` has it."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
        return any(state_of(process, int(task.name)) == "D" for task in Path(f"/proc/{process}/task").iterdir())
    return False


def command_of(process: int) -> bytes:
    """Empty for one that has ended."""
    return _read(Path(f"/proc/{process}/cmdline"))


def children() -> list[int]:
    """Processes that any thread of this one has started and that have not ended, or not been waited for."""
    lists = [_read(task / "children") for task in Path("/proc/self/task").iterdir()]
    return [int(child) for each in lists for child in each.split()]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
