"""A rank's writer process over the life of the training process, and what is known of the attempts it was given.

Where one hangs it is given up, never waited for, and replaced; at most once.
"""

import time
from dataclasses import dataclass, field

from convoy.checkpoint.messages import (
    AfterCommit,
    Committed,
    PartWritten,
    Ready,
    Report,
    SaveFailed,
    SetLayout,
    WritePart,
    WriterSetup,
)
from convoy.checkpoint.queue import Standing
from convoy.checkpoint.writer_process import WriterProcess

GRACE_SECONDS = 10.0
"""A writer that has not told of its deadline so long after it hangs, and is given up."""


@dataclass
class Given:
    """What is known of an attempt."""

    name: str
    coordinator: bool
    until: float
    """By the monotonic clock: when the writer is taken to hang."""
    standing: Standing = field(default_factory=Standing)
    sent_to: WriterProcess | None = None
    written: bool = False
    """This rank's part is, and the rest is the coordinator's, which is another rank."""
    hung: bool = False
    """The process that had it was given up, and may still read its buffer."""


class Link:
    """For one thread, but for `send`, which another one calls."""

    def __init__(self, setup: WriterSetup) -> None:
        self._setup = setup
        self._writer: WriterProcess | None = None
        self._replaced = False
        self._given: dict[str, Given] = {}
        self._layout_sent: tuple[WriterProcess, SetLayout] | None = None
        self._reports: list[Report] = []
        self.unfit: dict[str, str] = {}
        """Tiers that do not keep what commits stand on, and why."""

    def start(self) -> None:
        writer = WriterProcess(self._setup)
        writer.start()
        self._writer = writer  # from now on `send` may use it

    def expect(self, name: str, deadline_seconds: float, *, coordinator: bool) -> Given:
        """An attempt that is about to be sent."""
        if self._writer is not None and not self._writer.alive():
            self._collect()
            self._replace()  # it died with nothing to do: no save need be lost for it
        until = time.monotonic() + deadline_seconds + GRACE_SECONDS
        given = self._given[name] = Given(name, coordinator, until)
        return given

    def send(self, given: Given, layout: SetLayout, request: WritePart) -> None:
        """layout: of the buffer; the same object where it is the same layout."""
        writer = self._writer
        if writer is None:
            return  # which `standing` finds out
        if self._layout_sent is None or self._layout_sent[0] is not writer or self._layout_sent[1] is not layout:
            writer.send(layout)
            self._layout_sent = writer, layout
        writer.send(request)
        given.sent_to = writer

    def fail(self, given: Given, error: str) -> None:
        """The attempt is over on this rank; told as if the writer had said so."""
        given.standing = Standing(failed=1)
        self._reports.append(SaveFailed(attempt=given.name, error=error))

    def given(self, name: str) -> Given | None:
        """What is known of an attempt by now. Never blocks."""
        self._collect()
        given = self._given.get(name)
        if given is not None and given.standing == Standing() and not given.written:
            self._look_after(given)
        return given

    def forget(self, name: str) -> Given | None:
        return self._given.pop(name, None)

    def reports(self) -> list[Report]:
        """What was told since the last call. Never blocks."""
        self._collect()
        reports, self._reports = self._reports, []
        return reports

    def after_commit(self, request: AfterCommit) -> None:
        if self._writer is not None:
            self._writer.send(request)

    def close(self, deadline_seconds: float) -> None:
        """End the process, which ends what it is doing; after so long it is killed."""
        if self._writer is not None:
            self._reports += self._writer.close(deadline_seconds)
            self._writer = None

    def _collect(self) -> None:
        for report in self._writer.poll() if self._writer is not None else ():
            self._reports.append(report)
            if isinstance(report, Ready):
                self.unfit = report.unfit
            elif isinstance(report, (PartWritten, Committed, SaveFailed)) and report.attempt in self._given:
                self._note(self._given[report.attempt], report)

    def _note(self, given: Given, report: PartWritten | Committed | SaveFailed) -> None:
        match report:
            case PartWritten():
                given.written = not given.coordinator
            case Committed():
                given.standing = Standing(committed=1)
            case SaveFailed():
                given.standing = Standing(failed=1, superseded=int(report.superseded))

    def _look_after(self, given: Given) -> None:
        """Give up a process that has ended or hangs, and with it the attempt."""
        if self._writer is None:
            self.fail(given, "there is no writer process any more: two have failed")
        elif given.sent_to is not None and given.sent_to is not self._writer:
            self.fail(given, "the writer process that had it was given up")
        elif not self._writer.alive():
            self._collect()  # its last words
            if given.standing == Standing():
                self.fail(given, "the writer process ended")
                self._replace()
        elif given.sent_to is not None and time.monotonic() > given.until:
            self.fail(given, "the writer process hangs, and was given up")
            given.hung = True
            self._writer.abandon()
            self._replace()

    def _replace(self) -> None:
        """At most once: where a second one fails too, the machine or the storage is at fault."""
        self._writer = None
        if not self._replaced:
            self._replaced = True
            self.start()
