"""The thread that samples a node's hardware while its gang runs. Nobody waits for it."""

import os
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from convoy.config.errors import one_line
from convoy.gang.async_call import say
from convoy.gang.task import Node
from convoy.gang.telemetry.gpus import Gpu, NvmlUnavailable, visible_gpus
from convoy.gang.telemetry.window import SAMPLE_SECONDS, SampleWindow
from convoy.job.events.hardware import HardwareSampled

if TYPE_CHECKING:  # imports psutil, which the thread can do while the workers start
    from convoy.gang.telemetry.host import NodeSample

END_SECONDS = 0.5
"""For a sample that is under way; a driver that hangs is left behind."""


class HardwareSampler:
    """Samples while a `with` block runs. `take_events` and `take_rest` are called by one thread, and never wait."""

    def __init__(self, node: Node, root: Path | None, every_seconds: float = SAMPLE_SECONDS) -> None:
        """node: whose workers' GPUs are sampled. root: of the job, whose file system is; None: it is not a folder."""
        self._node, self._root, self._every_seconds = node, root, every_seconds
        self._newest: NodeSample | None = None
        self._window = SampleWindow()
        self._events: deque[HardwareSampled] = deque()
        self._lock = threading.Lock()
        """Of the window; never held while something is asked of the hardware."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_over, name="hardware samples", daemon=True)

    def __enter__(self) -> "HardwareSampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(END_SECONDS)

    @property
    def newest(self) -> "NodeSample | None":
        """The newest sample; None: there is none yet."""
        return self._newest

    def take_events(self) -> list[HardwareSampled]:
        """The events that became due since the last call."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def take_rest(self) -> list[HardwareSampled]:
        """The same, and one of the samples for which none is due yet."""
        with self._lock:
            rest = self._window.take()
        return self.take_events() + ([rest] if rest is not None else [])

    def _sample_until_over(self) -> None:
        try:
            from convoy.gang.telemetry.host import NodeReader

            gpus, self._window = self._find_gpus()
            reader = NodeReader(gpus, self._root)
        except Exception as error:
            self._say(f"its hardware is not sampled: {one_line(error)}")
            return
        failing = False
        while not self._over.wait(self._every_seconds):
            try:
                self._add(reader.read())
                failing = False
            except Exception as error:  # whatever it is: the next sample may succeed
                if not failing:
                    self._say(f"a sample of its hardware failed: {one_line(error)}")
                failing = True

    def _find_gpus(self) -> tuple[list[Gpu], SampleWindow]:
        """The GPUs of this node's workers, as `training/process_groups.py` deals them out."""
        try:
            gpus = visible_gpus(os.environ)
        except NvmlUnavailable as error:
            self._say(f"its GPUs are not sampled: {error}")
            return [], SampleWindow(no_gpus=str(error))
        first = self._node.first_rank if self._node.shares_host else 0
        return gpus[first : first + self._node.nproc_per_node], SampleWindow()

    def _add(self, sample: "NodeSample") -> None:
        self._newest = sample
        with self._lock:
            event = self._window.add(sample)
        if event is not None:
            self._events.append(event)

    def _say(self, text: str) -> None:
        say(f"convoy: node {self._node.index}: {text}", error=True)
