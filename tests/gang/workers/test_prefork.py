"""Forking workers: how they end is told, nothing outlives them or their agent, and the process can be replaced."""

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from convoy.config.notify import TARGET
from convoy.gang.workers import prefork
from convoy.gang.workers.prefork import Prefork, _environment_for_workers
from convoy.gang.workers.processes import TAG, kill_tagged, parents_by_pid
from convoy.gang.workers.worker import Worker, exit_event
from tests.gang.light import assignment
from tests.gang.tasks import alive, descendants, wait_for

AT_ONCE_SECONDS = 5.0
"""Other than after the minutes for which a worker here sleeps."""


def light(folder: Path, **environment: str) -> Prefork:
    return Prefork({"PYTHONUNBUFFERED": "1", **environment}, folder / "warm.log", module="tests.gang.light")


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Prefork]:
    with light(tmp_path) as process:
        yield process


def start(warm: Prefork, folder: Path, job: str, rank: int = 0) -> Worker:
    return warm.fork(assignment(job, folder, rank), folder / f"{rank}.log")


def code_of(warm: Prefork, worker: Worker) -> int:
    """Once it has ended."""
    deadline = time.monotonic() + 20
    while (code := worker.exit_code()) is None:
        assert time.monotonic() < deadline, "it does not end"
        warm.wait_for_report(1.0)
    return code


def said(worker: Worker) -> str:
    """What it has printed, once it has."""
    return str(wait_for("a line of the worker", lambda: worker.log.exists() and worker.log.read_text().strip()))


@pytest.mark.parametrize(
    ("job", "code"),
    [("return 0", 0), ("return 3", 3), ("exit", 0), ("exit 5", 5), ("exit in words", 1), ("raise x", 1)],
)
def test_how_a_worker_ends_is_its_exit_code(job: str, code: int, warm: Prefork, tmp_path: Path) -> None:
    worker = start(warm, tmp_path, job)

    assert code_of(warm, worker) == code
    assert worker.state() == "gone"
    assert ("KeyError: 'x'" in worker.log.read_text()) == (job == "raise x")
    assert ("in words" in worker.log.read_text()) == (job == "exit in words")


def test_a_signal_is_told_as_such_and_at_once(warm: Prefork, tmp_path: Path) -> None:
    worker, other = start(warm, tmp_path, "sleep"), start(warm, tmp_path, "sleep", rank=1)
    said(worker)
    assert worker.pid is not None
    began = time.monotonic()

    os.kill(worker.pid, signal.SIGSEGV)

    assert code_of(warm, worker) == -signal.SIGSEGV
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert other.exit_code() is None
    assert exit_event(worker).signal == "SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in exit_event(worker).log_tail, "with the stack"


def test_an_end_that_any_question_took_in_ends_the_wait(warm: Prefork, tmp_path: Path) -> None:
    workers = [start(warm, tmp_path, "return 0", rank) for rank in range(3)]
    deadline = time.monotonic() + 20
    while any(worker.exit_code() is None for worker in workers):
        for worker in reversed(workers):
            worker.exit_code()
        began = time.monotonic()
        warm.wait_for_report(5.0)
        assert time.monotonic() - began < 4.0
        assert time.monotonic() < deadline


def test_a_worker_is_apart_from_what_it_was_forked_from(warm: Prefork, tmp_path: Path) -> None:
    worker = start(warm, tmp_path, "tell", rank=2)
    assert code_of(warm, worker) == 0
    told = json.loads(worker.log.read_text())

    assert (told["rank"], told["local_rank"], told["name"]) == (2, "2", "convoy rank 2")
    assert told["session"]
    assert told["signals"] == ["0"] * 3  # SIG_DFL
    assert told["files"] == sorted(["/dev/null", str(worker.log), str(worker.log)])


def test_rank_0_gets_the_listening_socket_and_nobody_keeps_it(warm: Prefork, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        task = assignment("greet", tmp_path, listen_fd=listener.fileno())
        worker = warm.fork(task, tmp_path / "0.log")
    wait_for("the worker", lambda: worker.pid)

    with socket.create_connection(address, timeout=20) as connection:
        assert connection.recv(10) == b"hello"
    assert code_of(warm, worker) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=20)


def test_a_stopped_worker_is_seen_by_its_state(warm: Prefork, tmp_path: Path) -> None:
    worker = start(warm, tmp_path, "sleep")
    said(worker)
    assert worker.pid is not None
    assert worker.state() == "running"

    os.kill(worker.pid, signal.SIGSTOP)

    wait_for("the stop", lambda: worker.state() == "stopped")
    assert worker.exit_code() is None
    assert warm.kill_workers() == set()
    assert (worker.exit_code(), worker.state()) == (-signal.SIGKILL, "gone")


@pytest.mark.parametrize("how", ["child", "session", "daemon", "fork"])
def test_what_a_worker_left_behind_ends_with_the_others(how: str, warm: Prefork, tmp_path: Path) -> None:
    left = int(said(start(warm, tmp_path, f"leave {how}")))
    other = start(warm, tmp_path, "sleep", rank=1)
    said(other)
    assert alive({left}) == {left}
    began = time.monotonic()

    assert warm.kill_workers() == set()

    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert alive({left}) == set()
    assert other.exit_code() == -signal.SIGKILL
    again = start(warm, tmp_path, "return 4")
    assert code_of(warm, again) == 4


def test_leaving_ends_everything(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    with light(tmp_path) as warm:
        left = int(said(start(warm, tmp_path, "leave daemon")))
        last = start(warm, tmp_path, "sleep", rank=1)
        said(last)

    assert alive({left}) == set()
    assert descendants(os.getpid()) == before
    assert last.exit_code() == -signal.SIGKILL
    assert warm.close() == set()
    assert "was ended" in exit_event(start(warm, tmp_path, "return 0")).reason


def test_one_that_dies_while_it_is_closed_leaves_no_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replacement was started, and nothing ended it."""

    def kill(pid: int) -> set[int]:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return set()

    before = descendants(os.getpid())
    warm = light(tmp_path)
    warm.__enter__()
    monkeypatch.setattr(prefork, "kill_below", kill)

    assert warm.close() == set()

    assert descendants(os.getpid()) == before


@pytest.mark.parametrize("how", ["child", "daemon", "fork"])
def test_all_of_it_ends_with_a_killed_agent(how: str, tmp_path: Path) -> None:
    agent = multiprocessing.get_context("fork").Process(target=_agent, args=(tmp_path, f"leave {how}"))
    agent.start()
    log = tmp_path / "0.log"
    left = int(wait_for("a pid", lambda: log.exists() and log.read_text().strip()))
    assert agent.pid is not None
    tree = descendants(agent.pid) | {left}
    assert len(tree) >= 3

    agent.kill()
    agent.join()

    wait_for("the end of all", lambda: not alive(tree))


def test_it_does_not_end_with_the_thread_that_started_it(tmp_path: Path) -> None:
    warm = light(tmp_path)
    thread = threading.Thread(target=warm.__enter__)
    thread.start()
    thread.join()
    try:
        assert code_of(warm, start(warm, tmp_path, "return 6")) == 6
    finally:
        warm.close()


def test_one_that_dies_takes_its_workers_with_it_and_is_replaced(warm: Prefork, tmp_path: Path) -> None:
    worker = start(warm, tmp_path, "leave marked daemon")
    left = int(said(worker))
    assert worker.pid is not None
    process = parents_by_pid()[worker.pid]

    os.kill(process, signal.SIGKILL)

    assert code_of(warm, worker) == -signal.SIGKILL
    assert exit_event(worker).reason == "the process that workers are forked from was killed by SIGKILL"
    assert alive({left, worker.pid, process}) == set()
    assert code_of(warm, start(warm, tmp_path, "return 7")) == 7


def test_one_that_never_gets_ready_is_replaced_once(tmp_path: Path) -> None:
    with light(tmp_path, LIGHT_PREPARE="fails") as warm:
        workers = [start(warm, tmp_path, "return 0", rank) for rank in range(2)]
        assert [code_of(warm, worker) for worker in workers] == [1, 1]
        why = "the process that workers are forked from exited with code 1: no such library"
        assert [exit_event(worker).reason for worker in workers] == [why] * 2
        wait_for("its replacement's end", lambda: start(warm, tmp_path, "return 0").exit_code() == 1)
        assert warm._process is None
        warm.wait_for_report(0.01)


def test_workers_can_be_stopped_before_they_are_there(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    with light(tmp_path, LIGHT_PREPARE="is slow") as warm:
        worker = start(warm, tmp_path, "sleep")
        began = time.monotonic()
        assert warm.kill_workers() == set()
        assert time.monotonic() - began < AT_ONCE_SECONDS
        assert (worker.exit_code(), worker.pid, worker.state()) == (-signal.SIGKILL, None, "gone")
        assert len(descendants(os.getpid()) - before) == 1  # for the next ones
    assert descendants(os.getpid()) == before


def test_a_fork_that_fails_is_told(tmp_path: Path) -> None:
    with light(tmp_path, LIGHT_PREPARE="cannot fork") as warm:
        worker = start(warm, tmp_path, "return 0")
        assert code_of(warm, worker) == 1
        assert exit_event(worker).reason == "it could not be forked: [Errno 11] Resource temporarily unavailable"


def test_a_log_that_cannot_be_written_is_an_error(warm: Prefork, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        warm.fork(assignment("return 0", tmp_path), tmp_path / "file" / "0.log")


def test_assignments_that_no_socket_would_hold(warm: Prefork, tmp_path: Path) -> None:
    long = assignment("return 0", tmp_path).model_copy(update={"data_id": "x" * 1_000_000})
    workers = [warm.fork(long, tmp_path / f"{rank}.log") for rank in range(8)]
    assert [code_of(warm, worker) for worker in workers] == [0] * 8


def test_a_marker_finds_only_its_own(tmp_path: Path) -> None:
    with light(tmp_path) as one, light(tmp_path) as two:
        first, second = start(one, tmp_path, "sleep"), start(two, tmp_path, "sleep", rank=1)
        assert (said(first), said(second)) == ("here", "here")
        assert one._process is not None
        assert kill_tagged(one._process.tag) == set()
        assert code_of(one, first) == -signal.SIGKILL
        assert second.exit_code() is None
        assert TAG not in os.environ


def _agent(folder: Path, job: str) -> None:
    with light(folder) as warm:
        start(warm, folder, job)
        time.sleep(600)


def test_workers_do_not_inherit_the_target_of_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TARGET, "json://me:secret@host")
    monkeypatch.setenv("SOMETHING_ELSE", "x")
    inherited = _environment_for_workers()
    assert TARGET not in inherited
    assert inherited["SOMETHING_ELSE"] == "x"
