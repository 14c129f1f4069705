"""A process that workers are forked from: single-threaded, and everything they ever start is below it.

It ends with its agent, killing whatever is below it then; its workers end with it. Agent and process exchange one
packet per message. A request comes with open files: the assignment as JSON, the worker's log, and for rank 0 its
listening socket.
"""

import contextlib
import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import traceback
from typing import NoReturn, Protocol

from pydantic import BaseModel

from convoy.gang.workers.processes import adopt_orphans, kill_below, set_process_name, signal_at_end_of_parent

IDLE_SECONDS = 3.0
"""After this long without a request, modules that are needed late are imported: no worker's start waits for them."""

MAX_BYTES = 65_536
"""Limit of a packet. Assignments may be longer, too long for a socket to accept: they are passed as files."""

MAX_FILES = 3


class ForkRequest(BaseModel, frozen=True):
    """Start a worker."""

    worker: int
    """Number of the request; the reports about this worker carry it."""
    rank: int
    local_rank: int


class WorkerReport(BaseModel, frozen=True):
    """What became of a request; without one: everything is imported."""

    worker: int | None = None
    """Number of the request."""
    pid: int | None = None
    """The worker is forked."""
    error: str = ""
    """It is not: there is no memory, or there are too many processes."""
    exit_code: int | None = None
    """It is reaped, and its pid may be another process's from now on. Negative: a signal's number."""


class WorkerBody(Protocol):
    """What the workers run."""

    def import_modules(self) -> None:
        """Import what every worker needs. Creates no thread and opens no GPU: neither survives a fork."""

    def import_late_modules(self) -> None:
        """Import what workers need some time after their start."""

    def run(self, assignment: bytes, listener: int | None) -> int:
        """A worker's whole life; its exit code. listener: file descriptor of rank 0's listening socket."""


def serve(agent_pid: int, channel: socket.socket, body: WorkerBody) -> NoReturn:
    """Fork a worker for each request. agent_pid: of the process that started this one, at the channel's other end."""
    _exit_on_agent_death(agent_pid)
    adopt_orphans()
    gc.disable()  # until everything is imported: objects freed before would leave holes for workers to write to
    body.import_modules()
    gc.freeze()
    _ForkServer(channel, body).serve()


def _exit_on_agent_death(agent_pid: int) -> None:
    """End when the agent does, and by nothing else: the agent decides what a signal to its workers means."""

    def end_if_orphaned(*_: object) -> None:
        if os.getppid() != agent_pid:  # else only the agent's thread that started this process has ended
            kill_below(os.getpid())
            os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, end_if_orphaned)
    signal_at_end_of_parent(signal.SIGHUP)
    end_if_orphaned()


class _ForkServer:
    def __init__(self, channel: socket.socket, body: WorkerBody) -> None:
        self._channel = channel
        self._body = body
        self._pid = os.getpid()
        self._workers: dict[int, int] = {}
        """Number of the request of each that runs, by pid."""
        self._child_ended, self._wakeup = socket.socketpair()
        for end in (self._child_ended, self._wakeup):
            end.setblocking(False)

    def serve(self) -> NoReturn:
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the next line's file reports it
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._child_ended, select.POLLIN)
        self._report(WorkerReport())
        idle = True
        while True:
            events = poll.poll(IDLE_SECONDS * 1000 if idle else None)
            if not events and idle:
                idle = False
                self._body.import_late_modules()
                gc.freeze()
            # Exits first: an exit is reported before a request that came after it is served.
            self._report_exits()
            if any(file == self._channel.fileno() for file, _ in events):
                self._serve_request()

    def _serve_request(self) -> None:
        try:
            packet, files, _, _ = socket.recv_fds(self._channel, MAX_BYTES, MAX_FILES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            packet, files = b"", []
        if not packet:  # the agent closed it
            kill_below(self._pid)
            os._exit(0)
        try:
            self._fork(ForkRequest.model_validate_json(packet), files)
        finally:
            for file in files:
                os.close(file)

    def _fork(self, request: ForkRequest, files: list[int]) -> None:
        try:
            if len(files) < 2:
                raise OSError("too many open files")
            sys.stdout.flush()  # or each fork would print it again
            pid = os.fork()
        except OSError as error:
            self._report(WorkerReport(worker=request.worker, error=str(error)))
            return
        if pid == 0:
            self._become_worker(request, files)
        self._workers[pid] = request.worker
        self._report(WorkerReport(worker=request.worker, pid=pid))

    def _report_exits(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._child_ended.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                worker = self._workers.pop(pid, None)
                if worker is not None:  # else it is an orphan of a worker
                    self._report(WorkerReport(worker=worker, exit_code=os.waitstatus_to_exitcode(status)))

    def _report(self, report: WorkerReport) -> None:
        with contextlib.suppress(OSError):  # the agent is gone, which is noticed at the next read
            self._channel.send(report.model_dump_json().encode())

    def _become_worker(self, request: ForkRequest, files: list[int]) -> NoReturn:
        """Be the worker."""
        code = 1
        try:
            self._prepare_worker(request)
            task, output, *listener = files
            with open(task, "rb", closefd=False) as file:
                assignment = file.read()
            os.dup2(output, 1)
            os.dup2(output, 2)
            faulthandler.enable(all_threads=False)  # the stack of a crash in native code goes to the worker's log
            os.close(task)
            os.close(output)
            code = self._body.run(assignment, listener[0] if listener else None)
        except SystemExit as error:
            code = _exit_code_of(error)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            # Peers may be gone, and then interpreter shutdown waits for process groups that cannot close.
            os._exit(code)

    def _prepare_worker(self, request: ForkRequest) -> None:
        """In the worker: undo what belongs to the server alone."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal_at_end_of_parent(signal.SIGKILL)
        if os.getppid() != self._pid:  # it ended before the kernel knew that this process ends with it
            os._exit(1)
        os.setsid()
        set_process_name(f"convoy rank {request.rank}")
        for own in (self._channel, self._child_ended, self._wakeup):
            own.close()
        os.environ["LOCAL_RANK"] = str(request.local_rank)
        gc.enable()


def _exit_code_of(error: SystemExit) -> int:
    """The exit code that the interpreter would use."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1
