"""The agent's side of the process that its workers are forked from, which has imported everything that they need.

That process (`gang/workers/fork_server.py`) adopts what its workers leave behind: all that was ever started is below
it.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from convoy.config.notify import TARGET
from convoy.gang.task import Assignment
from convoy.gang.workers.fork_server import MAX_BYTES, ForkRequest, WorkerReport
from convoy.gang.workers.processes import TAG, kill_below, kill_tagged, new_tag
from convoy.gang.workers.worker import Worker, log_tail, signal_name

TRAINING = "convoy.training.workers.train"
SCRIPTS = "convoy.training.workers.script"

END_SECONDS = 1.0
"""For a process whose channel has ended to end itself."""


@dataclass
class _ServerProcess:
    """One process that forks workers."""

    popen: "subprocess.Popen[bytes]"
    channel: socket.socket
    tag: str
    ready: bool = False


class Prefork:
    """Starts workers within milliseconds. Use as a context, in one thread: leaving it leaves no process behind.

    A process that dies takes its workers with it and is replaced, unless two in a row died before they were ready.
    """

    def __init__(self, environment: Mapping[str, str], log: Path, module: str = TRAINING) -> None:
        """environment: added to this process's. log: what the process itself prints. module: its entry point."""
        self._environment = environment
        self._log = log
        self._module = module
        self._process: _ServerProcess | None = None
        self._requests = 0
        self._open: dict[int, Worker] = {}
        """Workers whose end was not reported yet, by the number of their request."""
        self._has_news = False
        """A report was taken in since the last `wait_for_report`, by any query."""
        self._unready = 0
        """Number of processes in a row that died before they were ready."""
        self._broken = "the process that workers are forked from was not started"

    def __enter__(self) -> "Prefork":
        self._start_server()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self, assignment: Assignment, log: Path) -> Worker:
        """Start a rank; its output goes to `log`, and it dies when this process does. Does not wait: a worker that
        cannot be started has ended for that reason. Raises OSError if the log cannot be created."""
        self.take_reports()
        worker = Worker(assignment.place.rank, log, Path(assignment.reason_path), self.take_reports)
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output, open(os.memfd_create("assignment"), "w+b") as task:
            task.write(assignment.model_dump_json().encode())
            task.seek(0)
            if self._process is None:
                worker.reported_code, worker.fate, self._has_news = 1, self._broken, True
                return worker
            self._requests += 1
            self._open[self._requests] = worker
            place, listener = assignment.place, assignment.listen_fd
            request = ForkRequest(worker=self._requests, rank=place.rank, local_rank=place.local_rank)
            files = [task.fileno(), output.fileno(), *(() if listener is None else (listener,))]
            try:
                socket.send_fds(self._process.channel, [request.model_dump_json().encode()], files)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has died, which is noticed at the next read
            except OSError as error:
                self._take_report(self._process, WorkerReport(worker=self._requests, error=str(error)))
        return worker

    def wait_for_report(self, seconds: float) -> None:
        """Wait until a worker was reported on, such as its end, since the last call; at most `seconds`."""
        if self._process is None and not self._has_news:
            time.sleep(seconds)
        elif self._process is not None and not self._has_news:
            poll = select.poll()
            poll.register(self._process.channel, select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)
            self.take_reports()
        self._has_news = False

    def take_reports(self) -> None:
        """Take in the reports so far. Never waits, except where the process died."""
        while (process := self._process) is not None:
            try:
                packet = process.channel.recv(MAX_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:  # comes before the last packets
                continue
            if packet:
                self._take_report(process, WorkerReport.model_validate_json(packet))
            else:
                self._on_server_death(process)

    def kill_workers(self) -> set[int]:
        """Kill all workers with everything that any of them started; more can be forked at once.

        Returns those still alive after KILL_SECONDS, which hang in the kernel.
        """
        process = self._process
        if process is None:
            return set()
        left = kill_below(process.popen.pid)
        self.take_reports()
        if self._process is process and any(worker.reported_pid is None for worker in self._open.values()):
            left |= self._end_server(process)  # or it would still serve the request
            self._replace_server()
        self._record_unreported_ends()
        return left

    def close(self) -> set[int]:
        """As `kill_workers`, and end the process too."""
        self.take_reports()
        process = self._process
        if process is None:
            return set()
        self._broken = "the process that workers are forked from was ended"
        left = kill_below(process.popen.pid)
        self.take_reports()
        if self._process is not None:  # or its replacement, where it has just died
            left |= self._end_server(self._process)
        self._record_unreported_ends()
        return left

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tag = new_tag()
        try:
            with theirs, open(self._log, "ab") as output:
                popen = subprocess.Popen(
                    [sys.executable, "-m", self._module, str(os.getpid()), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**_environment_for_workers(), **self._environment, TAG: tag},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # signals to this process's group are for this process to judge
                )
        except BaseException:
            ours.close()
            raise
        self._process = _ServerProcess(popen, ours, tag)

    def _take_report(self, process: _ServerProcess, report: WorkerReport) -> None:
        self._has_news = True
        if report.worker is None:
            process.ready, self._unready = True, 0
            return
        worker = self._open.get(report.worker)
        if worker is None:  # it was stopped
            return
        if report.pid is not None:
            worker.reported_pid = report.pid
            return
        worker.reported_code, worker.fate = report.exit_code, ""
        if report.error:
            worker.reported_code, worker.fate = 1, f"it could not be forked: {report.error}"
        del self._open[report.worker]

    def _on_server_death(self, process: _ServerProcess) -> None:
        self._broken = f"the process that workers are forked from {self._ending_text(process.popen)}"
        self._end_server(process)
        self._record_unreported_ends(self._broken)
        self._unready += not process.ready
        if self._unready < 2:
            self._replace_server()

    def _ending_text(self, popen: "subprocess.Popen[bytes]") -> str:
        """How the process ended after it closed its channel."""
        try:
            code = popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "hung"
        if code < 0:
            return f"was killed by {signal_name(-code)}"
        lines = log_tail(self._log).splitlines()
        return f"exited with code {code}" + (f": {lines[-1]}" if lines else "")

    def _replace_server(self) -> None:
        try:
            self._start_server()
        except OSError as error:
            self._broken = f"the process that workers are forked from cannot be started: {error}"

    def _end_server(self, process: _ServerProcess) -> set[int]:
        """End the process and all that is, or was, below it; what cannot be killed."""
        self._process = None
        process.popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.popen.wait(END_SECONDS)
        process.channel.close()
        return kill_tagged(process.tag)

    def _record_unreported_ends(self, fate: str = "") -> None:
        """Record the end of workers whose end was not reported: they were killed, or never started."""
        self._has_news = True
        for worker in self._open.values():
            worker.reported_code = 1 if fate and worker.reported_pid is None else -signal.SIGKILL
            worker.fate = fate
        self._open.clear()


def _environment_for_workers() -> dict[str, str]:
    """This process's, without the target of notifications: it holds passwords, and a script may print what it has."""
    return {name: value for name, value in os.environ.items() if name != TARGET}
