"""Trackers of a job that runs: they get everything in the end, and one that hangs or raises harms nobody."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convoy.config.trackers import TrackerConfig
from convoy.gang.workers.processes import environment_of
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import GenerationStarted, StepDone
from convoy.report.trackers import live, process
from convoy.report.trackers.live import LiveTrackers
from convoy.report.trackers.tracker import TrackedRun
from convoy.storage.posix import PosixStore
from tests.report.trackers.test_trackers import tensorboard_losses

pytestmark = pytest.mark.processes

RUN = TrackedRun(job="blue", uri="/jobs/blue", started=time.time())


def write_steps(store: PosixStore, generation: int, steps: range, parent: int | None = None) -> None:
    agent, rank = EventWriter(store, generation, 0), EventWriter(store, generation, 0, 0)
    origin: dict[str, Any] = {} if parent is None else {"parent_generation": generation - 1, "parent_step": parent}
    agent.append(GenerationStarted(**origin))
    for step in steps:
        rank.append(StepDone(step=step, loss=generation, grad_norm=1.0, lr=0.1, tokens=100, seconds=0.5))
    agent.close()
    rank.close()


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path / "blue")


@pytest.fixture
def hanging_server() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_tracker_that_hangs_delays_no_other_one_and_the_end_is_bounded(
    tmp_path: Path, store: PosixStore, hanging_server: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(process, "WARN_SECONDS", 0.2)
    write_steps(store, 1, range(1, 6))
    board = TrackerConfig(tensorboard=str(tmp_path / "board"))
    with LiveTrackers([TrackerConfig(mlflow=hanging_server), board], store, RUN, poll_seconds=0.1) as trackers:
        deadline = time.monotonic() + 30
        while not list((tmp_path / "board").glob("events*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        write_steps(store, 2, range(4, 9), parent=3)
        trackers.end("finished")
        began = time.monotonic()
        trackers.join(4)
        assert time.monotonic() - began < 8
    assert tensorboard_losses(tmp_path / "board") == [(s, 1 if s <= 3 else 2) for s in range(1, 9)]
    warned, left = (line for line in capsys.readouterr().err.splitlines() if "tracker mlflow" in line)
    assert warned.startswith("convoy: tracker mlflow: no answer for 0 s; training continues")
    assert left.startswith("convoy: tracker mlflow: has not got everything; the job's next attempt or `convoy replay`")


def test_a_tracker_that_cannot_work_is_warned_of_once_in_one_line(
    tmp_path: Path, store: PosixStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "LONGEST_PAUSE_SECONDS", 0.1)
    write_steps(store, 1, range(1, 3))
    (tmp_path / "file").write_text("no folder")
    tries = []
    started = process.TrackerProcess.open
    monkeypatch.setattr(process.TrackerProcess, "open", lambda self, run: (tries.append(1), started(self, run))[1])
    config = TrackerConfig(tensorboard=str(tmp_path / "file" / "board"))
    with LiveTrackers([config], store, RUN, poll_seconds=0.01):
        deadline = time.monotonic() + 30
        while len(tries) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convoy: tracker tensorboard: NotADirectoryError: ")
    assert line.endswith("; training continues, and what it misses is sent later")
    assert len(tries) >= 2


def test_a_process_that_ends_just_as_the_block_is_left_harms_nobody(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = process.TrackerProcess.__new__(process.TrackerProcess)
    monkeypatch.setattr(process.TrackerProcess, "kill", lambda self: None)
    answers = [ended, None]
    monkeypatch.setattr(live._Follower, "_process", property(lambda self: answers.pop(0), lambda self, value: None),
                        raising=False)  # fmt: skip
    live._Follower(TrackerConfig(wandb="stdlib"), store, RUN, 1.0).stop()
    assert answers == [None]


def test_what_a_tracker_missed_while_its_process_was_killed_is_made_up(tmp_path: Path, store: PosixStore) -> None:
    write_steps(store, 1, range(1, 6))
    config = TrackerConfig(tensorboard=str(tmp_path / "board"))
    with LiveTrackers([config], store, RUN, poll_seconds=0.05) as trackers:
        (follower,) = trackers._followers
        deadline = time.monotonic() + 30
        while not list((tmp_path / "board").glob("events*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert follower._process is not None
        follower._process.kill()
        write_steps(store, 2, range(6, 9), parent=5)
        trackers.end("finished")
        trackers.join(30)
    assert tensorboard_losses(tmp_path / "board") == [(s, 1 if s <= 5 else 2) for s in range(1, 9)]


def test_the_process_gets_its_target_by_no_argument_and_dies_with_its_parent(tmp_path: Path) -> None:
    started = process.TrackerProcess(TrackerConfig(tensorboard=str(tmp_path / "secret-place")), lambda why: None)
    started.open(RUN)
    pid = started._process.pid
    assert b"secret-place" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert started._process.stdin is not None
    started._process.stdin.close()  # as the kernel does when the agent is killed
    assert started._process.wait(20) == -9


@pytest.mark.parametrize(("own", "expected"), [(None, "1"), ("3", "3")])
def test_a_go_program_below_the_process_gets_one_core_unless_the_user_says_otherwise(
    own: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMAXPROCS", raising=False)
    if own is not None:
        monkeypatch.setenv("GOMAXPROCS", own)
    started = process.TrackerProcess(TrackerConfig(tensorboard=str(tmp_path)), lambda why: None)
    environment = environment_of(started._process.pid)
    started.kill()
    assert f"GOMAXPROCS={expected}".encode() in environment


def test_an_error_of_the_library_is_one_line() -> None:
    import queue

    requests: queue.Queue[bytes] = queue.Queue()
    answers: list[dict[str, Any]] = []
    run = RUN.model_dump(mode="json")
    requests.put(json.dumps({"call": "open", "config": {"tensorboard": "/proc/none"}, "run": run}).encode())
    requests.put(json.dumps({"call": "close", "ending": "failed", "t": 0}).encode())
    thread = threading.Thread(target=process.serve, args=(requests, answers.append))
    thread.start()
    thread.join(20)
    assert "\n" not in answers[0]["error"]
    assert answers[0]["error"].startswith("FileNotFoundError: ")
