"""A run of a flow as a process of this machine: `python FLOW ... run ...`."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from convoy.launch.checks.host import this_interpreter
from convoy.launch.restarts.command_line import RUN

PATIENCE_SECONDS = 60.0
"""Metaflow ends its tasks, and keeps their logs, when it is interrupted: so long it may take."""


@dataclass(frozen=True)
class Identity:
    """What a run is called, and where Metaflow keeps what it knows of it."""

    run: str
    """Pathspec."""
    metadata: str
    """Metaflow's name of its metadata provider and place, such as `local@/home/me/.metaflow`."""


class FlowProcess:
    """Use as a context: leaving it leaves no process behind. What the run prints goes where this process prints."""

    def __init__(self, flow: Path, before: Sequence[str], after: Sequence[str]) -> None:
        """before, after: words around `run`."""
        self._folder = TemporaryDirectory(prefix="convoy-run-")
        self._attributes = Path(self._folder.name) / "run.json"
        runner_words = ["--runner-attribute-file", str(self._attributes)]
        self._command = [this_interpreter(), str(flow), *before, RUN, *after, *runner_words]
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> "FlowProcess":
        # A group of its own: Ctrl-C in a terminal is for this process to pass on, once.
        self._process = subprocess.Popen(self._command, process_group=0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.end(0.0)
        self._folder.cleanup()

    def wait(self, seconds: float) -> int | None:
        """The exit code once it has ended, minus the signal's number if by one; None: not within `seconds`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    @property
    def identity(self) -> Identity | None:
        """None: the run was not made, or not yet."""
        try:
            attributes = json.loads(self._attributes.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return Identity(f"{attributes['flow_name']}/{attributes['run_id']}", attributes["metadata"])

    def interrupt(self) -> None:
        """Have Metaflow end the run, and its tasks wherever they are."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def end(self, patience_seconds: float = PATIENCE_SECONDS) -> int:
        """The same, and see to it that no process of the run is left on this machine; the exit code."""
        if patience_seconds > 0:
            self.interrupt()
            self.wait(patience_seconds)
        # Also what the launcher left behind: Metaflow's local gangs outlive their first node.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()
