"""The agent's side of the process that its workers are forked from, which has imported all that they need.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from convoy.gang.assignment import Assignment
from convoy.gang.workers.fork_messages import MOST_BYTES, REPORTS, Ended, Fork, Forked, NotForked, Ready, Report
from convoy.gang.workers.process_tree import MARKER, kill_below, kill_marked, new_marker
from convoy.gang.workers.worker import Worker, environment_of, log_tail, signal_name

TRAINING = "convoy.training.workers.train_preload"
SCRIPTS = "convoy.training.workers.script_preload"

END_SECONDS = 1.0
"""For a process whose channel has ended to end itself."""


@dataclass
class _Process:
    """One process that forks workers."""

    popen: "subprocess.Popen[bytes]"
    channel: socket.socket
    marker: str
    ready: bool = False


class Warm:
    """Starts workers within milliseconds. Use as a context, in one thread: leaving it leaves no process behind.

    A process that dies takes its workers with it and is replaced, unless two in a row died before they were ready.
    """

    def __init__(self, environment: Mapping[str, str], log: Path, module: str = TRAINING) -> None:
        """environment: added to this process's. log: what the process itself prints. module: its entry point."""
        self._environment = environment
        self._log = log
        self._module = module
        self._process: _Process | None = None
        self._asked = 0
        self._open: dict[int, Worker] = {}
        """Workers of which the end is not known, by the number of their request."""
        self._news = False
        """Something was taken in since the last `wait`, by whichever question."""
        self._unready = 0
        """So many processes in a row died before they were ready."""
        self._broken = "the process that workers are forked from was not started"

    def __enter__(self) -> "Warm":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self, assignment: Assignment, log: Path) -> Worker:
        """Have a rank started; its output goes to `log`, and it dies when this process does. Does not wait: where
        it cannot be started, that is how it ended. Raises OSError if there is no log."""
        self.take_in()
        worker = Worker(assignment.place.rank, log, Path(assignment.reason_path), self.take_in)
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output, _in_memory(assignment.model_dump_json().encode()) as task:
            if self._process is None:
                worker.known_code, worker.fate, self._news = 1, self._broken, True
                return worker
            self._asked += 1
            self._open[self._asked] = worker
            name, listener = f"convoy rank {worker.rank}", assignment.listen_fd
            request = Fork(worker=self._asked, name=name, environment=environment_of(assignment))
            files = [task, output.fileno(), *(() if listener is None else (listener,))]
            try:
                socket.send_fds(self._process.channel, [request.model_dump_json().encode()], files)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has died, which is seen when it is read
            except OSError as error:
                self._note(self._process, NotForked(worker=self._asked, error=str(error)))
        return worker

    def wait(self, seconds: float) -> None:
        """Until something was told of a worker, such as its end, since the last call; at most so long."""
        if self._process is None and not self._news:
            time.sleep(seconds)
        elif self._process is not None and not self._news:
            poll = select.poll()
            poll.register(self._process.channel, select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)
            self.take_in()
        self._news = False

    def take_in(self) -> None:
        """Learn what was told by now. Never waits, but where the process died."""
        while (process := self._process) is not None:
            try:
                packet = process.channel.recv(MOST_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:  # comes before the last packets
                continue
            if packet:
                self._note(process, REPORTS.validate_json(packet))
            else:
                self._died(process)

    def stop(self) -> set[int]:
        """Kill all workers with everything that any of them started; more can be forked at once.

        What still lives after KILL_SECONDS: it hangs in the kernel.
        """
        process = self._process
        if process is None:
            return set()
        left = kill_below(process.popen.pid)
        self.take_in()
        if self._process is process and any(worker.known_pid is None for worker in self._open.values()):
            left |= self._end(process)  # or it would still fork what it was asked for
            self._replace()
        self._settle()
        return left

    def close(self) -> set[int]:
        """As `stop`, and end the process too."""
        self.take_in()
        process = self._process
        if process is None:
            return set()
        self._broken = "the process that workers are forked from was ended"
        left = kill_below(process.popen.pid)
        self.take_in()
        left |= self._end(process)
        self._settle()
        return left

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        marker = new_marker()
        try:
            with theirs, open(self._log, "ab") as output:
                popen = subprocess.Popen(
                    [sys.executable, "-m", self._module, str(os.getpid()), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._environment, MARKER: marker},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # what is sent to this process's group is for this process to judge
                )
        except BaseException:
            ours.close()
            raise
        self._process = _Process(popen, ours, marker)

    def _note(self, process: _Process, report: Report) -> None:
        self._news = True
        if isinstance(report, Ready):
            process.ready, self._unready = True, 0
            return
        worker = self._open.get(report.worker)
        if worker is None:  # it was stopped
            return
        match report:
            case Forked():
                worker.known_pid = report.pid
            case NotForked():
                worker.known_code, worker.fate = 1, f"it could not be forked: {report.error}"
            case Ended():
                worker.known_code = report.exit_code
        if worker.known_code is not None:
            del self._open[report.worker]

    def _died(self, process: _Process) -> None:
        self._broken = f"the process that workers are forked from {self._how(process.popen)}"
        self._end(process)
        self._settle(self._broken)
        self._unready += not process.ready
        if self._unready < 2:
            self._replace()

    def _how(self, popen: "subprocess.Popen[bytes]") -> str:
        """How the process ended, that has let go of its channel."""
        try:
            code = popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "hung"
        if code < 0:
            return f"was killed by {signal_name(-code)}"
        said = log_tail(self._log).splitlines()
        return f"exited with code {code}" + (f": {said[-1]}" if said else "")

    def _replace(self) -> None:
        try:
            self._start()
        except OSError as error:
            self._broken = f"the process that workers are forked from cannot be started: {error}"

    def _end(self, process: _Process) -> set[int]:
        """End the process and what is left below it, or was; what cannot be killed."""
        self._process = None
        process.popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.popen.wait(END_SECONDS)
        process.channel.close()
        return kill_marked(process.marker)

    def _settle(self, fate: str = "") -> None:
        """Of what is not known to have ended: it was killed, or never came to be."""
        self._news = True
        for worker in self._open.values():
            worker.known_code = 1 if fate and worker.known_pid is None else -signal.SIGKILL
            worker.fate = fate
        self._open.clear()


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[int]:
    """A file that holds the data, to be read from its start."""
    file = os.memfd_create("assignment", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(data)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)
