"""Rank workers as their agent sees them: how each ended, the line and the event that say why, and what it printed."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from convoy.gang.async_call import BackgroundCall
from convoy.gang.workers.processes import State, state_of
from convoy.job.events.registry import WorkerExited
from convoy.job.rank_logs import LOGS
from convoy.storage import Store, StoreUnavailable

_TAIL_LINES = 20
_LINES_BEFORE_CRASH = 4
_TAIL_BYTES = 16_384
_REASON_CHARACTERS = 2_000
"""The reason goes into messages between agents, which have a limit, and into a title."""


UPLOAD_SECONDS = 15.0

SMALL_BYTES = 8 * 2**20
"""A larger log is uploaded again only when it has grown by a quarter: each upload is of the whole log."""

LAST_SECONDS = 60.0
"""For the last upload, when the agent leaves."""


@dataclass
class Worker:
    """One rank's process. Each query brings what is known of it up to date, and nothing waits."""

    rank: int
    log: Path
    reason: Path
    """Where it leaves one line on why it failed."""
    refresh: Callable[[], object]
    """Takes in the newest reports about the workers."""
    reported_pid: int | None = None
    reported_code: int | None = None
    fate: str = ""
    """Why it ended, or never started, where it could not report that itself."""

    @property
    def pid(self) -> int | None:
        """None: it is not forked yet, or never will be. It may be another process's once `exit_code` is not None."""
        self.refresh()
        return self.reported_pid

    def exit_code(self) -> int | None:
        """Minus the signal's number if it was ended by one; None while it runs, or is not forked yet."""
        self.refresh()
        return self.reported_code

    def state(self) -> State:
        """The kernel's state of the process; also "running" before it is forked."""
        if self.exit_code() is not None:
            return "gone"
        return "running" if self.reported_pid is None else state_of(self.reported_pid)


def exit_event(worker: Worker) -> WorkerExited:
    """How a worker ended, with its reason and last lines. Reads its log, which may be in the store."""
    left = worker.reason.read_text().strip() if worker.reason.exists() else ""
    ended = exit_event_without_log(worker)
    tail = log_tail(worker.log, crashed=ended.signal is not None)
    return ended.model_copy(update={"reason": (ended.reason or left)[:_REASON_CHARACTERS], "log_tail": tail})


def exit_event_without_log(worker: Worker) -> WorkerExited:
    """The same without reading any file."""
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
    return {s.value: s.name for s in signal.Signals}.get(number, f"signal {number}")


def log_tail(log: Path, *, crashed: bool = False) -> str:
    """The last lines of a log. crashed: a signal ended its process; those where its stack begins, if it left one."""
    with open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = text.splitlines()
    crashes = [i for i, line in enumerate(lines) if crashed and line.startswith("Fatal Python error")]
    first = max(0, min([len(lines) - _TAIL_LINES, *(i - _LINES_BEFORE_CRASH for i in crashes[-1:])]))
    return "\n".join(lines[first : first + _TAIL_LINES])


def shared_environment(threads: int) -> dict[str, str]:
    """What must be set before torch is imported, the same for all workers. threads: of each."""
    return {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


def write_reason(file: Path, text: str) -> None:
    """In a worker: leave the line on why it failed. text: may hold what no file can, such as half a surrogate pair."""
    file.write_text(text, errors="backslashreplace")


def error_line(error: BaseException) -> str:
    """The error's type, and the first line of its text."""
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: object) -> str:
    """Of its text; empty if there is none, or a user's `__str__` fails."""
    with contextlib.suppress(Exception):
        return next(iter(str(error).strip().splitlines()), "")
    return ""


class LogUpload:
    """Uploads what workers print to a root that takes no growing files: repeatedly while they run, and at the end. Use
    as a context that is left when no worker prints any more."""

    def __init__(self, store: Store, folder: Path, upload_seconds: float = UPLOAD_SECONDS) -> None:
        """folder: on this machine, with the logs under their names in the job's root."""
        self._store = store
        self._folder = folder
        self._upload_seconds = upload_seconds
        self._uploaded: dict[str, int] = {}
        """Bytes of each log in the root."""
        self._left = threading.Event()
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> "LogUpload":
        threading.Thread(target=self._upload_periodically, name="the workers' output", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        with contextlib.suppress(StoreUnavailable):  # a failed last step must not hide how the gang ended
            BackgroundCall("the workers' output", lambda: self._upload(least_growth_share=0.0), LAST_SECONDS).result()

    def _upload_periodically(self) -> None:
        while not self._left.wait(self._upload_seconds):
            with contextlib.suppress(StoreUnavailable):  # the next upload tries again
                self._upload(least_growth_share=0.25)

    def _upload(self, least_growth_share: float) -> None:
        """Upload the logs that have grown, large ones by at least that share. Raises StoreUnavailable."""
        with self._one_at_a_time:
            for path in sorted((self._folder / LOGS).rglob("*.log")):
                name = path.relative_to(self._folder).as_posix()
                uploaded = self._uploaded.get(name, -1)
                grown = path.stat().st_size - uploaded
                if grown > (least_growth_share * uploaded if uploaded > SMALL_BYTES else 0):
                    data = path.read_bytes()
                    self._store.write(name, data)
                    self._uploaded[name] = len(data)
