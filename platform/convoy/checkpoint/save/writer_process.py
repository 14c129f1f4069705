"""A rank's writer process as the trainer sees it: nothing here waits for it but `close`, and that with a deadline."""

import contextlib
import os
import queue
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import convoy
from convoy.checkpoint.messages import REPORTS, URGENT, Close, Report, Request, WriterSetup

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
        threading.Thread(target=self._send, args=(self._process,), name="to the writer", daemon=True).start()

    def send(self, request: Request) -> None:
        """Hand over a request; never blocks. One that the process does not live to read is lost."""
        self._outgoing.put(request)

    def poll(self) -> list[Report]:
        """Reports that have come since the last call, those of a process that has ended included; never blocks."""
        lines = (self._partial + self._received()).split(b"\n")
        self._partial = lines.pop()
        return [REPORTS.validate_json(line) for line in lines]

    def fileno(self) -> int:
        """Readable when there are reports, or the process has ended."""
        return self._started().stdout.fileno()  # type: ignore[union-attr]

    def alive(self) -> bool:
        return self._started().poll() is None

    def ended(self) -> bool:
        """Whether the process is no more, or never was."""
        return self._process is None or not self.alive()

    def abandon(self) -> None:
        """Kill it and never wait: a process that hangs in its storage ends when that does. The buffers that it
        was writing may be read until then."""
        self._started().kill()
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

    def _received(self) -> bytes:
        chunks = list[bytes]()
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.fileno(), _READ_BYTES):
                chunks.append(chunk)
        return b"".join(chunks)

    def _send(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which `alive` shows
            while (message := self._outgoing.get()) is not None:
                data = memoryview(message.model_dump_json().encode() + b"\n")
                while data:
                    data = data[os.write(process.stdin.fileno(), data) :]
        process.stdin.close()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError("the writer process was not started")
        return self._process
