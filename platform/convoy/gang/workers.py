"""Rank workers as processes: started with their assignment, watched, and never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convoy.events.types import WorkerExited
from convoy.gang.assignment import STOPPED, Assignment

_TAIL_LINES = 20
_TAIL_BYTES = 16_384


@dataclass
class Worker:
    """One rank's process."""

    rank: int
    process: subprocess.Popen[bytes]
    log: Path
    reason: Path

    def exit_code(self) -> int | None:
        """How it ended: minus the signal's number if by one; None while it runs.

        The process is not reaped: until `stop_workers` its number is its own, and so is that of its process group.
        """
        if self.process.returncode is not None:
            return self.process.returncode
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


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
    codes = [(code, worker) for worker in workers if (code := worker.exit_code()) not in (None, 0, STOPPED)]
    # A worker killed by a signal did not fail because of its peers; they may have failed because of it.
    codes.sort(key=lambda pair: pair[0] is not None and pair[0] >= 0)
    return _exit_event(codes[0][1]) if codes else None


def all_done(workers: Sequence[Worker]) -> bool:
    """Whether all have ended with success, at the last step or where they agreed to stop."""
    return all(worker.exit_code() in (0, STOPPED) for worker in workers)


def stop_workers(workers: Sequence[Worker]) -> None:
    """Kill what still runs, with everything that any of them started, and reap it."""
    for worker in workers:
        if worker.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
    for worker in workers:
        worker.process.wait()


def _exit_event(worker: Worker) -> WorkerExited:
    code = worker.exit_code()
    assert code is not None
    number = -code if code < 0 else None
    return WorkerExited(
        worker=worker.rank,
        exit_code=code if number is None else None,
        signal=None if number is None else _signal_name(number),
        reason=worker.reason.read_text().strip() if worker.reason.exists() else "",
        log_tail=log_tail(worker.log),
    )


def _signal_name(number: int) -> str:
    known = {s.value: s.name for s in signal.Signals}
    return known.get(number, f"signal {number}")


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
