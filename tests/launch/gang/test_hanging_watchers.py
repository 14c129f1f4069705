"""A tracker, a target of notifications and scrapers that never answer: a gang that has them all trains at the same time
as a gang that has none."""

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from convoy.config.monitor import MonitorConfig
from convoy.config.notify import TARGET, NotifyConfig
from convoy.config.trackers import TrackerConfig
from convoy.gang.messages import PreemptedError
from convoy.gang.task import Task
from convoy.job.events.log import EventReader
from convoy.job.events.registry import StepDone
from convoy.job.record import job_store
from convoy.launch.gang.step import run_gang_step
from convoy.launch.monitor.ports import listen_everywhere
from convoy.report.notifications import notifier
from convoy.report.notifications.notifier import Notifier
from convoy.report.trackers.live import LiveTrackers
from tests.gang.tasks import DEADLINE_SECONDS, a_node, a_task, wait_for

JOIN_SECONDS = 1.0
"""At the end of the gang for notifications, and again for trackers: the documented 25 s and 10 s, shortened."""

SLACK_SECONDS = 12.0
"""A message whose deadline is waited for takes 20 s, a call of a tracker two minutes."""

STEPS = 200


class Silent:
    """A server that takes connections, reads what comes first, and never answers."""

    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self.requests: list[bytes] = []
        self._listener, self._open = listener, list[socket.socket]()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                self.requests.append(connection.recv(4096))


@pytest.fixture
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Silent(listener)


@contextlib.contextmanager
def hanging_scrapers(port: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing, send half a request, or read no answer; new ones come for as long as the block
    runs, since the endpoint closes them after a while. Gives those that were taken."""
    over, taken = threading.Event(), list[socket.socket]()

    def scrape() -> None:
        words = (b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        while not over.wait(0.1):
            with contextlib.suppress(OSError):  # not open yet, or no longer
                connection = socket.create_connection(("127.0.0.1", port))
                taken.append(connection)
                connection.sendall(words[len(taken) % len(words)])

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    yield taken
    over.set()
    thread.join()
    for connection in taken:
        connection.close()


class Run:
    """The gang's step of one node, in a process of its own, until it gets SIGTERM."""

    def __init__(self, task: Task) -> None:
        gc.freeze()
        self._process = multiprocessing.get_context("fork").Process(target=self._be, args=(task,))
        self._reader = EventReader(job_store(task.root, task.job))
        self._steps = 0
        self._process.start()

    def steps(self) -> int:
        """That are in the log."""
        self._steps += sum(isinstance(event, StepDone) and event.rank == 0 for event in self._reader.poll())
        return self._steps

    def preempt(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGTERM)

    def ended(self) -> bool:
        """As one that was preempted does."""
        assert self._process.exitcode in (None, 0)
        return self._process.exitcode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.join(DEADLINE_SECONDS)

    @staticmethod
    def _be(task: Task) -> None:
        with contextlib.suppress(PreemptedError):
            run_gang_step(task, a_node(), lambda page, how: None, "Flow/1/train/1")
            raise AssertionError("it trained to the end")


@pytest.mark.slow
def test_a_tracker_a_target_and_scrapers_that_hang_cost_no_step_and_delay_the_end_by_no_more_than_documented(
    tmp_path: Path, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Notifier.join, "__defaults__", (JOIN_SECONDS,))
    monkeypatch.setattr(LiveTrackers.join, "__defaults__", (JOIN_SECONDS,))
    monkeypatch.setattr(notifier, "POLL_SECONDS", 0.2)
    monkeypatch.setenv(TARGET, f"json://127.0.0.1:{silent.port}")
    with listen_everywhere(0) as free:
        port = free.getsockname()[1]
    plain = a_task(str(tmp_path / "plain"), train={"steps": 1_000_000, "threads_per_rank": 1})
    hung = a_task(str(tmp_path / "hung"), train={"steps": 1_000_000, "threads_per_rank": 1})
    settings = {
        "monitor": MonitorConfig(port=port),
        "trackers": (TrackerConfig(mlflow=f"http://127.0.0.1:{silent.port}"),),
        "notify": NotifyConfig(on=("started", "preempted")),
    }
    hung = replace(hung, config=hung.config.model_copy(update=settings))
    with hanging_scrapers(port) as scrapers:
        runs = [Run(plain), Run(hung)]
        try:
            wait_for("both to step", lambda: min(run.steps() for run in runs) > 5)
            wait_for("a call of the tracker", lambda: any(b"/mlflow/" in request for request in silent.requests))
            wait_for("a message", lambda: any(b"POST / " in request for request in silent.requests))
            assert scrapers
            steps = _steps_of_each_while_the_first_does(STEPS, runs)
            times = _seconds_to_the_end_of_each(runs)
        finally:
            for run in runs:
                run.kill()
    assert steps[1] >= STEPS / 2
    assert times[1] < times[0] + 2 * JOIN_SECONDS + SLACK_SECONDS
    assert "notified/started.sent" not in job_store(hung.root, hung.job).sizes("notified/")


def _steps_of_each_while_the_first_does(count: int, runs: list[Run]) -> list[int]:
    before = [run.steps() for run in runs]
    wait_for("more steps", lambda: runs[0].steps() - before[0] >= count)
    return [run.steps() - done for run, done in zip(runs, before, strict=True)]


def _seconds_to_the_end_of_each(runs: list[Run]) -> list[float]:
    """From a notice for all."""
    began, ends = time.monotonic(), dict[Run, float]()
    for run in runs:
        run.preempt()

    def all_have_ended() -> bool:
        for run in runs:
            if run not in ends and run.ended():
                ends[run] = time.monotonic() - began
        return len(ends) == len(runs)

    wait_for("the end of both", all_have_ended)
    return [ends[run] for run in runs]
