"""One command on each host, all at the same time, until all have ended, one fails, or there is no time left."""

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

LINES_SECONDS = 0.2
"""Until lines that were written are passed on."""


@dataclass(frozen=True)
class HostCommand:
    """What runs on a host."""

    prefix: Sequence[str]
    """Of the host: see `Lab.command_prefix`."""

    words: Sequence[str]

    environment: Mapping[str, str]
    """All of it."""


@dataclass(frozen=True)
class HostRun:
    """What became of it."""

    returncode: int
    """Negative: the signal that ended it."""

    output: str
    errors: str
    killed: bool
    """By `run_on_hosts`, because of another host's failure or because there was no time left."""


def run_on_hosts(
    commands: Sequence[HostCommand], timeout_seconds: float | None = None, say: Callable[[str], None] | None = None
) -> list[HostRun]:
    """Run them at the same time, each as a process group of its own, and return what became of them, in their order.

    As soon as one fails, all others are killed; after `timeout_seconds` all that still run are. So if there are runs
    that were killed, and no other that failed, there was not enough time. say: receives the lines of the first one's
    standard output as they come.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_Files()) for _ in commands]
        started = [stack.enter_context(_Started(command, file)) for command, file in zip(commands, files, strict=True)]
        lines = _Lines(files[0].output, say or (lambda line: None))
        _wait([one.process for one in started], timeout_seconds, lines)
        killed = [one.kill() for one in started]
        codes = [one.process.wait() for one in started]
        lines.pass_on(whole=False)
        return [
            HostRun(code, *file.read(), was_killed) for code, file, was_killed in zip(codes, files, killed, strict=True)
        ]


class _Lines:
    """Of a file that grows: each is passed on once."""

    def __init__(self, file: IO[bytes], say: Callable[[str], None]) -> None:
        self._file, self._say = file, say
        self._rest = b""
        self._read = 0

    def pass_on(self, whole: bool = True) -> None:
        """What has come since. whole: leave a line that has no end yet for the next time."""
        more = os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size - self._read, self._read)
        self._read += len(more)
        *lines, self._rest = (self._rest + more).split(b"\n")
        if not whole and self._rest:
            lines.append(self._rest)
        for line in lines:
            self._say(line.decode(errors="replace"))


class _Files:
    """What a command writes: files, because a pipe that nobody reads would hold it up."""

    def __enter__(self) -> "_Files":
        self.output: IO[bytes] = tempfile.TemporaryFile()
        self.errors: IO[bytes] = tempfile.TemporaryFile()
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()
        self.errors.close()

    def read(self) -> tuple[str, str]:
        return _text(self.output), _text(self.errors)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


class _Started:
    """A command that runs, and is killed with its children if this process leaves it."""

    def __init__(self, command: HostCommand, files: _Files) -> None:
        self._command, self._files = command, files

    def __enter__(self) -> "_Started":
        self.process = subprocess.Popen(
            [*self._command.prefix, *self._command.words],
            env=dict(self._command.environment),
            stdin=subprocess.DEVNULL,
            stdout=self._files.output,
            stderr=self._files.errors,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.process.wait()

    def kill(self) -> bool:
        """Whether it still ran."""
        if self.process.poll() is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return True


def _wait(processes: Sequence["subprocess.Popen[bytes]"], timeout_seconds: float | None, lines: _Lines) -> None:
    """Until all have ended, one has failed, or there is no time left."""
    deadline = float("inf") if timeout_seconds is None else time.monotonic() + timeout_seconds
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for process in processes:
            watched = os.pidfd_open(process.pid)
            stack.callback(os.close, watched)
            selector.register(watched, selectors.EVENT_READ, process)
        while selector.get_map() and time.monotonic() < deadline:
            ended = selector.select(max(0.0, min(LINES_SECONDS, deadline - time.monotonic())))
            lines.pass_on()
            if any(key.data.wait() for key, _ in ended):
                return
            for key, _ in ended:
                selector.unregister(key.fileobj)
