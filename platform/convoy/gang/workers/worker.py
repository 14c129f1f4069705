"""Rank workers as their agent sees them: how each ended, and the event that tells why."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from convoy.gang.assignment import Assignment
from convoy.gang.workers.process_state import State, state_of
from convoy.job.events.types import WorkerExited

_TAIL_LINES = 20
_TAIL_BYTES = 16_384
_REASON_CHARACTERS = 2_000
"""It goes in messages between agents, which have a limit, and into a title."""


@dataclass
class Worker:
    """One rank's process. What is known of it is brought up to date with each question, and nothing waits."""

    rank: int
    log: Path
    reason: Path
    """Where it leaves one line on why it failed."""
    refresh: Callable[[], object]
    """Takes in what was told of the workers."""
    known_pid: int | None = None
    known_code: int | None = None
    fate: str = ""
    """Why it ended, or never was, where it could not tell itself."""

    @property
    def pid(self) -> int | None:
        """None: it is not forked yet, or never will be. Another process's, perhaps, once `exit_code` is not None."""
        self.refresh()
        return self.known_pid

    def exit_code(self) -> int | None:
        """How it ended: minus the signal's number if by one; None while it runs, or is not forked yet."""
        self.refresh()
        return self.known_code

    def state(self) -> State:
        """As the kernel has it; "running" also before it is forked."""
        if self.exit_code() is not None:
            return "gone"
        return "running" if self.known_pid is None else state_of(self.known_pid)


def exit_event(worker: Worker) -> WorkerExited:
    """How a worker ended that has, with what it left behind. Reads its log, which may lie in the store."""
    left = worker.reason.read_text().strip() if worker.reason.exists() else ""
    ended = how_it_ended(worker)
    return ended.model_copy(
        update={"reason": (ended.reason or left)[:_REASON_CHARACTERS], "log_tail": log_tail(worker.log)}
    )


def how_it_ended(worker: Worker) -> WorkerExited:
    """The same without asking any file."""
    code = worker.exit_code()
    assert code is not None
    number = -code if code < 0 else None
    return WorkerExited(
        worker=worker.rank,
        exit_code=code if number is None else None,
        signal=None if number is None else signal_name(number),
        reason=worker.fate,
    )


def signal_name(number: int) -> str:
    """Such as SIGKILL."""
    known = {s.value: s.name for s in signal.Signals}
    return known.get(number, f"signal {number}")


def log_tail(log: Path) -> str:
    """The last lines a worker printed."""
    with open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def environment_of(assignment: Assignment) -> dict[str, str]:
    """What is different for each worker of a node."""
    return {"LOCAL_RANK": str(assignment.place.local_rank)}


def environment_of_all(threads: int) -> dict[str, str]:
    """What must be set before torch is imported. threads: of each worker."""
    return {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
