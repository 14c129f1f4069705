"""The writer process of a rank: `python -m convoy.checkpoint.writer PARENT_PID`. Imports no torch.

It reads requests from standard input and writes reports to standard output, one JSON line each; the first line it
reads is its WriterSetup. A write that arrives while another is under way gives that one up as soon as may be.
"""

import contextlib
import functools
import mmap
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from convoy.checkpoint.commits import check_mounted, create_commit
from convoy.checkpoint.messages import (
    REQUESTS,
    URGENT,
    Close,
    Committed,
    PartWritten,
    Ready,
    Report,
    RequestsSent,
    SaveFailed,
    SetLayout,
    WritePart,
    WriterSetup,
)
from convoy.checkpoint.writer.coordinator import SupersededError, WriterFailedError, assemble_commit
from convoy.checkpoint.writer.inbox import Inbox
from convoy.checkpoint.writer.parts import AbandonCheck, AbandonedError, Pace, part_pace, write_failure_note, write_part
from convoy.checkpoint.writer.tiers import Tiers
from convoy.config.errors import one_line
from convoy.storage import Store
from convoy.storage.usage import request_counter

READY_SECONDS = 20.0
"""A tier that has not proven itself by then does not hold up the others."""

NICENESS = 19
"""Niceness where the system knows no idle class."""


class Writer:
    """Writes parts, and as the coordinator commits."""

    def __init__(self, setup: WriterSetup, tiers: Tiers, inbox: Inbox, report: Callable[[Report], None]) -> None:
        self._setup = setup
        self._tiers = tiers
        self._inbox = inbox
        self._report = report
        self._layout = SetLayout(shards=[], file_bytes=[])
        self._buffers = MappedBuffers()

    def run(self) -> None:
        """Serve the inbox until it says Close."""
        while True:
            received = self._inbox.next_request()
            match received.request:
                case SetLayout():
                    self._layout = received.request
                    self._buffers.forget()
                case WritePart():
                    self._serve_write(received.request, received.at)
                    self._inbox.end_write()
                case Close():
                    return

    def _serve_write(self, request: WritePart, received_at: float) -> None:
        deadline = received_at + request.deadline_seconds

        def raise_if_over() -> None:
            if time.monotonic() > deadline:
                raise AbandonedError(f"not committed within {request.deadline_seconds:g} s")
            if self._inbox.wait_for_write(0):
                raise AbandonedError("the gang gave it up")

        try:
            store = self._write_part(request, received_at, raise_if_over)
            if request.draft is None:
                return
            pause = self._inbox.wait_for_write
            commit = assemble_commit(store, self._tiers.root(), request, check=raise_if_over, sleep=pause)
        except Exception as error:
            self._report_failure(request, error)
            if request.draft is not None and not isinstance(error, SupersededError):
                # Nobody else could have made this attempt's commit: none will ever come.
                self._inbox.note_abandoned(request.attempt, request.tier, request.generation)
            return
        try:
            commit = create_commit(store, commit)
            self._report(Committed(attempt=request.attempt, commit=commit, seconds=time.monotonic() - received_at))
        except Exception as error:
            self._report_failure(request, error)

    def _write_part(self, request: WritePart, received_at: float, check: AbandonCheck) -> Store:
        """Write the part; where it is now."""
        left = received_at + request.deadline_seconds - time.monotonic()
        store = self._tiers.store(request.tier, left)
        check_mounted(store, request.generation)
        data = self._buffers.map_file(request.buffer)
        hurried = functools.partial(self._inbox.wait_for_hurry, request.attempt)
        pace = Pace(part_pace(self._setup.bytes_per_second, len(data)), sleep=hurried)
        record = write_part(store, request, self._layout, data, self._setup.threads, check=check, pace=pace)
        written, took = sum(file.bytes for file in record.files), time.monotonic() - received_at
        self._report(PartWritten(attempt=request.attempt, bytes=written, seconds=took))
        return store

    def _report_failure(self, request: WritePart, error: Exception) -> None:
        superseded, reason = isinstance(error, SupersededError), one_line(error)
        self._report(SaveFailed(attempt=request.attempt, error=reason, superseded=superseded))
        if not isinstance(error, WriterFailedError):  # which is there for all to read
            self._leave_failure_note(request, reason)

    def _leave_failure_note(self, request: WritePart, reason: str) -> None:
        """Leave word in the store, for the coordinator, and from it for those who wait for its commit.

        In a thread that may hang where the store does: the next attempt must not wait for it.
        """

        def leave_note() -> None:
            with contextlib.suppress(Exception):
                store = self._tiers.store(request.tier, 0)
                check_mounted(store, request.generation)  # nothing is written to a bare mount point
                write_failure_note(store, request, f"writer {request.writer}: {reason}")

        threading.Thread(target=leave_note, name="abort", daemon=True).start()


class MappedBuffers:
    """Staged bytes, mapped once for as long as the layout stays."""

    def __init__(self) -> None:
        self._maps: dict[tuple[str, int, int], mmap.mmap] = {}

    def map_file(self, path: str) -> memoryview:
        """The bytes of the file. Raises OSError, ValueError if it is empty."""
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                return memoryview(b"")
            key = (path, status.st_ino, status.st_size)
            if key not in self._maps:
                # A buffer that was replaced is no file any more: kept mapped, its memory would never be freed.
                self._maps = {key: mapped for key, mapped in self._maps.items() if Path(key[0]).exists()}
                self._maps[key] = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        return memoryview(self._maps[key])

    def forget(self) -> None:
        """Let go of the mappings; views that are still in use keep theirs."""
        self._maps.clear()


def main() -> None:
    reports = _private_stdout()
    _bind_to_parent(int(sys.argv[1]))
    if URGENT not in sys.argv[2:]:
        _lower_priority()
    setup = WriterSetup.model_validate_json(sys.stdin.buffer.readline())
    lock = threading.Lock()

    def report(message: Report) -> None:
        requests = request_counter().take()
        messages = [message, *([RequestsSent(requests=requests)] if requests else [])]
        lines = b"".join(each.model_dump_json().encode() + b"\n" for each in messages)
        with lock:
            reports.write(lines)
            reports.flush()

    tiers, inbox = Tiers(setup.tiers, setup.store), Inbox()

    def report_ready() -> None:
        tiers.wait_until_proven(READY_SECONDS)
        report(Ready())

    threading.Thread(target=_receive_requests, args=(inbox,), name="requests", daemon=True).start()
    threading.Thread(target=report_ready, name="ready", daemon=True).start()
    post_commit = threading.Thread(target=_run_post_commit_work, args=(setup, tiers, inbox, report), name="post-commit")
    post_commit.start()
    Writer(setup, tiers, inbox, report).run()
    inbox.close()
    post_commit.join()
    os._exit(0)  # without waiting for threads that hang in a store


def _run_post_commit_work(setup: WriterSetup, tiers: Tiers, inbox: Inbox, report: Callable[[Report], None]) -> None:
    from convoy.checkpoint.writer.post_commit import PostCommitWork  # no save has to wait for this import

    PostCommitWork(setup, tiers, inbox, report).run()


def _receive_requests(inbox: Inbox) -> None:
    for line in sys.stdin.buffer:
        inbox.put(REQUESTS.validate_json(line))
    os._exit(1)  # the trainer is gone: what it staged may change under our hands


def _private_stdout() -> BinaryIO:
    """Standard output for reports alone: whatever a library prints goes to standard error."""
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return reports


def _bind_to_parent(parent: int) -> None:
    """End when the parent does, however it ends, and by nothing else: it decides what a signal to the group means."""
    # Not PR_SET_PDEATHSIG, which takes the end of the thread that started this process for the parent's.
    with contextlib.suppress(OSError):  # before Linux 5.3 there is only the end of standard input
        watched = os.pidfd_open(parent)
        threading.Thread(target=_exit_with_parent, args=(watched,), name="parent", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _lower_priority() -> None:
    """A core that training wants is training's at once. Niceness alone lets the writer end its slice first, some
    milliseconds, and ranks that exchange gradients wait for each other's wake-ups a hundred times in a step."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _exit_with_parent(pidfd: int) -> None:
    select.select([pidfd], [], [])
    os._exit(1)


if __name__ == "__main__":
    main()
