"""A rank's writer process as the trainer sees it, and the state of the attempts that it was sent.

Nothing waits for the process but `close`, and that with a deadline. Where one hangs it is given up and replaced, at
most once in a row.
"""

import contextlib
import os
import queue
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import convoy
from convoy.checkpoint.messages import (
    REPORTS,
    URGENT,
    Close,
    Committed,
    Hurry,
    PartWritten,
    PostCommitRequest,
    PostCommitTask,
    PostCommitTaskDone,
    Report,
    Request,
    RequestsSent,
    SaveFailed,
    SetLayout,
    WritePart,
    WriterSetup,
)
from convoy.checkpoint.save.post_commit import BusyTiers, PendingWork
from convoy.checkpoint.save.queue import StatusCounts
from convoy.storage.usage import request_counter

GRACE_SECONDS = 10.0
"""A writer that has not reported so long after its deadline hangs, and is given up."""

_READ_BYTES = 2**20


class WriterProcess:
    """One writer process, for as long as it works; a new one is made where it does not.

    Not for several threads at once. The process ends with this one, however that ends.
    """

    def __init__(self, setup: WriterSetup, *, urgent: bool = False) -> None:
        """urgent: somebody waits for what it does, so that it neither gives way to others nor keeps to a pace."""
        self._setup = setup.model_copy(update={"bytes_per_second": None}) if urgent else setup
        self._options = [URGENT] if urgent else []
        self._process: subprocess.Popen[bytes] | None = None
        self._outgoing: queue.SimpleQueue[Request | WriterSetup | None] = queue.SimpleQueue()
        self._partial = b""

    def start(self) -> None:
        """Start the process; its report Ready comes when its stores have proven themselves."""
        place = str(Path(convoy.__file__).parents[1])
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), place]))
        self._process = subprocess.Popen(
            # -P: a file of the working folder must not pass for a module.
            [sys.executable, "-P", "-m", "convoy.checkpoint.writer", str(os.getpid()), *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path},
        )
        os.set_blocking(self.fileno(), False)
        self._outgoing.put(self._setup)
        threading.Thread(target=self._send_outgoing, args=(self._process,), name="to the writer", daemon=True).start()

    def send(self, request: Request) -> None:
        """Hand over a request; never blocks. One that the process does not live to read is lost."""
        self._outgoing.put(request)

    def poll(self) -> list[Report]:
        """Reports that have come since the last call, those of a process that has ended included; never blocks."""
        lines = (self._partial + self._read_output()).split(b"\n")
        self._partial = lines.pop()
        return [REPORTS.validate_json(line) for line in lines]

    def fileno(self) -> int:
        """Readable when there are reports, or the process has ended."""
        return self._started_process().stdout.fileno()  # type: ignore[union-attr]

    def alive(self) -> bool:
        return self._started_process().poll() is None

    def ended(self) -> bool:
        """Whether the process is no more, or never was."""
        return self._process is None or not self.alive()

    def abandon(self) -> None:
        """Kill it and never wait: a process that hangs in its storage ends when that does. The buffers that it
        was writing may be read until then."""
        self._started_process().kill()
        self._outgoing.put(None)

    def close(self, deadline_seconds: float) -> list[Report]:
        """Have it end what is under way, and end: its last reports. After so long it is abandoned."""
        self.send(Close())
        reports, until = list[Report](), time.monotonic() + deadline_seconds
        while self.alive() and (left := until - time.monotonic()) > 0:
            select.select([self], [], [], min(left, 0.1))
            reports += self.poll()
        if self.alive():
            self.abandon()
        self._outgoing.put(None)
        return reports + self.poll()

    def _read_output(self) -> bytes:
        chunks = list[bytes]()
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.fileno(), _READ_BYTES):
                chunks.append(chunk)
        return b"".join(chunks)

    def _send_outgoing(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which `alive` shows
            while (message := self._outgoing.get()) is not None:
                data = memoryview(message.model_dump_json().encode() + b"\n")
                while data:
                    data = data[os.write(process.stdin.fileno(), data) :]
        process.stdin.close()

    def _started_process(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError("the writer process was not started")
        return self._process


@dataclass
class AttemptState:
    """The state of an attempt, as far as this rank knows it."""

    name: str
    coordinator: bool
    until: float
    """When the writer counts as hung, by the monotonic clock."""
    status: StatusCounts = field(default_factory=StatusCounts)
    sent_to: WriterProcess | None = None
    sent: tuple[SetLayout, WritePart] | None = None
    """The messages that were sent."""
    written: bool = False
    """This rank's part is, and the rest is the coordinator's, which is another rank."""
    lost: bool = False
    """There was no process that it could be sent to."""
    forgotten: bool = False
    read: bool = False
    """The process has finished with the buffer."""

    @property
    def buffer_may_be_read(self) -> bool:
        """Whether a process may still read the attempt's buffer: one that hangs does so when its storage is back."""
        return not (self.read or self.sent_to is None or self.sent_to.ended())


class WriterClient:
    """One thread may use it; `send` and `fail` may be called by another one, too."""

    def __init__(self, setup: WriterSetup) -> None:
        self._setup = setup
        self._writer: WriterProcess | None = None
        self._replaced = False
        self._attempts: dict[str, AttemptState] = {}
        self._owed: dict[str, AttemptState] = {}
        """Attempts that the process was sent and has not answered, forgotten ones too: they show whether it hangs."""
        self._pending = PendingWork()
        self._sending = threading.Lock()
        self._abandoned: list[WriterProcess] = []
        self._layout_sent: tuple[WriterProcess, SetLayout] | None = None
        self._reports: list[Report] = []

    def start(self) -> None:
        """Start the process, which takes some tenths of a second. Where that fails, attempts do, until it succeeds."""
        writer = WriterProcess(self._setup)
        with contextlib.suppress(OSError):  # no memory, too many processes: training continues
            writer.start()
            self._writer = writer  # from now on `send` may use it

    def expect(self, name: str, deadline_seconds: float, *, coordinator: bool) -> AttemptState:
        """An attempt that is about to be sent."""
        if self._writer is not None and not self._writer.alive():
            self.collect_reports()
            self._replace_process()  # it died with nothing to do: no save need be lost for it
        elif self._writer is None and all(writer.ended() for writer in self._abandoned):
            self.start()  # what they hung in is over
        until = time.monotonic() + deadline_seconds + GRACE_SECONDS
        attempt = self._attempts[name] = AttemptState(name, coordinator, until)
        return attempt

    def send(self, attempt: AttemptState, layout: SetLayout, request: WritePart) -> None:
        """layout: of the buffer; the same object where it is the same layout."""
        with self._sending:
            writer = self._writer
            if writer is None or attempt.forgotten:
                attempt.lost = True
                return
            if self._layout_sent is None or self._layout_sent[0] is not writer or self._layout_sent[1] is not layout:
                writer.send(layout)
                self._layout_sent = writer, layout
            # It gives up what it has under way as soon as it hears of this, unless it hangs.
            soon = time.monotonic() + GRACE_SECONDS
            for owed in self._owed.values():
                owed.until = min(owed.until, soon)
            self._owed[attempt.name] = attempt
            attempt.sent_to, attempt.sent = writer, (layout, request)
            writer.send(request)

    def hurry(self, name: str) -> None:
        """Somebody waits for the attempt, which may not be sent yet: it is not held to its pace any more."""
        if self._writer is not None:
            self._writer.send(Hurry(attempt=name))

    def fail(self, attempt: AttemptState, error: str) -> None:
        """The attempt is over on this rank; it is reported as if by the writer."""
        attempt.status = StatusCounts(failed=1)
        self._reports.append(SaveFailed(attempt=attempt.name, error=error))

    def poll_attempt(self, name: str) -> AttemptState | None:
        """The state of an attempt by now. Never blocks."""
        self.collect_reports()
        self._give_up_hung()
        attempt = self._attempts.get(name)
        if attempt is not None and attempt.status == StatusCounts() and not attempt.written:
            self._fail_if_unanswerable(attempt)
        return attempt

    def forget(self, name: str) -> AttemptState | None:
        """The attempt is settled; where it was not sent yet, it never is."""
        attempt = self._attempts.pop(name, None)
        if attempt is not None:
            with self._sending:
                attempt.forgotten = True
        return attempt

    def take_reports(self) -> list[Report]:
        """Reports since the last call, also of failures that the process could not report itself. Never blocks."""
        self.collect_reports()
        reports, self._reports = self._reports, []
        return reports

    def request_post_commit(self, request: PostCommitRequest) -> None:
        """Request the work between saves. Returns at once; what was requested before is finished first."""
        if self._writer is not None:
            self._pending.add(request)
            self._writer.send(request)

    def busy(self) -> BusyTiers:
        """The work between saves that the process has not finished; a new process has none. Never blocks."""
        if not self._pending.is_empty:
            self.collect_reports()
        return BusyTiers(reading_back=self._tiers_of("reading_back"), copying=self._tiers_of("copying"))

    def close(self, deadline_seconds: float) -> None:
        """End the process, which ends what it is doing; after so long it is killed."""
        if self._writer is not None:
            self._reports += [report for report in self._writer.close(deadline_seconds) if not _add_if_requests(report)]
            self._writer = None

    def collect_reports(self) -> None:
        """Take in the reports of the process. Never blocks."""
        for report in self._writer.poll() if self._writer is not None else ():
            if _add_if_requests(report):
                continue
            self._reports.append(report)
            if isinstance(report, PostCommitTaskDone):
                self._pending.mark_done(report)
            elif isinstance(report, (PartWritten, Committed, SaveFailed)):
                attempt = self._attempts.get(report.attempt) or self._owed.get(report.attempt)
                if attempt is not None:
                    self._note_report(attempt, report)

    def _tiers_of(self, task: PostCommitTask) -> frozenset[int]:
        left = self._pending.tiers_with(task)
        return frozenset(index for index, uri in enumerate(self._setup.tiers) if uri in left)

    def _note_report(self, attempt: AttemptState, report: PartWritten | Committed | SaveFailed) -> None:
        attempt.read = True
        match report:
            case PartWritten():
                attempt.written = not attempt.coordinator
                self._replaced = False
            case Committed():
                attempt.status = StatusCounts(committed=1)
            case SaveFailed():
                attempt.status = StatusCounts(failed=1, superseded=int(report.superseded))
        if attempt.written or attempt.status != StatusCounts():
            self._owed.pop(attempt.name, None)

    def _fail_if_unanswerable(self, attempt: AttemptState) -> None:
        """Fail the attempt if the process that has it will not answer any more."""
        if self._writer is None or attempt.lost:
            self.fail(attempt, "there is no writer process: two in a row have failed, or it cannot be started")
        elif attempt.sent_to is not None and attempt.sent_to is not self._writer:
            self.fail(attempt, "the writer process hung and was replaced")
        elif not self._writer.alive():
            self.collect_reports()  # its last words
            if attempt.status == StatusCounts() and not attempt.written:
                self.fail(attempt, "the writer process ended")
            self._replace_process()

    def _give_up_hung(self) -> None:
        """Give up a process that has not answered in time, be it for an attempt that the gang gave up long since. What
        it was sent behind that, it has not begun: a new process gets it."""
        writer, now = self._writer, time.monotonic()
        if writer is None or all(now <= owed.until for owed in list(self._owed.values())):
            return
        behind = [each for each in self._attempts.values() if each.name in self._owed and now <= each.until]
        writer.abandon()
        self._abandoned.append(writer)
        self._replace_process()
        for attempt in behind if self._writer is not None else ():
            assert attempt.sent is not None
            self.send(attempt, *attempt.sent)

    def _replace_process(self) -> None:
        """Replace the process, at most once without a part written in between: then storage or machine are at fault."""
        self._writer = None
        self._owed.clear()
        self._pending.clear()
        if not self._replaced:
            self._replaced = True
            self.start()


def _add_if_requests(report: Report) -> bool:
    """Whether it is a report of requests, which then count as this process's own."""
    if not isinstance(report, RequestsSent):
        return False
    for each in report.requests:
        request_counter().add(each)
    return True
