"""On which cores the threads of this process run."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


def keep_to(cores: Collection[int]) -> None:
    """Every thread of this process runs on these cores from now on, and so will those that it makes.

    `sched_setaffinity` of a process is of its main thread alone: threads that gloo, OpenMP and autograd have made keep
    theirs. A thread that is made meanwhile has its maker's cores, so one look finds no such thread any more.
    """
    done: set[int] = set()
    while left := threads() - done:
        for thread in left:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(thread, cores)
        done |= left


def threads() -> set[int]:
    """Ids of all threads of this process."""
    return {int(task.name) for task in _TASKS.iterdir()}


def share(cores: Sequence[int], rank: int, ranks: int) -> Sequence[int]:
    """The cores of one of a host's ranks: neighbours, as many for each, at least one."""
    each = max(1, len(cores) // ranks)
    first = rank * each % len(cores)
    return cores[first : first + each]
