"""Rank workers as processes: started with their assignment, watched, and never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convoy.events.types import WorkerExited
from convoy.gang.assignment import Assignment

_TAIL_LINES = 20
_TAIL_BYTES = 16_384


@dataclass
class Worker:
    """One running rank."""

    rank: int
    process: subprocess.Popen[bytes]
    log: Path
    reason: Path


def start_worker(assignment: Assignment, log: Path) -> Worker:
    """Start a rank. Its output goes to `log`; it dies when this process does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    place = assignment.place
    inherited = () if assignment.listen_fd is None else (assignment.listen_fd,)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "convoy.training.worker"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_environment(assignment)},
            pass_fds=inherited,
            start_new_session=True,  # its own process group, so that its whole tree can be killed
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; its exit code tells
        process.stdin.write(assignment.model_dump_json().encode())
        process.stdin.close()
    return Worker(place.rank, process, log, Path(assignment.reason_path))


def first_exit(workers: Sequence[Worker]) -> WorkerExited | None:
    """The event for a worker that ended otherwise than with success, if there is one."""
    failed = [w for w in workers if w.process.poll() not in (None, 0)]
    # A worker killed by a signal did not fail because of its peers; they may have failed because of it.
    failed.sort(key=lambda w: w.process.returncode >= 0)
    return _exit_event(failed[0]) if failed else None


def all_done(workers: Sequence[Worker]) -> bool:
    return all(w.process.poll() == 0 for w in workers)


def stop_workers(workers: Sequence[Worker], grace_seconds: float = 0.0) -> None:
    """Kill what still runs, with everything it started, and reap it."""
    if grace_seconds:
        _signal_all(workers, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and any(w.process.poll() is None for w in workers):
            time.sleep(0.02)
    _signal_all(workers, signal.SIGKILL)
    for worker in workers:
        worker.process.wait()


def _signal_all(workers: Sequence[Worker], number: signal.Signals) -> None:
    for worker in workers:
        if worker.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, number)


def _exit_event(worker: Worker) -> WorkerExited:
    code = worker.process.returncode
    number = -code if code < 0 else None
    return WorkerExited(
        worker=worker.rank,
        exit_code=code if number is None else None,
        signal=None if number is None else signal.Signals(number).name,
        reason=worker.reason.read_text().strip() if worker.reason.exists() else "",
        log_tail=log_tail(worker.log),
    )


def log_tail(log: Path) -> str:
    """The last lines a worker printed."""
    with open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _environment(assignment: Assignment) -> dict[str, str]:
    """What must be set before torch is imported."""
    return {
        "OMP_NUM_THREADS": str(assignment.place.threads),
        "LOCAL_RANK": str(assignment.place.local_rank),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
