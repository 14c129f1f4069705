"""A tracker in a process of its own, which can be killed while it hangs, and whose library's signal handlers, exit
hooks and threads are its own. The process gets one JSON line per call, and answers each with one.

Run as `python -m convoy.report.trackers.process`; what it is to do comes by standard input, so that no address shows
in a list of processes.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from convoy.config.errors import one_line
from convoy.config.notify import TARGET
from convoy.config.trackers import TrackerConfig
from convoy.report.trackers.points import Point, Text
from convoy.report.trackers.tracker import Ending, TrackedRun, Tracker, TrackerState, tracker_for

WARN_SECONDS = 30.0
"""A call that takes longer is warned of. It includes the start of the process and the import of its library."""

HANG_SECONDS = 120.0
"""The process of a call that takes longer is killed."""

POINTS = 5000
"""Most in one call."""

QUIET = {"GOMAXPROCS": "1"}
"""Environment of the process, unless the agent's has something else. W&B's own process, a Go program, asks ten times a
second whether this one lives; with several cores to itself it wakes threads on each of them for that."""

KILL_SECONDS = 5.0
"""For a killed process to be gone."""


class TrackerFailed(RuntimeError):
    """A tracker's library raised, or its process ended; the text is one line."""


class TrackerProcess:
    """A `Tracker` whose work is done elsewhere. One thread calls it; `kill` may be called by another."""

    def __init__(self, config: TrackerConfig, warn: Callable[[str], None]) -> None:
        """warn: is called from another thread, with a reason, while a call takes long."""
        self.takes_back = config.kind == "tensorboard"
        self._config, self._warn = config, warn
        self._process = subprocess.Popen(
            [sys.executable, "-m", "convoy.report.trackers.process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=QUIET | {name: value for name, value in os.environ.items() if name != TARGET},
            start_new_session=True,  # also for wandb's own process, which is to end with it
        )  # fmt: skip

    @property
    def place(self) -> str:
        """As `Tracker.place`."""
        return self._config.kind

    def open(self, run: TrackedRun) -> TrackerState:
        """As `Tracker.open`. Raises TrackerFailed, like all methods."""
        answer = self._call("open", config=self._config.model_dump(mode="json"), run=run.model_dump(mode="json"))
        return TrackerState.model_validate(answer)

    def send(self, points: Sequence[Point], texts: Sequence[Text]) -> None:
        """As `Tracker.send`."""
        for i in range(0, len(points), POINTS):
            self._call("send", points=points[i : i + POINTS], texts=())
        if texts:
            self._call("send", points=(), texts=texts)

    def take_back(self, generation: int, step: int) -> None:
        """As `Tracker.take_back`."""
        self._call("take_back", generation=generation, step=step)

    def close(self, ending: Ending, t: float) -> None:
        """As `Tracker.close`."""
        self._call("close", ending=ending, t=t)

    def kill(self) -> None:
        """End it and what it started, whatever it is doing. A call under way raises TrackerFailed."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)

    def _call(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        with self._time_limits(), contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps({"call": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise TrackerFailed("its process ended")
        answer = json.loads(line)
        if "error" in answer:
            raise TrackerFailed(answer["error"])
        return answer["result"]

    @contextlib.contextmanager
    def _time_limits(self) -> Iterator[None]:
        late = f"no answer for {WARN_SECONDS:.0f} s"
        timers = (threading.Timer(WARN_SECONDS, self._warn, (late,)), threading.Timer(HANG_SECONDS, self.kill))
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()


def serve(requests: "queue.Queue[bytes]", answer: Any) -> None:
    """Carry out requests until the run is closed. answer: takes one JSON line."""
    tracker: Tracker | None = None
    while True:
        request = json.loads(requests.get())
        what = request.pop("call")
        try:
            if what == "open":
                tracker = tracker_for(TrackerConfig.model_validate(request["config"]))
            assert tracker is not None
            answer({"result": _carry_out(tracker, what, request)})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {one_line(error)}"[:300]})
        if what == "close":
            return


def _carry_out(tracker: Tracker, what: str, request: Mapping[str, Any]) -> Any:
    match what:
        case "open":
            return tracker.open(TrackedRun.model_validate(request["run"])).model_dump(mode="json")
        case "send":
            return tracker.send([Point(*p) for p in request["points"]], [Text(*t) for t in request["texts"]])
        case "take_back":
            return tracker.take_back(request["generation"], request["step"])
        case _:
            return tracker.close(request["ending"], request["t"])


def main() -> None:
    """Serve the process that started this one, and end when it does."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print where nobody reads
    requests: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            requests.put(line)
        os.killpg(0, 9)  # this process leads its session: what it started ends too

    def answer(body: dict[str, Any]) -> None:
        answers.write(json.dumps(body).encode() + b"\n")
        answers.flush()

    threading.Thread(target=read, name="requests", daemon=True).start()
    serve(requests, answer)


if __name__ == "__main__":
    main()
