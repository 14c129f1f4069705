"""A process that workers are forked from: single-threaded, and below it is all that they ever started.

It ends with its agent, and kills whatever is below it then; its workers end with it.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import NoReturn, Protocol

from convoy.gang.workers.fork_messages import MOST_BYTES, MOST_FILES, Ended, Fork, Forked, NotForked, Ready, Report
from convoy.gang.workers.prctl import adopt_orphans, set_name, signal_at_end_of_parent
from convoy.gang.workers.process_tree import kill_below

IDLE_SECONDS = 3.0
"""Without a request for so long, what is needed late is imported: no worker's start waits for it."""


class Body(Protocol):
    """What the workers are."""

    def prepare(self) -> None:
        """Import what every worker needs. Makes no thread and opens no GPU: neither survives a fork."""

    def prepare_more(self) -> None:
        """Import what workers need some time after their start."""

    def run(self, assignment: bytes, listener: int | None) -> int:
        """A worker's whole life; its exit code. listener: file descriptor of rank 0's listening socket."""


def serve(agent: int, channel: socket.socket, body: Body) -> NoReturn:
    """Fork a worker for each request. agent: the process that started this one, and holds the channel's other end."""
    began = time.perf_counter()
    _end_with(agent)
    adopt_orphans()
    gc.disable()  # until all is there: what is freed before would leave holes for workers to write to
    body.prepare()
    gc.freeze()
    _Server(channel, body).serve(Ready(seconds=time.perf_counter() - began))


def _end_with(agent: int) -> None:
    """End when the agent does, and by nothing else: it decides what a signal to its workers means."""

    def look(*_: object) -> None:
        if os.getppid() != agent:  # else a thread of its ended, the one that started this process
            kill_below(os.getpid())
            os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, look)
    signal_at_end_of_parent(signal.SIGHUP)
    look()


class _Server:
    def __init__(self, channel: socket.socket, body: Body) -> None:
        self._channel = channel
        self._body = body
        self._pid = os.getpid()
        self._workers: dict[int, int] = {}
        """Number of the request of each that runs, by pid."""
        self._child_ended, self._ended = socket.socketpair()
        for end in (self._child_ended, self._ended):
            end.setblocking(False)

    def serve(self, ready: Ready) -> NoReturn:
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the next line's file tells of it
        signal.set_wakeup_fd(self._ended.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._child_ended, select.POLLIN)
        self._tell(ready)
        idle = True
        while True:
            events = poll.poll(IDLE_SECONDS * 1000 if idle else None)
            if not events and idle:
                idle = False
                self._body.prepare_more()
                gc.freeze()
            # Ends first: an exit is told before a request that came after it is served.
            self._reap()
            if any(file == self._channel.fileno() for file, _ in events):
                self._serve_one()

    def _serve_one(self) -> None:
        try:
            packet, files, _, _ = socket.recv_fds(self._channel, MOST_BYTES, MOST_FILES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            packet, files = b"", []
        if not packet:  # the agent closed it
            kill_below(self._pid)
            os._exit(0)
        try:
            self._fork(Fork.model_validate_json(packet), files)
        finally:
            for file in files:
                os.close(file)

    def _fork(self, request: Fork, files: list[int]) -> None:
        try:
            if len(files) < 2:
                raise OSError("too many open files")
            sys.stdout.flush()  # or each fork would say it again
            pid = os.fork()
        except OSError as error:
            self._tell(NotForked(worker=request.worker, error=str(error)))
            return
        if pid == 0:
            self._become(request, files)
        self._workers[pid] = request.worker
        self._tell(Forked(worker=request.worker, pid=pid))

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._child_ended.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                worker = self._workers.pop(pid, None)
                if worker is not None:  # else it is what a worker left behind
                    self._tell(Ended(worker=worker, exit_code=os.waitstatus_to_exitcode(status)))

    def _tell(self, report: Report) -> None:
        with contextlib.suppress(OSError):  # the agent is gone, which is seen when it is read
            self._channel.send(report.model_dump_json().encode())

    def _become(self, request: Fork, files: list[int]) -> NoReturn:
        """Be the worker."""
        code = 1
        try:
            self._leave(request)
            task, output, *listener = files
            with open(task, "rb", closefd=False) as file:
                assignment = file.read()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(task)
            os.close(output)
            code = self._body.run(assignment, listener[0] if listener else None)
        except SystemExit as error:
            code = _code_of(error)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            # Peers may be gone, and then interpreter shutdown waits for process groups that cannot close.
            os._exit(code)

    def _leave(self, request: Fork) -> None:
        """Undo what is the server's own."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal_at_end_of_parent(signal.SIGKILL)
        if os.getppid() != self._pid:  # it ended before the kernel knew that we go with it
            os._exit(1)
        os.setsid()
        set_name(request.name)
        for own in (self._channel, self._child_ended, self._ended):
            own.close()
        os.environ.update(request.environment)
        gc.enable()


def _code_of(error: SystemExit) -> int:
    """As the interpreter takes it."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1
